//! Faults of settings are told without what stands there.

use std::fs;

use tempfile::TempDir;

use crate::support::canary::Canary;
use crate::support::process::{Ended, run};

type Row = (&'static str, fn(&str) -> String, &'static str);

/// A file, what somebody wrote into it, and what they are told of the place.
const MISTAKES: &[Row] = &[
    (".env", |key| format!("# ours\nGATEWAY_API_KEY = '{key}\n"), ".env:2"),
    (".env", |key| format!("GATEWAY_API_KEY '{key}'\n"), ".env:1"),
    (".env", |key| format!("{key}\n"), ".env:1"),
    (".env", |key| format!("\n\nGATEWAY_API_KEY=\"{key}\\q\"\n"), ".env:3"),
    (".env", |key| format!("GATEWAY_API_KEY={key} and more\n"), ".env:1"),
    (".env", |key| format!("TOLLGATE_SERVER__LISTEN={key}\n"), "TOLLGATE_SERVER__LISTEN"),
    (".env", |key| format!("TOLLGATE_{key}=1\n"), "TOLLGATE_"),
    ("proxy.toml", |key| format!("[gateway]\napi_key = \"{key}\"\n"), "proxy.toml:2"),
    (
        "proxy.toml",
        |key| format!("[gateway]\nbase_url = \"https://{key}@a.example\"\n"),
        "proxy.toml:2",
    ),
    (
        "proxy.toml",
        |key| format!("[gateway]\nbase_url = \"https://a.example/{key}\"\n"),
        "proxy.toml:2",
    ),
    ("proxy.toml", |key| format!("[gateway]\nbase_url = \"{key}\n"), "proxy.toml:2"),
    ("proxy.toml", |key| format!("{key}\n"), "proxy.toml:1"),
    ("proxy.toml", |key| format!("[{key}]\n"), "proxy.toml:1"),
    ("proxy.toml", |key| format!("# {key}\n[server]\n"), "proxy.toml:1"),
    ("proxy.toml", |key| format!("[server]\nlisten = \"{key}\"\n"), "proxy.toml:2"),
    ("proxy.toml", |key| format!("[log]\nlevel = \"{key}\"\n"), "proxy.toml:2"),
];

fn told(ended: &Ended, key: &Canary) -> String {
    let told = format!("{}{}", ended.stdout, ended.stderr);
    key.assert_absent("what was printed", told.as_bytes());
    told
}

#[test]
fn file_error_names_its_place_without_its_text() {
    for (file, write, place) in MISTAKES {
        for command in ["check", "serve"] {
            let (folder, key) = (TempDir::new().unwrap(), Canary::new());
            let text = write(key.key());
            fs::write(folder.path().join(file), &text).unwrap();
            let ended = run(folder.path(), &[command], &[]);
            let told = told(&ended, &key);
            assert_eq!(ended.code, Some(2), "{command} with {text}: {told}");
            assert!(told.contains(place), "{text}: {told}");
        }
    }
}

#[test]
fn environment_error_omits_the_value() {
    let live = ("TOLLGATE_GATEWAY__BASE_URL", "https://gateway.example");
    type Environment<'a> = Vec<(&'a str, &'a str)>;
    let key = Canary::new();
    let (five, spaced) = ([key.key(); 6].join(","), format!("{} x", key.key()));
    let unprefixed = key.key().replace("svc_sk_", "sk-");
    let environments: Vec<Environment<'_>> = vec![
        vec![("GATEWAY_API_KEY", key.key())],
        vec![live, ("GATEWAY_API_KEY", &five)],
        vec![live, ("GATEWAY_API_KEY", &spaced)],
        vec![live, ("GATEWAY_API_KEY", &unprefixed)],
        vec![live, ("GATEWAY_API_KEY_FILE", key.key())],
        vec![live, ("GATEWAY_API_KEY", key.key()), ("TOLLGATE_LIMITS__BURST", key.key())],
        vec![live, ("GATEWAY_API_KEY", key.key()), ("GATEWAY_API_KEY_FILE", "key")],
        vec![("TOLLGATE_GATEWAY__BASE_URL", key.key()), ("GATEWAY_API_KEY", key.key())],
    ];
    for environment in environments {
        let folder = TempDir::new().unwrap();
        let ended = run(folder.path(), &["check"], &environment);
        assert_eq!(ended.code, Some(2), "{environment:?}: {}", told(&ended, &key));
        assert!(!told(&ended, &key).is_empty());
    }
}

#[test]
fn command_line_error_omits_the_argument() {
    let (folder, key) = (TempDir::new().unwrap(), Canary::new());
    let option = format!("--key={}", key.key());
    let rows: [&[&str]; 4] =
        [&[key.key()], &[&option], &["--config", key.key()], &["check", key.key()]];
    for arguments in rows {
        let ended = run(folder.path(), arguments, &[]);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", told(&ended, &key));
        assert!(!told(&ended, &key).is_empty());
    }
}

#[test]
fn check_prints_the_settings_without_the_key() {
    let (folder, key) = (TempDir::new().unwrap(), Canary::new());
    fs::write(folder.path().join(".env"), format!("GATEWAY_API_KEY={}\n", key.key())).unwrap();
    fs::write(
        folder.path().join("proxy.toml"),
        "gateway.base_url = \"https://gateway.example/in\"\n",
    )
    .unwrap();
    let ended = run(folder.path(), &["check"], &[]);
    let told = told(&ended, &key);
    assert_eq!(ended.code, Some(0), "{told}");
    assert!(told.contains("live, gateway.example, 1 key"), "{told}");
}
