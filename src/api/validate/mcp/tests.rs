//! Messages and arguments, right and wrong.

use proptest::prelude::*;

use super::*;
use crate::gateway::contract::catalog::Catalog;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn outcome(text: &str) -> &'static str {
    match message(text.as_bytes()) {
        Ok(_) => "ok",
        Err(MessageError::NoJson(_)) => "no json",
        Err(MessageError::NoRequest(_)) => "no request",
        Err(MessageError::WrongParams(..)) => "wrong params",
    }
}

#[test]
fn message_is_one_request_of_json_rpc() {
    for (text, expected) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"a"}"#, "ok"),
        (r#"{"jsonrpc":"2.0","id":"x","method":"a","params":{},"more":[{"a":1}]}"#, "ok"),
        (r#"{"jsonrpc":"2.0","method":"notifications/a"}"#, "ok"),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"a"}"#, "no request"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"a"}"#, "no request"),
        (r#"{"jsonrpc":"2.0","id":{},"method":"a"}"#, "no request"),
        (r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#, "no request"),
        (r#"{"id":1,"method":"a"}"#, "no request"),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "no request"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[]}"#, "wrong params"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":7}}"#, "wrong params"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":7}}"#, "wrong params"),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":[]}}}"#,
            "wrong params",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"inputResponses":{"confirm":7}}}"#,
            "wrong params",
        ),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#, "no json"),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"a":1,"a":2}}}"#,
            "no json",
        ),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"a"}]"#, "no json"),
        ("", "no json"),
    ] {
        assert_eq!(outcome(text), expected, "{text}");
    }
}

#[test]
fn client_can_ask_by_form_unless_it_names_only_addresses() {
    for (capabilities, can_ask) in [
        ("{}", false),
        (r#"{"elicitation":{}}"#, true),
        (r#"{"elicitation":{"form":{}}}"#, true),
        (r#"{"elicitation":{"form":{},"url":{}}}"#, true),
        (r#"{"elicitation":{"url":{}}}"#, false),
        (r#"{"sampling":{}}"#, false),
    ] {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"_meta":{{"io.modelcontextprotocol/clientCapabilities":{capabilities}}}}}}}"#
        );
        let read = message(text.as_bytes()).expect(&text);
        assert_eq!(read.params.can_ask, Some(can_ask), "{capabilities}");
    }
}

#[test]
fn quote_is_taken_out_of_an_order_that_stays_as_it_was_written() {
    let arguments = raw(r#"{"b" : [1E2, "\u00e9"],"quote":"q_1","a":{"x" :1}}"#);
    let read = order(Some(&arguments)).unwrap();
    assert_eq!(read.order, r#"{"b":[1E2, "\u00e9"],"a":{"x" :1}}"#);
    assert_eq!(read.quote.as_deref(), Some("q_1"));
    for none in [r#"{"quote":null}"#, r#"{"quote":""}"#, "{}", "null"] {
        let read = order(Some(&raw(none))).unwrap();
        assert_eq!((&*read.order, read.quote), (&b"{}"[..], None), "{none}");
    }
    assert!(order(Some(&raw(r#"{"quote":7}"#))).is_err());
    // The reader of the order finds the duplicate.
    let twice = order(Some(&raw(r#"{"prompt":"a","prompt":"b"}"#))).unwrap();
    let checked = crate::api::validate::video(&twice.order, &Catalog::published());
    assert_eq!(checked.unwrap_err().kind().code, "malformed_json");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(payload: Vec<u8>, text in "[\\[\\]{}\",:a-c0-9 ]{0,40}") {
        let _ = message(&payload);
        if let Ok(arguments) = RawValue::from_string(text) {
            let _ = order(Some(&arguments));
            if let Ok(mut read) = Arguments::read(Some(&arguments), &["a", "b", "c"]) {
                let _ = (read.object("a"), read.flag("b"), read.text("c", "a text"));
                let _ = read.finish();
            }
        }
    }
}
