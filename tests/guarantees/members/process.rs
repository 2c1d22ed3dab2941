//! The commands of an operator, beside a server that runs.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::MEMBERS;
use crate::support::members::SECRET;
use crate::support::process::{Ended, Process, Signal, run};
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO, until};

fn command(gate: &Gate, arguments: &[&str]) -> Ended {
    run(gate.folder(), arguments, &[("TOLLGATE_SECRET", SECRET)])
}

fn status(gate: &Gate, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    gate.ask("GET", "/bff/me", &[("Authorization", &bearer)], "").status
}

#[test]
fn added_and_revoked_members_take_effect_while_the_server_runs() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = format!("store.url = \"sqlite:ledger.db\"\n{MEMBERS}");
    let mut gate = Gate::binary(&upstream, &settings, &[]);
    assert!(gate.printed().contains("members: NONE YET"), "{}", gate.printed());
    assert!(gate.printed().contains("tollgate member add NAME"), "{}", gate.printed());
    assert_eq!(gate.post("/api/v1/chat", CHAT).code(), "missing_credentials");

    let added = command(&gate, &["member", "add", "ann", "--role", "admin"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let token = added.stdout.trim().to_owned();
    until("ann may call", || status(&gate, &token) == 200);
    let live = [
        ("TOLLGATE_GATEWAY__BASE_URL", "http://127.0.0.1:1"),
        ("GATEWAY_API_KEY", "svc_sk_0123456789abcdef"),
        ("TOLLGATE_SECRET", SECRET),
    ];
    let checked = run(gate.folder(), &["check"], &live);
    assert!(checked.stdout.contains("members: 1, 1 admin;"), "{checked:?}");

    // Another way in is for a restart: what is open for nobody must not open by a signal.
    let before = gate.printed().len();
    fs::write(gate.folder().join("proxy.toml"), "store.url = \"sqlite:ledger.db\"\n").unwrap();
    gate.signal(Signal::SIGHUP);
    until("it is refused", || gate.printed()[before..].contains("settings rejected"));
    assert!(gate.printed()[before..].contains("access.mode can only change"));
    assert_eq!(gate.post("/api/v1/chat", CHAT).code(), "missing_credentials");
    fs::write(gate.folder().join("proxy.toml"), &settings).unwrap();

    gate.restart();
    assert!(gate.printed().contains("members: 1, 1 admin;"), "{}", gate.printed());
    assert_eq!(status(&gate, &token), 200, "she is still known");
    let revoked = command(&gate, &["member", "revoke", "ann"]);
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    until("ann may not call any more", || status(&gate, &token) == 401);
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn unreadable_member_list_refuses_members_and_serves_the_rest() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = format!("store.url = \"sqlite:ledger.db\"\n{MEMBERS}");
    let damage = |folder: &Path| fs::write(folder.join("ledger.db"), "no ledger").unwrap();
    let gate = Gate::binary_in(&upstream, &settings, damage);
    for headers in [("Authorization", "Bearer tg_guess"), ("Cookie", "tollgate=guess")] {
        let answer = gate.ask("GET", "/bff/me", &[headers], "");
        assert_eq!((answer.status, answer.code().as_str()), (503, "ledger_unavailable"));
        assert!(answer.value("retry-after").is_some() && answer.charged().as_deref() == Some("no"));
    }
    assert_eq!(gate.post("/bff/login", "{\"token\":\"tg_guess\"}").status, 503);
    assert_eq!(gate.get("/bff/me").code(), "missing_credentials");
    assert_eq!((gate.get("/").status, gate.get("/bff/catalog").status), (200, 200));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn server_does_not_start_with_a_changed_secret() {
    const OTHER: &str = "another secret of 0123456789abcdef0123456789";
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let settings = format!(
        "store.url = \"sqlite:ledger.db\"\nserver.listen = \"127.0.0.1:0\"\n\
         admin.listen = \"127.0.0.1:0\"\n{MEMBERS}"
    );
    fs::write(folder.path().join("proxy.toml"), settings).unwrap();
    let right = [("TOLLGATE_SECRET", SECRET)];
    let added = run(folder.path(), &["member", "add", "ann"], &right);
    assert_eq!(added.code, Some(0), "{added:?}");
    let another = ([("TOLLGATE_SECRET", OTHER)], "were made with another secret");
    let none = ([("TOLLGATE_LOG__LEVEL", "info")], "were made with is missing");
    for (environment, why) in [another, none] {
        let checked = run(folder.path(), &["check"], &environment);
        assert_eq!(checked.code, Some(2), "{checked:?}");
        assert!(checked.stderr.contains(why), "{checked:?}");
        let mut server = Process::start(folder.path(), &environment);
        assert_eq!(server.wait().code(), Some(2), "{}", server.printed());
        let printed = server.printed();
        assert!(printed.contains(why) && !printed.contains(OTHER), "{printed}");
        assert!(!folder.path().join("tollgate.secret").exists(), "one that would be no help");
    }
    let mut server = Process::start(folder.path(), &right);
    server.address("page");
    server.kill();
}

#[test]
fn check_and_start_judge_a_leftover_secret_alike_in_every_mode() {
    const OTHER: &str = "another secret of 0123456789abcdef0123456789";
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let write = |more: &str| {
        let settings = format!(
            "store.url = \"sqlite:ledger.db\"\nserver.listen = \"127.0.0.1:0\"\n\
             admin.listen = \"127.0.0.1:0\"\n{more}"
        );
        fs::write(folder.path().join("proxy.toml"), settings).unwrap();
    };
    write(MEMBERS);
    let added = run(folder.path(), &["member", "add", "ann"], &[("TOLLGATE_SECRET", SECRET)]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let oidc = "access.mode = \"oidc\"\naccess.oidc = { issuer = \"http://127.0.0.1:9\", \
        client_id = \"tollgate\" }";
    for (more, is_refused) in [("mcp.enabled = true", true), (oidc, true), ("", false)] {
        write(more);
        let environment = [("TOLLGATE_SECRET", OTHER)];
        let checked = run(folder.path(), &["check"], &environment);
        let mut server = Process::start(folder.path(), &environment);
        let expected = if is_refused { 2 } else { 0 };
        assert_eq!(checked.code, Some(expected), "{more}: {checked:?}");
        if !is_refused {
            server.address("page");
            server.signal(Signal::SIGTERM);
        }
        assert_eq!(server.wait().code(), Some(expected), "{more}: {}", server.printed());
    }
}

#[test]
fn members_job_stays_private_after_switching_to_open_mode() {
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Reply::video("job-of-ann"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    });
    let store = "store.url = \"sqlite:ledger.db\"\n";
    let mut gate = Gate::binary(&upstream, &format!("{store}{MEMBERS}"), &[]);
    let added = command(&gate, &["member", "add", "ann"]);
    let bearer = format!("Bearer {}", added.stdout.trim());
    until("ann may call", || status(&gate, added.stdout.trim()) == 200);
    let ordered = gate.ask("POST", "/api/v1/video", &[("Authorization", &bearer)], VIDEO);
    assert_eq!(ordered.status, 200, "{}", ordered.text());
    fs::write(gate.folder().join("proxy.toml"), store).unwrap();
    gate.restart();
    for path in ["/api/v1/video/status", "/bff/events", "/bff/video/content"] {
        let answer = gate.get(&format!("{path}?request_id=job-of-ann"));
        assert_eq!((answer.status, answer.code().as_str()), (404, "job_not_found"), "{path}");
    }
    assert_eq!(gate.get("/bff/jobs?request_id=job-of-ann").text(), r#"{"rows":[]}"#);
    assert_eq!(gate.video().status, 200, "it is open");
}
