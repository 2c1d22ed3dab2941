//! Ambiguous bodies are rejected.

use proptest::prelude::*;

use super::*;

/// An object with a text, a number and a raw field.
#[derive(Default)]
struct Sample<'de> {
    text: Field<Cow<'de, str>>,
    number: Field<i128>,
    kept: BTreeMap<&'static str, &'de RawValue>,
    unknown: UnknownFields<'de>,
}

impl<'de> FromObject<'de> for Sample<'de> {
    fn member<A: MapAccess<'de>>(&mut self, entry: Entry<'_, 'de, A>) -> Result<(), A::Error> {
        match entry.name() {
            "text" => entry.read_into(&mut self.text),
            "number" => entry.read_into(&mut self.number),
            "kept" => entry.keep_raw("kept", &mut self.kept),
            _ => entry.reject(&mut self.unknown),
        }
    }
}

fn read(payload: &[u8]) -> Result<Sample<'_>, Problem> {
    let mut sample = Sample::default();
    read_object(payload, &mut sample)?;
    for kept in sample.kept.values() {
        check_raw(payload, kept)?;
    }
    Ok(sample)
}

/// Returns the detail of the problem for `payload`.
fn fault_detail(payload: &[u8]) -> String {
    let Err(problem) = read(payload) else {
        panic!("{:?} passed", String::from_utf8_lossy(payload));
    };
    assert_eq!(problem.kind().code, "malformed_json");
    let body = problem.into_response("x").into_body();
    let document: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    document["detail"].as_str().expect("a detail").to_owned()
}

#[test]
fn malformed_body_reports_position_and_expectation() {
    for (payload, expected) in MALFORMED {
        assert_eq!(&fault_detail(payload), expected, "{:?}", String::from_utf8_lossy(payload));
    }
    for (theirs, ours) in SYNTAX_ERRORS {
        assert!(
            MALFORMED.iter().any(|(_, detail)| detail.ends_with(ours)),
            "no body causes {theirs}"
        );
    }
}

#[rustfmt::skip]
const MALFORMED: &[(&[u8], &str)] = &[
    (b"",                              "line 1, column 1: expected a JSON object: the body is empty"),
    (b" \n\t ",                        "line 2, column 2: expected a JSON object: the body is empty"),
    (b"[]",                            "line 1, column 1: expected `{`: the body is one JSON object"),
    (b"\r\n  [{}]",                    "line 2, column 3: expected `{`: the body is one JSON object"),
    (b"null",                          "line 1, column 1: expected `{`: the body is one JSON object"),
    (b"\"{}\"",                        "line 1, column 1: expected `{`: the body is one JSON object"),
    (b"\x0c{}",                        "line 1, column 1: expected `{`: the body is one JSON object"),
    (b"// {}\n{}",                     "line 1, column 1: expected `{`: the body is one JSON object"),
    (b"\xEF\xBB\xBF{}",                "line 1, column 1: expected `{` without a byte order mark before it"),
    (b"\xEF\xBD\x9B\xEF\xBD\x9D",      "line 1, column 1: expected `{`: the body is one JSON object"),
    (b"\xFF\xFE{\0}\0",                "line 1, column 1: expected UTF-8"),
    (b"{\0}\0",                        "line 1, column 2: expected a key in double quotes"),
    (b"{\n \"text\": \"\xC3\x28\"}",   "line 2, column 11: expected UTF-8"),
    (b"{\"text\":\"\xC0\xAF\"}",       "line 1, column 10: expected UTF-8"),
    (b"{\"text\":\"\xED\xA0\x80\"}",   "line 1, column 10: expected UTF-8"),
    (b"{\"x\":\"\xF5\x80\x80\x80\"}",  "line 1, column 7: expected UTF-8"),
    (b"{} {}",                         "line 1, column 4: expected nothing after the object"),
    (b"{}\0",                          "line 1, column 3: expected nothing after the object"),
    (b"{}]",                           "line 1, column 3: expected nothing after the object"),
    (b"{",                             "line 1, column 1: the body ends within an object"),
    (b"{\"text\"",                     "line 1, column 7: the body ends within an object"),
    (b"{\"text\":",                    "line 1, column 8: the body ends where a value is expected"),
    (b"{\"text\":\"abc",               "line 1, column 12: the body ends within a string"),
    (b"{\"x\":[1",                     "line 1, column 7: the body ends within an array"),
    (b"{\"text\" \"a\"}",              "line 1, column 9: expected `:` after a key"),
    (b"{\"text\":\"a\" \"b\":1}",      "line 1, column 13: expected `,` or `}` after a value of an object"),
    (b"{\"x\":[1 2]}",                 "line 1, column 9: expected `,` or `]` after an element of an array"),
    (b"{\"x\":[1,]}",                  "line 1, column 9: expected another item after the comma, or no comma"),
    (b"{\"x\":1,}",                    "line 1, column 8: expected another item after the comma, or no comma"),
    (b"{text:1}",                      "line 1, column 2: expected a key in double quotes"),
    (b"{'text':1}",                    "line 1, column 2: expected a key in double quotes"),
    (b"{\"x\":tru}",                   "line 1, column 9: expected `true`, `false` or `null`"),
    (b"{\"x\":NaN}",                   "line 1, column 6: expected a value"),
    (b"{\"x\":/*1*/1}",                "line 1, column 6: expected a value"),
    (b"{\"x\":08}",                    "line 1, column 7: expected a valid JSON number"),
    (b"{\"x\":+8}",                    "line 1, column 6: expected a value"),
    (b"{\"x\":.8}",                    "line 1, column 6: expected a value"),
    (b"{\"x\":8.}",                    "line 1, column 8: expected a valid JSON number"),
    (b"{\"x\":1e400}",                 "line 1, column 10: expected a smaller number"),
    (b"{\"kept\":[1e400]}",            "line 1, column 14: expected a smaller number"),
    (b"{\"text\":\"a\tb\"}",           "line 1, column 11: expected an escape such as \\n instead of a raw control character"),
    (b"{\"text\":\"\\x\"}",            "line 1, column 11: expected \" \\ / b f n r t, or u and four hexadecimal digits, after a backslash"),
    (b"{\"text\":\"\\u12g4\"}",         "line 1, column 15: expected \" \\ / b f n r t, or u and four hexadecimal digits, after a backslash"),
    (b"{\"text\":\"\\ud800x\"}",       "line 1, column 16: expected a whole surrogate pair, such as \\ud83d\\ude00"),
    (b"{\"text\":\"\\ud800\"}",        "line 1, column 16: expected a whole surrogate pair, such as \\ud83d\\ude00"),
    (b"{\"text\":\"\\udc00\"}",        "line 1, column 15: expected a whole surrogate pair, such as \\ud83d\\ude00"),
    (b"{\"text\":\"\\ud800\\u0041\"}", "line 1, column 21: expected a whole surrogate pair, such as \\ud83d\\ude00"),
    (b"{\"x\":[\"\\ud800\"]}",         "line 1, column 14: expected a whole surrogate pair, such as \\ud83d\\ude00"),
    (b"{\"kept\":{\"\\ud800\":1}}",    "line 1, column 17: expected a whole surrogate pair, such as \\ud83d\\ude00"),
];

#[test]
fn duplicate_keys_are_rejected_at_every_level() {
    for (payload, place, key) in [
        (r#"{"text":"a","text":"a"}"#, "line 1, column 18", "text"),
        (r#"{"text":null,"text":"a"}"#, "line 1, column 19", "text"),
        (r#"{"text":"a","\u0074ext":"b"}"#, "line 1, column 23", "text"),
        (r#"{"x":1,"\u0078":2}"#, "line 1, column 15", "x"),
        (r#"{"x":{"y":1,"z":2,"y":3}}"#, "line 1, column 21", "y"),
        (r#"{"text":{"y":1,"y":3}}"#, "line 1, column 18", "y"),
        (r#"{"x":[{"y":[{"z":1,"\u007a":1}]}]}"#, "line 1, column 27", "z"),
        ("{\"kept\":1,\n\"kept\":2}", "line 2, column 6", "kept"),
        ("{\"text\":\"é\",\n \"kept\": {\"é\":1,\n  \"é\":2}}", "line 3, column 5", "é"),
        (r#"{"":1,"":2}"#, "line 1, column 8", ""),
        (r#"{"a\u001b[2J":1,"a\u001b[2J":2}"#, "line 1, column 28", "a\\u{1b}[2J"),
    ] {
        let expected = format!("{place}: the key `{key}` is given twice in one object");
        assert_eq!(fault_detail(payload.as_bytes()), expected, "{payload}");
    }
    assert!(read(r#"{"x":{"y":{"x":1}},"y":[{"x":1},{"x":1}]}"#.as_bytes()).is_ok());
}

#[test]
fn key_that_looks_like_a_position_does_not_shift_it() {
    let key = "y at line 7 column 9";
    let detail = fault_detail(format!(r#"{{"{key}":1,"{key}":2}}"#).as_bytes());
    assert_eq!(detail, format!("line 1, column 48: the key `{key}` is given twice in one object"));
}

#[test]
fn nesting_is_limited_to_thirty_two_levels() {
    for key in ["text", "number", "kept", "unknown"] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let nested = |inner: usize| {
                format!(r#"{{"{key}":{}1{}}}"#, open.repeat(inner), close.repeat(inner))
            };
            assert!(read(nested(31).as_bytes()).is_ok(), "{key} {open}");
            for inner in [32, 33, 126, 200, 100_000] {
                let detail = fault_detail(nested(inner).as_bytes());
                let expected = "expected at most 32 nested arrays and objects";
                assert!(detail.ends_with(expected), "{key} {open} {inner}: {detail}");
            }
        }
    }
}

#[test]
fn field_is_absent_wrong_type_or_present() {
    for (payload, expected) in [
        (r#"{}"#, None),
        (r#"{"text":null}"#, Some("expected a string, found null")),
        (r#"{"text":true}"#, Some("expected a string, found a boolean")),
        (r#"{"text":8}"#, Some("expected a string, found a number")),
        (r#"{"text":-8}"#, Some("expected a string, found a number")),
        (r#"{"text":8.5}"#, Some("expected a string, found a number")),
        (r#"{"text":["a"]}"#, Some("expected a string, found an array")),
        (r#"{"text":{"a":"b"}}"#, Some("expected a string, found an object")),
        (r#"{"text":"a"}"#, None),
    ] {
        let sample = read(payload.as_bytes()).unwrap();
        assert_eq!(sample.text.wrong_type().as_deref(), expected, "{payload}");
        assert_eq!(sample.text.is_absent(), payload == "{}");
    }
    let sample = read(br#"{"text":"\u0061\n\ud83d\ude00\u0000"}"#).unwrap();
    assert_eq!(sample.text.value().unwrap(), "a\n😀\0");
}

#[test]
fn only_plain_integers_are_whole_numbers() {
    for (written, number) in [
        ("8", Some(8)),
        ("0", Some(0)),
        ("-8", Some(-8)),
        ("4294967304", Some(4_294_967_304)),
        ("18446744073709551615", Some(u64::MAX.into())),
        ("-9223372036854775808", Some(i64::MIN.into())),
        ("18446744073709551616", None),
        ("99999999999999999999999999", None),
        ("8.0", None),
        ("8e0", None),
        ("80E-1", None),
        ("-0", None),
        ("-0.0", None),
        ("1e308", None),
        ("\"8\"", None),
        ("[8]", None),
        ("null", None),
    ] {
        let payload = format!(r#"{{"number":{written}}}"#);
        let sample = read(payload.as_bytes()).expect(&payload);
        assert_eq!(sample.number.value().copied(), number, "{written}");
        assert_eq!(sample.number.wrong_type().is_some(), number.is_none(), "{written}");
    }
}

#[test]
fn strings_without_escapes_are_borrowed() {
    let payload = br#"{"text":"plain","kept": [1.0, 123456789012345678901234567890 ] }"#;
    let sample = read(payload).unwrap();
    assert!(matches!(sample.text.value(), Some(Cow::Borrowed("plain"))));
    assert_eq!(sample.kept["kept"].get(), "[1.0, 123456789012345678901234567890 ]");
}

#[test]
fn unknown_keys_are_remembered_in_order_up_to_a_limit() {
    let many: Vec<_> = (0..5_000).map(|number| format!(r#""k{number}":{number}"#)).collect();
    let payload = format!("{{{}}}", many.join(","));
    let sample = read(payload.as_bytes()).unwrap();
    assert_eq!(sample.unknown.first.len(), MAX_UNKNOWN);
    assert_eq!(&sample.unknown.first[..2], ["k0", "k1"]);
    let twice = payload.replace(r#""k4999":"#, r#""k4000":"#);
    assert!(fault_detail(twice.as_bytes()).contains("the key `k4000` is given twice"));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(payload: Vec<u8>) {
        let _ = read(&payload);
    }

    #[test]
    fn truncated_or_corrupted_body_never_panics(
        at in 0usize..60, byte: u8, cut: bool,
    ) {
        let mut payload = r#"{"text":"é\ud83d\ude00","number":8,"kept":{"a":[1e3]},"x":[{}]}"#.as_bytes().to_vec();
        match cut {
            true => payload.truncate(at),
            false => payload[at] = byte,
        }
        let read = read(&payload);
        prop_assert!(!cut || read.is_err());
        // Whatever passes is JSON to another reader, too.
        let other: Result<serde_json::Value, _> = serde_json::from_slice(&payload);
        prop_assert!(read.is_err() || other.is_ok());
    }
}
