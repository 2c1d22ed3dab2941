//! No form of a key survives, and nothing else is touched.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use proptest::prelude::*;

use super::*;
use crate::metrics::Readings;

#[path = "../../../tests/corpus/targets/decode.rs"]
mod decode;

const KEY: &str = "svc_sk_CANARY-0123456789abcdef";

fn redactor() -> Redactor {
    let redactor = Redactor::new(Arc::new(Metrics::default()));
    redactor.add_keys(&[Key::new("svc_sk_other".to_owned())]);
    redactor.add_keys(&[Key::new(KEY.to_owned())]);
    redactor
}

fn redacted(text: &str) -> String {
    redactor().redact_text(text.to_owned())
}

#[test]
fn key_is_redacted_in_every_form() {
    let each = |write: fn(char) -> String| KEY.chars().map(write).collect::<String>();
    let mut written = vec![
        KEY.to_owned(),
        KEY.to_uppercase(),
        KEY.replace('_', "%5f"),
        KEY.replace('_', "\\u005F"),
        KEY.replace('_', "&#95;"),
        KEY.replace('_', "&lowbar;"),
        KEY.replace('A', "\\u0041"),
        KEY.replace('-', "&#x2D"),
        KEY.replace('8', "&#0056"),
        KEY.replace('s', "%25%37%33"),
        KEY.replace('s', "&amp;#115;"),
        KEY.replace('s', "\\\\u0073"),
        KEY.replace('s', "\\u0026#x73;"),
        KEY.replace('s', "&bsol;x73"),
        each(|c| format!("\\u{:04x}", u32::from(c))),
        each(|c| format!("\\x{:02X}", u32::from(c))),
        each(|c| format!("%{:02x}", u32::from(c))),
        each(|c| format!("&#{};", u32::from(c))),
        each(|c| format!("&#x{:X};", u32::from(c))),
        each(|c| format!("{:02x}", u32::from(c))),
        each(|c| format!("{:02X}", u32::from(c))),
        format!("{{\"authorization\":\"Bearer {KEY}\"}}"),
        // The secret without its prefix, after what looks like the beginning of an escape.
        format!("%{}", &KEY[7..]),
        "svc_sk_other".to_owned(),
    ];
    for before in ["", "x", "xy", "Bearer "] {
        let text = format!("{before}{KEY}~~~?> and more");
        written.push(STANDARD.encode(&text));
        written.push(STANDARD.encode(&text).replace('/', "\\/").replace('+', "\\u002B"));
        written.push(STANDARD.encode(&text).replace('/', "%2F").replace('+', "%2b"));
        written.push(URL_SAFE.encode(&text));
    }
    for text in written {
        let out = redacted(&text);
        assert!(out.contains("*******"), "{text} -> {out}");
        assert_eq!(out.len(), text.len());
        assert!(!out.to_lowercase().contains("canary"), "{out}");
    }
}

#[test]
fn other_text_is_left_alone() {
    for text in [
        "",
        "svc_sk_",
        "svc_sk_CANARY-0123",
        "svc_sk_CANARY-0123 svc_sk_567-89ab",
        "the key starts with svc_sk_…",
        "\\",
        "%",
        "&",
        "&#",
        "&#x",
        "\\u00",
        "\\u4e2d\\u6587 100% &c. & so on",
    ] {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let out = redactor().redact_bytes(bytes.clone());
        assert_eq!(out, bytes);
        assert_eq!(out.as_ptr(), bytes.as_ptr(), "it is not copied");
    }
}

const LINE: usize = 16;

/// The key as it is found in dumps, in lines, in other widths of characters.
fn spread() -> Vec<String> {
    let lines = |text: &str, end: &str| {
        let lines =
            text.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line).into_owned());
        lines.collect::<Vec<_>>().join(end)
    };
    let bytes = |write: fn(u8) -> String, between: &str| {
        KEY.bytes().map(write).collect::<Vec<_>>().join(between)
    };
    let encoded = STANDARD.encode(format!("Authorization: Bearer {KEY}"));
    let mut spread: Vec<_> =
        ["\n", "\r\n", "\\n", "\\r\\n", " ", "%0A", "&#10;", "\\u000a", "=\r\n", "\", \""]
            .iter()
            .flat_map(|end| [lines(KEY, end), lines(&encoded, end)])
            .collect();
    spread.extend([
        KEY.chars().flat_map(|letter| [letter, '\0']).collect(),
        KEY.chars().flat_map(|letter| ['\0', letter]).collect(),
        KEY.chars().map(|letter| format!("{letter}\\u0000")).collect(),
        bytes(|byte| format!("{byte:02x}"), " "),
        bytes(|byte| format!("{byte:02X}"), ":"),
        bytes(|byte| format!("0x{byte:02x}"), ", "),
        bytes(|byte| byte.to_string(), ","),
        bytes(|byte| byte.to_string(), ",\n  "),
        bytes(|byte| format!("\\{byte:03o}"), ""),
        bytes(|byte| format!("\"{}\"", char::from(byte)), ", "),
    ]);
    spread
}

/// The letters of a text as someone reads them who knows how it is written.
fn longest_run(text: &str) -> usize {
    let secret = KEY[7..].to_lowercase();
    let plain: String = text.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let secret: String = secret.chars().filter(char::is_ascii_alphanumeric).collect();
    let is_in = |length: &usize| {
        secret
            .as_bytes()
            .windows(*length)
            .any(|part| plain.contains(&*String::from_utf8_lossy(part)))
    };
    (1..=secret.len()).take_while(is_in).last().unwrap_or_default()
}

#[test]
fn key_is_redacted_across_lines_and_in_dumps_of_its_bytes() {
    for text in spread() {
        let out = redacted(&text);
        assert_eq!(out.len(), text.len());
        let left = out.chars().filter(char::is_ascii_alphanumeric).filter(|c| *c != '1').count();
        let all = text.chars().filter(char::is_ascii_alphanumeric).count();
        // All but the prefix, and in base64 what is around the key.
        assert!(left * 3 < all * 2, "{text} -> {out}");
        assert!(longest_run(&out) < MIN_SECRET, "{text} -> {out}");
    }
}

#[test]
fn any_twelve_characters_of_a_key_are_redacted() {
    let secret = &KEY[7..];
    for length in MIN_SECRET..=secret.len() {
        for part in secret.as_bytes().windows(length) {
            let part = String::from_utf8_lossy(part);
            let out = redacted(&format!("({part})"));
            let left = out.chars().filter(char::is_ascii_alphanumeric).count();
            // The first characters are public; so is the first one of more.
            let is_public = *part == secret[..MIN_SECRET];
            assert!(if is_public { out.contains(&*part) } else { left <= 1 }, "{part} -> {out}");
        }
    }
    let dump: String = KEY
        .as_bytes()
        .chunks(LINE)
        .enumerate()
        .map(|(line, bytes)| {
            let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let text = String::from_utf8_lossy(bytes);
            format!("{:08x}  {}  |{text}|\n", line * LINE, hex.join(" "))
        })
        .collect();
    let out = redacted(&dump);
    assert!(longest_run(&out) < MIN_SECRET, "{out}");
}

#[test]
fn bytes_as_a_list_of_numbers_stay_json() {
    let numbers: Vec<_> = KEY.bytes().collect();
    let letters: Vec<_> = KEY.chars().collect();
    for json in [
        serde_json::json!({ "raw": numbers, "more": 1 }).to_string(),
        serde_json::json!({ "raw": letters, "more": "x" }).to_string(),
        // A part of the key whose hex has no letters.
        "303132333435363738396162".to_owned(),
        "[-3132333435363738396162.6364]".to_owned(),
        serde_json::to_string_pretty(&serde_json::json!([{ "raw": numbers }, 2])).unwrap(),
        serde_json::json!(serde_json::json!({ "raw": letters }).to_string()).to_string(),
        serde_json::json!(format!("{}\n{}", &KEY[..20], &KEY[20..])).to_string(),
    ] {
        let out = redacted(&json);
        assert_ne!(out, json);
        serde_json::from_str::<serde_json::Value>(&out).unwrap_or_else(|e| panic!("{out}: {e}"));
    }
}

#[test]
fn every_key_is_found_in_one_text() {
    let text = format!("svc_sk_other,{KEY},svc_sk_other{KEY}");
    assert!(redacted(&text).chars().all(|c| c == '*' || c == ','), "{}", redacted(&text));
}

#[test]
fn whole_escapes_are_overwritten_so_that_json_stays_valid() {
    let secret = &KEY[7..];
    for inside in [
        format!("\\\\{KEY}"),
        format!("\\\\\\u0073{}", &KEY[1..]),
        format!("\\\\\\\\u0073{}", &KEY[1..]),
        format!("é\\n{}\\n", KEY.replace('s', "\\u0073")),
        // An escape that ends in the first digits of the secret's hex.
        format!("\\u00{}", KEY.bytes().map(|b| format!("{b:02x}")).collect::<String>()),
        format!("\\\"{secret}\\\""),
    ] {
        let json = format!("{{\"a\":\"{inside}\"}}");
        let read = |json: &str| serde_json::from_str::<serde_json::Value>(json);
        read(&json).expect(&json);
        let out = redacted(&json);
        read(&out).unwrap_or_else(|error| panic!("{json} -> {out}: {error}"));
        assert!(!out.contains("CANARY"), "{out}");
    }
}

#[test]
fn redaction_is_counted() {
    let metrics = Arc::new(Metrics::default());
    let redactor = Redactor::new(Arc::clone(&metrics));
    redactor.add_keys(&[Key::new(KEY.to_owned())]);
    redactor.redact_text("nothing".to_owned());
    redactor.redact_bytes(KEY.replace('_', "\\u005f").into());
    let page = metrics.encode(Readings::default());
    assert!(page.contains("tollgate_keys_redacted_total 1"), "{page}");
}

/// One way to write one character.
fn written(letter: char, how: u8) -> String {
    let code = u32::from(letter);
    match how {
        0 => format!("\\u{code:04x}"),
        1 => format!("\\u{code:04X}"),
        2 => format!("\\x{code:02x}"),
        3 => format!("%{code:02X}"),
        4 => format!("%{code:02x}"),
        5 => format!("&#{code};"),
        6 => format!("&#{code}"),
        7 => format!("&#x{code:x};"),
        8 => format!("&#X00{code:X};"),
        _ => letter.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn key_is_redacted_however_its_characters_are_escaped(
        outer in proptest::collection::vec(0_u8..20, KEY.len()),
        inner in proptest::collection::vec(0_u8..20, KEY.len() * 8),
        around in "[ -~é中]{0,12}",
    ) {
        let mut inner = inner.into_iter().cycle();
        let once: Vec<_> = KEY.chars().zip(outer).map(|(letter, how)| written(letter, how)).collect();
        let once = once.concat();
        let twice: String =
            once.chars().map(|letter| written(letter, inner.next().unwrap())).collect();
        for text in [once, twice] {
            let text = format!("{around}{text}{around}");
            let out = redacted(&text);
            prop_assert_eq!(out.len(), text.len());
            let once = decode::ALL.map(|decode| decode(out.as_bytes()));
            let twice = once.iter().flat_map(|text| decode::ALL.map(|decode| decode(text)));
            for read in once.clone().into_iter().chain(twice) {
                let is_there = read.windows(KEY.len()).any(|part| part == KEY.as_bytes());
                prop_assert!(!is_there, "{} -> {}", text, out);
            }
        }
    }

    #[test]
    fn text_without_a_key_is_never_changed(text in "[svc_k%&#;xu0-9\\\\]{0,40}") {
        prop_assert_eq!(redacted(&text), text);
    }
}
