//! Settings are read or refused, the same way twice; and no fault repeats a key, wherever it was written.
//!
//! The input is a `proxy.toml`, then variables as `NAME=value`, with U+0000 between them. `KEY_FILE=` is
//! the text of the file that `GATEWAY_API_KEY_FILE` names.

use std::path::Path;

use tollgate::config::{Environment, Settings, SettingsSource};

#[rustfmt::skip]
pub(super) const WORDS: &[&str] = &[
    "\0", "\n", "=", "\"", "'", "\"\"\"", "[", "]", "{", "}", ",", "#", "svc_sk_CANARY", "svc_sk_", "svc\\u005fsk_CANARY",
    "\nserver.", "\n[gateway]\n", "\n[[models.chat]]\n", "base_url", "listen", "127.0.0.1:0", "0.0.0.0:80", "[::1]:1",
    "https://gateway.example.com", "http://127.0.0.1:1", "passthrough", "chat_fields", "window", "10s", "2MiB", "-1", "1e9",
    "1.00", "99999999999999999999", "inf", "1979-05-27", "true", "TOLLGATE_SERVER__LISTEN=", "TOLLGATE_BUDGET__TOTAL=",
    "GATEWAY_API_KEY=", "GATEWAY_API_KEY_FILE=", "KEY_FILE=", "TOLLGATE_", "__", "é", "\u{2028}",
];

const SECRET: &str = "CANARY";

pub(super) fn settings(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let mut environment = Environment::new();
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        environment.insert(name.to_owned(), value.to_owned().into());
    }
    let key_file = environment.remove("KEY_FILE");
    let key_file = move |_: &Path| key_file.clone().ok_or_else(|| "there is none".to_owned());
    let source = SettingsSource {
        file: Some(("proxy.toml", file)),
        folder: Path::new("/etc/tollgate"),
        environment: &environment,
        needs_gateway_key: true,
        key_file: &key_file,
        check_files: &|_| Vec::new(),
    };
    let (first, second) = (Settings::read(&source), Settings::read(&source));
    let said = match &first {
        Ok(config) => {
            format!("{config:?}{:?}{:?}", config.warnings(), config.is_local_only())
        }
        Err(faults) => {
            assert!(!faults.is_empty(), "refused without a word");
            assert!(faults.iter().all(|fault| !fault.to_string().contains('\n')), "{faults:?}");
            faults.iter().map(|fault| format!("{fault}{fault:?}\n")).collect()
        }
    };
    assert_eq!(format!("{first:?}"), format!("{second:?}"));
    // Where nothing reads escapes, they are just letters.
    let readable = said.replace("u005fsk_CANARY", "").replace("u005Fsk_CANARY", "");
    assert!(!only_as_a_key(&text) || !readable.contains(SECRET), "{said}");
    first.is_ok()
}

/// Whether the word is in it as part of a key alone, so that nothing else can repeat it.
fn only_as_a_key(text: &str) -> bool {
    let plain = text.replace("\\u005f", "_").replace("\\u005F", "_");
    plain.matches(SECRET).count() == plain.matches("svc_sk_CANARY").count()
}
