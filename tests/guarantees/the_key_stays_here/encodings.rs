//! A gateway that escapes some characters of the key, as encoders do: whoever decodes what passes finds
//! no key in it.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::bearer;
use crate::support::client::Answer;
use crate::support::{CHAT, Gate, Reply, Upstream, decode, lock};

/// A name, and how it writes a text.
type Encoder = (&'static str, fn(&str) -> String);

/// Where a text of the gateway reaches a client.
const SURFACES: [&str; 4] = ["chat", "completion", "stream", "refusal"];

/// The key in a JSON string as real encoders write it. A key that only these letters are in is escaped
/// by none of them; `everything` and what follows are what a careful one could do.
const ENCODERS: &[Encoder] = &[
    ("System.Text.Json", |text| text.replace('+', "\\u002B").replace('&', "\\u0026")),
    ("Go and Rails", |text| text.replace('&', "\\u0026").replace('<', "\\u003c")),
    ("PHP", |text| text.replace('/', "\\/")),
    ("encodeURIComponent", |text| text.replace(' ', "%20")),
    ("HTML", |text| text.replace('_', "&#95;").replace('-', "&#x2d;")),
    ("HTML in JSON in JSON", |text| text.replace('_', "\\\\u0026#95;")),
    ("everything in JSON", |text| each(text, |c| format!("\\u{c:04x}"))),
    ("everything as bytes", |text| each(text, |c| format!("\\\\x{c:02x}"))),
    ("everything in URLs", |text| each(text, |c| format!("%{c:02X}"))),
    ("everything in HTML", |text| each(text, |c| format!("&#{c};"))),
    ("one letter in JSON", |text| text.replacen('C', "\\u0043", 1)),
    ("hex", |text| each(text, |c| format!("{c:02x}"))),
];

fn each(text: &str, write: fn(u32) -> String) -> String {
    text.chars().map(|letter| write(u32::from(letter))).collect()
}

/// A gateway that says `words` wherever it has words, with what it was authorized by for `KEY`.
fn upstream(words: &Arc<Mutex<String>>) -> Upstream {
    let words = Arc::clone(words);
    Upstream::start(move |received| {
        let said = lock(&words).replace("KEY", bearer(received).trim_start_matches("Bearer "));
        match String::from_utf8_lossy(&received.body).contains("refuse me") {
            true => Reply::new(400, format!(r#"{{"error":{{"message":"{said}"}}}}"#)),
            false => Reply::new(200, format!(r#"{{"message":{{"content":"{said}"}}}}"#)),
        }
    })
}

/// What a client is told there.
fn told(gate: &Gate, surface: &str) -> Answer {
    let key = uuid::Uuid::now_v7().to_string();
    let ask =
        |target: &str, body: &str| gate.ask("POST", target, &[("idempotency-key", &key)], body);
    match surface {
        "chat" => ask("/api/v1/chat", CHAT),
        "completion" => ask("/v1/chat/completions", CHAT),
        "stream" => ask("/v1/chat/completions", &CHAT.replacen('{', r#"{"stream":true,"#, 1)),
        _ => ask("/v1/chat/completions", &CHAT.replace("hello", "refuse me")),
    }
}

#[test]
fn key_is_redacted_whichever_encoder_wrote_it() {
    let words = Arc::new(Mutex::new(String::new()));
    let upstream = upstream(&words);
    let gate = Gate::start(&upstream, "store.url = \"sqlite:ledger.db\"");
    let key = upstream.canaries()[0].key().to_owned();
    for (encoder, encode) in ENCODERS {
        for surface in SURFACES {
            *lock(&words) = format!("bad credentials: {}", encode(&format!("Bearer {key}")));
            let text = told(&gate, surface).text();
            assert!(text.contains("********"), "{encoder} at {surface}: {text}");
            upstream.canaries()[0]
                .assert_absent(&format!("{surface} by {encoder}"), text.as_bytes());
        }
    }
    let counted = gate
        .metrics()
        .lines()
        .find_map(|line| line.strip_prefix("tollgate_keys_redacted_total ")?.parse::<usize>().ok());
    assert!(counted >= Some(ENCODERS.len() * SURFACES.len()), "{counted:?}");
}

/// One way to write one letter of the key in a JSON string.
fn written(letter: char, how: u8) -> String {
    let code = u32::from(letter);
    match how {
        0 => format!("\\u{code:04x}"),
        1 => format!("\\u{code:04X}"),
        2 => format!("\\\\u{code:04x}"),
        3 => format!("\\\\x{code:02x}"),
        4 => format!("%{code:02X}"),
        5 => format!("\\u0025{code:02x}"),
        6 => format!("&#{code};"),
        7 => format!("&#x{code:X};"),
        8 => format!("&amp;#{code};"),
        9 => format!("\\u0026#{code};"),
        _ => letter.to_string(),
    }
}

#[test]
fn no_reply_or_file_holds_the_key_however_its_letters_are_escaped() {
    let words = Arc::new(Mutex::new(String::new()));
    let upstream = upstream(&words);
    let gate = Gate::start(&upstream, "store.url = \"sqlite:ledger.db\"");
    let key = upstream.canaries()[0].key().to_owned();
    let hows = (proptest::collection::vec(0_u8..20, key.len()), 0..SURFACES.len());
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&hows, |(hows, surface)| {
        let escaped: String =
            key.chars().zip(hows).map(|(letter, how)| written(letter, how)).collect();
        *lock(&words) = format!("the key {escaped} is bad");
        let answer = told(&gate, SURFACES[surface]);
        let text = answer.text();
        prop_assert!(text.contains("********"), "{}", text);
        // Any client reads the JSON; some go on with what they read.
        let once = decode::ALL.map(|decode| decode(text.as_bytes()));
        let twice = once.iter().flat_map(|text| decode::ALL.map(|decode| decode(text)));
        for read in once.iter().cloned().chain(twice) {
            let read = String::from_utf8_lossy(&read).into_owned();
            prop_assert!(!read.contains(&key), "{}", read);
        }
        Ok(())
    });
    outcome.unwrap();
    // When the gate ends, its files are looked through, too.
}
