//! `proxy.toml` and `.env.example` as shipped.

use std::fs;
use std::path::Path;

use tollgate::config::{Environment, SettingError, Settings, SettingsSource, Target};

/// Commented settings that show an example, as their default is absence, or the default without the built-in
/// sandbox.
const EXAMPLES: &[&str] = &[
    "server.public_url",
    "server.prefix",
    "server.tls",
    "gateway.base_url",
    "access.jwt",
    "access.oidc",
    "budget.total",
    "budget.caller",
    "models.chat",
    "page.presets",
    "store.url",
    "jobs.keep_prompts",
    "page.pictures",
    "webhooks.url",
    "webhooks.events",
];

/// A commented setting: its name as `section.name`, and its line in the file.
fn commented(text: &str) -> Vec<(String, &str)> {
    let mut section = "";
    let mut settings = Vec::new();
    for line in text.lines() {
        let list = line.strip_prefix("#[[").and_then(|rest| rest.strip_suffix("]]"));
        let table = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(name) = list.or(table) {
            section = name;
        }
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
        if let Some((name, _)) = setting.and_then(|rest| rest.split_once(" = ")) {
            settings.push((format!("{section}.{name}"), line));
        }
    }
    settings
}

/// The file with some of its settings uncommented.
fn uncommented(text: &str, which: impl Fn(&str) -> bool) -> String {
    let mut file = text.to_owned();
    for (name, line) in commented(text) {
        if which(&name) {
            let section = name.split('.').next().unwrap_or_default();
            // A list's first setting uncomments the head of its table.
            file = file.replace(&format!("\n#[[{section}]]\n"), &format!("\n[[{section}]]\n"));
            let at = file.find(&format!("[{section}]")).expect("its section");
            let from = at + file[at..].find(&format!("\n{line}\n")).expect("its line");
            file.replace_range(from..from + 2, "\n");
        }
    }
    file
}

fn shipped() -> String {
    fs::read_to_string("proxy.toml").expect("tests run in the package root")
}

fn read(file: &str, environment: &[(&str, &str)]) -> Result<Settings, Vec<SettingError>> {
    let rows = environment.iter();
    let environment: Environment =
        rows.map(|(name, value)| ((*name).to_owned(), (*value).to_owned().into())).collect();
    Settings::read(&SettingsSource {
        file: Some(("proxy.toml", file)),
        folder: Path::new(""),
        environment: &environment,
        needs_gateway_key: true,
        key_file: &|_| Err("none is read".to_owned()),
        check_files: &|_| Vec::new(),
    })
}

#[test]
fn shipped_settings_file_sets_nothing() {
    let config = read(&shipped(), &[]).expect("it is right");
    assert_eq!(format!("{config:?}"), format!("{:?}", Settings::default()));
}

#[test]
fn shipped_settings_file_shows_the_defaults() {
    let file = uncommented(&shipped(), |name| !EXAMPLES.contains(&name));
    let config = read(&file, &[]).expect("the defaults are right");
    assert_eq!(format!("{config:?}"), format!("{:?}", Settings::default()));
}

#[test]
fn shipped_settings_file_lists_every_setting_once_in_order() {
    let text = shipped();
    let shown: Vec<_> = commented(&text).into_iter().map(|(name, _)| name).collect();
    let mut known = Settings::names();
    let mut sorted = shown.clone();
    sorted.sort();
    known.sort();
    assert_eq!(sorted, known);
    let sections = shown.iter().filter_map(|name| name.split('.').next());
    let mut seen = Vec::new();
    for section in sections {
        if seen.last() != Some(&section) {
            assert!(!seen.contains(&section), "[{section}] stands in one place");
            seen.push(section);
        }
    }
}

/// Each needs a mode of its own.
const LOGINS: [&str; 2] = ["access.jwt", "access.oidc"];

#[test]
fn shipped_settings_file_loads_with_every_setting_uncommented() {
    let secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let live = [("GATEWAY_API_KEY", "svc_sk_example"), ("TOLLGATE_WEBHOOK_SECRET", secret)];
    let file = uncommented(&shipped(), |name| !LOGINS.contains(&name));
    let config = read(&file, &live).expect("every example is right");
    assert!(matches!(config.gateway.target, Target::Live { .. }));
    assert_eq!(config.store.path(), Some(Path::new("tollgate.db")));
    assert!(config.budget.caller.day.is_some());
    assert_eq!(config.webhooks.targets.len(), 1);
    assert!(config.catalog.chat_model("new-model").is_some());
    for login in LOGINS {
        let file = uncommented(&shipped(), |name| name == login);
        let mode = login.trim_start_matches("access.");
        assert!(read(&file, &[("TOLLGATE_ACCESS__MODE", mode)]).is_ok(), "{login}");
    }
}

#[test]
fn live_gateway_defaults_to_the_documented_store() {
    let live = [
        ("GATEWAY_API_KEY", "svc_sk_example"),
        ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example.com"),
    ];
    let shown = uncommented(&shipped(), |name| name == "store.url");
    let [shown, default] = [shown.as_str(), ""].map(|file| read(file, &live).expect("right").store);
    assert_eq!(shown, default);
}

#[test]
fn every_setting_has_a_comment() {
    let text = shipped();
    let lines: Vec<_> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let setting = line.starts_with('#') && !line.starts_with("# ") && line.len() > 1;
        assert!(!setting || lines[index - 1].starts_with("# "), "{line}");
        assert!(line.chars().count() <= 110, "{line}");
    }
}

#[test]
fn example_env_runs_the_sandbox_until_filled_in() {
    let read_example = |uncomment: &[&str], key: &str| {
        let text = fs::read_to_string(".env.example").expect("tests run in the package root");
        let mut text = text.replace("\nGATEWAY_API_KEY=\n", &format!("\nGATEWAY_API_KEY={key}\n"));
        for name in uncomment {
            assert!(text.contains(&format!("\n#{name}=")), "{name} is shown");
            text = text.replace(&format!("\n#{name}="), &format!("\n{name}="));
        }
        let entries = dotenvy::from_read_iter(text.as_bytes());
        let entries: Vec<_> = entries.map(|entry| entry.expect("NAME=value")).collect();
        let rows: Vec<_> =
            entries.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        read("", &rows).expect("it is right").gateway.target
    };
    assert!(matches!(read_example(&[], ""), Target::Sandbox));
    assert!(matches!(read_example(&["TOLLGATE_SECRET"], ""), Target::Sandbox));
    let live = read_example(&["TOLLGATE_GATEWAY__BASE_URL"], "svc_sk_example");
    assert!(matches!(live, Target::Live { .. }));
}
