//! What `tollgate check` says of settings that are valid, and of README's way to a live gateway.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::commands::fixture::{Fixture, KEY};
use crate::markdown;
use crate::support::process;

#[test]
fn check_warns_of_settings_that_are_probably_mistakes() {
    let fixture = Fixture::open();
    let (listen, total) = (
        ("TOLLGATE_SERVER__LISTEN", "0.0.0.0:8080"),
        ("TOLLGATE_BUDGET__TOTAL", "{ day = \"20\" }"),
    );
    let everyone = ("TOLLGATE_SERVER__TRUSTED_PROXIES", "[\"0.0.0.0/0\"]");
    let halves = ("TOLLGATE_SERVER__TRUSTED_PROXIES", "[\"::/1\", \"8000::/1\"]");
    let own = ("TOLLGATE_SERVER__TRUSTED_PROXIES", "[\"10.0.0.0/8\", \"fc00::/7\"]");
    let caller = ("TOLLGATE_BUDGET__CALLER", "{ day = \"1.00\", month = \"50\" }");
    let chats = ("TOLLGATE_ACCESS__MAY_BUY", "[\"chat\"]");
    for (environment, expected) in [
        (&[][..], ""),
        (
            &[("TOLLGATE_GATEWAY__CHAT_TIMEOUT", "1ms")],
            "gateway.chat_timeout: 1ms is shorter than 1s",
        ),
        (
            &[("TOLLGATE_SERVER__BODY_TIMEOUT", "20ms")],
            "server.body_timeout: 20ms is shorter than 1s",
        ),
        (
            &[("TOLLGATE_MODELS__CHAT", "[{ id = \"gift\", price = \"0\" }]")],
            "models.chat: gift is sold at $0.00",
        ),
        (&[caller], "budget.caller: $1.00 a day never covers video-"),
        (&[caller, chats], ""),
        (
            &[("TOLLGATE_BUDGET__TOTAL", "{ ever = \"4\" }")],
            "budget.total: $4.00 in all never covers",
        ),
        (&[listen, total, everyone], "server.trusted_proxies: covers more than your own proxies"),
        (&[listen, total, halves], "server.trusted_proxies: covers more than your own proxies"),
        (&[listen, total, own], ""),
    ] {
        let ended = fixture.run(&["check"], environment);
        assert_eq!(ended.code, Some(0), "{environment:?}: {}", ended.said());
        let warnings: Vec<_> = ended.err.lines().collect();
        let begins = |line: &&str| line.starts_with(&format!("warning: {expected}"));
        assert_eq!(
            warnings.len(),
            usize::from(!expected.is_empty()),
            "{environment:?}: {warnings:?}"
        );
        assert!(warnings.iter().all(begins), "{expected}: {warnings:?}");
        let json = fixture.run(&["check", "--format", "json"], environment).out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["warnings"].as_array().unwrap().len(), warnings.len(), "{json}");
    }
}

#[test]
fn check_refuses_a_ledger_with_the_other_kind_of_money() {
    let fixture = Fixture::with_ledger();
    let server = fixture.serve_noted();
    let play = fixture.folder.path().join("play.toml");
    fs::write(&play, "store.url = \"sqlite:tollgate.db\"\n").unwrap();
    let check = || process::run(fixture.folder.path(), &["--config", "play.toml", "check"], &[]);
    let says = "holds the other kind of money; use separate ledgers";
    let ended = check();
    assert!(ended.code == Some(1) && ended.stderr.contains(says), "while it is served: {ended:?}");
    drop(server);
    let ended = check();
    assert!(ended.code == Some(1) && ended.stderr.contains(says), "{ended:?}");
    assert_eq!(fixture.done(&["check"]).lines().next().unwrap(), "settings  proxy.toml");
}

/// The settings that README's steps name, in the file that is shipped.
#[test]
fn going_live_as_readme_says_prints_no_warning() {
    let readme = markdown::read("README.md");
    let steps = markdown::section(&readme, "Going live");
    let settings: Vec<_> =
        markdown::spans(steps).into_iter().filter(|span| span.contains(" = ")).collect();
    assert_eq!(settings.len(), 2, "{settings:?}");
    let folder = TempDir::with_prefix("tollgate-readme-").unwrap();
    let mut file = markdown::read("proxy.toml");
    for setting in settings {
        let (section, own) = setting.split_once('.').unwrap();
        file = file.replace(&format!("\n[{section}]\n"), &format!("\n[{section}]\n{own}\n"));
    }
    fs::write(folder.path().join("proxy.toml"), file).unwrap();
    assert!(
        steps.contains("chmod 600 .env") && steps.contains("--config proxy.toml check"),
        "{steps}"
    );
    let env = folder.path().join(".env");
    fs::write(&env, format!("GATEWAY_API_KEY={KEY}\n")).unwrap();
    fs::set_permissions(&env, fs::Permissions::from_mode(0o600)).unwrap();
    let ended = process::run(folder.path(), &["--config", "proxy.toml", "check"], &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}
