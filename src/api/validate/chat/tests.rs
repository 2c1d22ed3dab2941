//! Every rule of a chat request, broken and kept.

use proptest::prelude::*;

use super::*;
use crate::api::validate::object::HasRules;
use crate::api::validate::rule::is_blank;
use crate::gateway::contract::money::Usd;

fn rules(fields: &[&str]) -> ChatRules {
    ChatRules {
        catalog: Arc::new(Catalog::published()),
        fields: fields.iter().map(|&field| field.to_owned()).collect(),
    }
}

fn sent(payload: &str, fields: &[&str]) -> String {
    let order = chat(payload.as_bytes(), &rules(fields)).expect(payload).into_inner();
    String::from_utf8(order.body.to_vec()).unwrap()
}

/// Pointer, code and detail of every fault.
fn faults(payload: &str) -> Vec<(String, &'static str, String)> {
    let Err(problem) = chat(payload.as_bytes(), &rules(&[])) else { return Vec::new() };
    assert_eq!(problem.kind().code, "invalid_request", "{payload}");
    let faults = problem.errors().iter();
    faults.map(|fault| (fault.pointer.clone(), fault.code, fault.detail.clone())).collect()
}

fn with_model(model: &str) -> String {
    format!(r#"{{"model":{model},"messages":[{{"role":"user","content":"hi"}}]}}"#)
}

fn with_messages(messages: &str) -> String {
    format!(r#"{{"model":"eta-5","messages":{messages}}}"#)
}

fn with_content(content: &str) -> String {
    with_messages(&format!(r#"[{{"role":"user","content":{content}}}]"#))
}

#[test]
fn each_rule_reports_what_was_expected() {
    #[rustfmt::skip]
    let cases = [
        (r#"{"messages":[{"role":"user","content":"hi"}]}"#.to_owned(), "/model", "required", "the id of a chat model"),
        (with_model("null"), "/model", "wrong_type", "expected a string, found null"),
        (with_model("7"), "/model", "wrong_type", "expected a string, found a number"),
        (with_model("[\"eta-5\"]"), "/model", "wrong_type", "expected a string, found an array"),
        (with_model("\"\""), "/model", "unknown_model", "there is no chat model ``; known: alpha-sonnet-4.5, beta-4-maverick"),
        (with_model("\"eta-5 \""), "/model", "unknown_model", "there is no chat model `eta-5 `; did you mean `eta-5`?"),
        (with_model("\"Eta-5\""), "/model", "unknown_model", "did you mean `eta-5`?"),
        (with_model("\"еta-5\""), "/model", "unknown_model", "did you mean `eta-5`?"),
        (with_model("\"eta-5\\u0000\""), "/model", "unknown_model", "there is no chat model `eta-5\\0`"),
        (with_model("\"alpha-sonnet-45\""), "/model", "unknown_model", "did you mean `alpha-sonnet-4.5`?"),
        (with_model("\"gpt-4o\""), "/model", "unknown_model", "iota-5 and eta-5"),
        (with_model("\"video-b\""), "/model", "unknown_model", "video-b is a video model: send it to /api/v1/video"),
        (r#"{"model":"eta-5"}"#.to_owned(), "/messages", "required", "the conversation"),
        (with_messages("null"), "/messages", "wrong_type", "expected an array of messages, found null"),
        (with_messages("\"hi\""), "/messages", "wrong_type", "expected an array of messages, found a string"),
        (with_messages(r#"{"role":"user","content":"hi"}"#), "/messages", "wrong_type", "expected an array of messages, found an object"),
        (with_messages("[]"), "/messages", "empty", "expected at least one message"),
        (with_messages("[null]"), "/messages/0", "wrong_type", "expected an object with role and content, found null"),
        (with_messages("[[\"user\",\"hi\"]]"), "/messages/0", "wrong_type", "expected an object with role and content, found an array"),
        (with_messages(r#"[{"role":"user","content":"a"},"b"]"#), "/messages/1", "wrong_type", "found a string"),
        (with_messages(r#"[{"content":"hi"}]"#), "/messages/0/role", "required", "user, assistant or system"),
        (with_messages(r#"[{"role":null,"content":"hi"}]"#), "/messages/0/role", "wrong_type", "expected a string, found null"),
        (with_messages(r#"[{"role":"tool","content":"hi"}]"#), "/messages/0/role", "unknown_role", "expected user, assistant or system, not `tool`"),
        (with_messages(r#"[{"role":"User","content":"hi"}]"#), "/messages/0/role", "unknown_role", "not `User`"),
        (with_messages(r#"[{"role":"","content":"hi"}]"#), "/messages/0/role", "unknown_role", "not ``"),
        (with_messages(r#"[{"role":"user"}]"#), "/messages/0/content", "required", "the text of the message"),
        (with_content("null"), "/messages/0/content", "wrong_type", "expected a string, found null"),
        (with_content(r#"[{"type":"text","text":"hi"}]"#), "/messages/0/content", "wrong_type", "expected a string, found an array"),
        (with_content("\"\""), "/messages/0/content", "empty", "it is empty"),
        (with_content("\" \\n\\t\""), "/messages/0/content", "blank", "it is only whitespace"),
        (with_content("\"\\ufeff\\u200b\\u3164\""), "/messages/0/content", "blank", "it is only whitespace"),
        (with_content("\"a\\u0000b\""), "/messages/0/content", "nul_character", "expected text without U+0000"),
        (with_messages(r#"[{"role":"user","content":"hi","name":"x"}]"#), "/messages/0/name", "unknown_field", "there is no field `name`; known: role, content"),
        (with_messages(r#"[{"role":"user","contents":"hi","content":"hi"}]"#), "/messages/0/contents", "unknown_field", "did you mean `content`?"),
        (r#"{"model":"eta-5","messages":[{"role":"user","content":"hi"}],"temperature":0.7}"#.to_owned(), "/temperature", "unknown_field", "there is no field `temperature`; known: model, messages"),
        (r#"{"model":"eta-5","messages":[{"role":"user","content":"hi"}],"a/b~c":null}"#.to_owned(), "/a~1b~0c", "unknown_field", "there is no field `a/b~c`"),
    ];
    for (payload, pointer, code, detail) in cases {
        match &faults(&payload)[..] {
            [(at, named, said)] => {
                assert_eq!((&**at, *named), (pointer, code), "{payload}");
                assert!(said.contains(detail), "{payload}: {said}");
            }
            other => panic!("{payload}: {other:?}"),
        }
    }
}

#[test]
fn every_rule_has_a_failing_case() {
    let payloads = [
        "{}".to_owned(),
        r#"{"model":1,"messages":1}"#.to_owned(),
        with_model("\"x\""),
        with_messages("[]"),
        with_messages("[{}]"),
        with_messages(r#"[{"role":1,"content":1}]"#),
        with_messages(r#"[{"role":"x","content":""}]"#),
        with_content("\" \""),
        with_content("\"\\u0000\""),
    ];
    let found: Vec<_> = payloads.iter().flat_map(|payload| faults(payload)).collect();
    let chat = [
        ("/model", "required"),
        ("/model", "wrong_type"),
        ("/model", "unknown_model"),
        ("/messages", "required"),
        ("/messages", "wrong_type"),
        ("/messages", "empty"),
    ];
    let message = DraftMessage::codes().into_iter();
    let message = message.map(|(pointer, code)| (format!("/messages/0{pointer}"), code));
    let rows = chat.map(|(pointer, code)| (pointer.to_owned(), code)).into_iter().chain(message);
    for (pointer, code) in rows {
        assert!(
            found.iter().any(|(at, named, _)| *at == pointer && *named == code),
            "{pointer} {code}"
        );
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let payload = r#"{
        "temperature": 1, "modle": "eta-5",
        "messages": [
            {"role": "user", "content": "fine"},
            {"role": "bot", "content": " ", "id": 1},
            7,
            {"content": null}
        ],
        "model": "eta-6"
    }"#;
    let found = faults(payload);
    let found: Vec<_> = found.iter().map(|(at, code, _)| (&**at, *code)).collect();
    assert_eq!(
        found,
        [
            ("/model", "unknown_model"),
            ("/messages/1/role", "unknown_role"),
            ("/messages/1/content", "blank"),
            ("/messages/1/id", "unknown_field"),
            ("/messages/2", "wrong_type"),
            ("/messages/3/role", "required"),
            ("/messages/3/content", "wrong_type"),
            ("/temperature", "unknown_field"),
            ("/modle", "unknown_field"),
        ]
    );
}

#[test]
fn fault_list_is_truncated_with_a_notice() {
    for (payload, last) in [
        (with_messages(&format!("[{}1]", "1,".repeat(63))), "/messages/63"),
        (with_messages(&format!("[{}1]", "1,".repeat(64))), ""),
        (with_messages(&format!("[{}{{}}]", "{},".repeat(50_000))), ""),
    ] {
        let found = faults(&payload);
        assert_eq!(found.last().unwrap().0, last);
        assert_eq!(found.len(), if last.is_empty() { 65 } else { 64 });
    }
    let many: Vec<_> = (0..65).map(|number| format!(r#""k{number}":1"#)).collect();
    let found = faults(&format!("{{{}}}", many.join(",")));
    assert_eq!((found.len(), found[64].1), (65, "more_faults"));
    let long = faults(&format!(r#"{{"{}":1}}"#, "\\u001b/~".repeat(100_000)));
    assert!(long.iter().all(|(at, _, detail)| at.len() < 1_000 && detail.len() < 1_000));
    assert!(long.iter().all(|(at, _, _)| !at.contains('\u{1b}')));
}

#[test]
fn request_is_reserialized_canonically() {
    #[rustfmt::skip]
    let cases = [
        (
            "\n{ \"messages\" : [ { \"content\" : \"hi\" , \"role\" : \"user\" } ] , \"model\" : \"eta-5\" }\r\n",
            r#"{"model":"eta-5","messages":[{"role":"user","content":"hi"}]}"#,
        ),
        (
            r#"{"\u006dodel":"\u0065ta-5","messages":[{"role":"u\u0073er","content":"\u00e9\ud83d\ude00\/\n\u0001\u007f"}]}"#,
            "{\"model\":\"eta-5\",\"messages\":[{\"role\":\"user\",\"content\":\"é😀/\\n\\u0001\u{7f}\"}]}",
        ),
        (
            r#"{"model":"eta-5","messages":[{"role":"system","content":"a"},{"role":"user","content":" b "},{"role":"assistant","content":"c"}]}"#,
            r#"{"model":"eta-5","messages":[{"role":"system","content":"a"},{"role":"user","content":" b "},{"role":"assistant","content":"c"}]}"#,
        ),
    ];
    for (payload, body) in cases {
        assert_eq!(sent(payload, &[]), body);
    }
}

#[test]
fn allowed_fields_keep_their_bytes_in_name_order() {
    let fields = ["top_p", "stop", "seed", "meta", "unused"];
    let message = r#"[{"role":"user","content":"hi"}]"#;
    let payload = format!(
        r#"{{"top_p": 0.70 ,"seed":123456789012345678901234567890,"model":"eta-5",
            "meta": {{"b" : [1E2, -0, 1e-400],"a":"\u0041"}} ,"messages":{message},"st\u006fp":null}}"#
    );
    let body = format!(
        r#"{{"model":"eta-5","messages":{message},"meta":{{"b" : [1E2, -0, 1e-400],"a":"\u0041"}},"seed":123456789012345678901234567890,"stop":null,"top_p":0.70}}"#
    );
    assert_eq!(sent(&payload, &fields), body);
    let mut turned = fields;
    turned.reverse();
    assert_eq!(sent(&payload, &turned), body);
    assert_eq!(sent(&body, &fields), body);
}

#[test]
fn allowed_fields_must_be_valid_json() {
    let kept = |value: &str| {
        let payload = format!(
            "{{\"model\":\"eta-5\",\n\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}],\n\"x\":{value}}}"
        );
        chat(payload.as_bytes(), &rules(&["x"])).map(|_| ()).map_err(|problem| {
            assert_eq!(problem.kind().code, "malformed_json", "{value}");
        })
    };
    for sound in ["1", "\"a\"", "[[{\"a\":1},{\"a\":1}]]", "{}", "false", "1e308"] {
        assert_eq!(kept(sound), Ok(()), "{sound}");
    }
    let (deep, deeper) = ("[".repeat(31) + &"]".repeat(31), "[".repeat(32) + &"]".repeat(32));
    assert_eq!(kept(&deep), Ok(()));
    for broken in [
        &*deeper,
        r#"{"a":1,"a":1}"#,
        r#"[{"a":1,"\u0061":1}]"#,
        "\"\\udead\"",
        "1e999",
        "01",
        "[1,]",
        "1,\"x\":1",
        "1,\"\\u0078\":1",
        "",
    ] {
        assert_eq!(kept(broken), Err(()), "{broken}");
    }
}

#[test]
fn allowing_a_known_field_has_no_effect() {
    let payload = with_content("\"hi\"");
    assert_eq!(sent(&payload, &["model", "messages", "role"]), payload);
    let broken = chat(with_model("7").as_bytes(), &rules(&["model"]));
    assert_eq!(broken.unwrap_err().errors()[0].code, "wrong_type");
}

#[test]
fn price_is_that_of_the_chosen_model() {
    for model in &Catalog::published().chat {
        let payload = with_model(&format!("\"{}\"", model.id));
        let order = chat(payload.as_bytes(), &rules(&[])).expect(&payload).into_inner();
        assert_eq!((order.service, &*order.model), (Service::Chat, &*model.id));
        assert_eq!(order.price, model.price());
        assert_eq!(order.body, payload);
    }
    let order = chat(with_model("\"eta-5\"").as_bytes(), &rules(&[])).unwrap().into_inner();
    assert_eq!(order.price, Usd::mills(6));
}

#[test]
fn model_added_in_settings_is_accepted() {
    use crate::gateway::contract::catalog::{ChatModel, Tier};
    let mut catalog = Catalog::published();
    let tier = Tier::Added(Usd::mills(9));
    catalog.chat.push(ChatModel { id: "new-model".into(), tier, best_for: "" });
    let rules = ChatRules { catalog: Arc::new(catalog), fields: Vec::new() };
    let order = chat(with_model("\"new-model\"").as_bytes(), &rules).unwrap();
    assert_eq!(order.get().price, Usd::mills(9));
}

#[test]
fn debug_output_of_an_order_hides_the_prompt() {
    let order = chat(with_content("\"my secret\"").as_bytes(), &rules(&[])).unwrap();
    let shown = format!("{order:?}");
    assert!(
        shown.contains("eta-5") && shown.contains("68 bytes") && !shown.contains("secret"),
        "{shown}"
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(payload: Vec<u8>) {
        let _ = chat(&payload, &rules(&["x"]));
    }

    #[test]
    fn texts_are_written_as_serde_json_writes_them(
        texts in prop::collection::vec("[a-z\u{0}-\u{20}\"\\\\/\u{7f}\u{2028}\u{1f600}]{0,8}x", 1..4),
        is_ascii: bool,
    ) {
        let encode = |text: &String| serde_json::to_string(text).unwrap();
        let write = |text: String| format!(r#"{{"role":"user","content":{text}}}"#);
        let canonical = texts.iter().map(encode).map(write).collect::<Vec<_>>().join(",");
        // Also as clients write them that escape all but ASCII letters.
        let escape = |text: &String| {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
            format!("\"{}\"", units.collect::<String>())
        };
        let given = if is_ascii {
            texts.iter().map(escape).map(write).collect::<Vec<_>>().join(",")
        } else {
            canonical.clone()
        };
        prop_assume!(!texts.iter().any(|text| text.contains('\0')));
        let payload = format!(r#"{{"messages":[{given}],"model":"eta-5"}}"#);
        let expected = format!(r#"{{"model":"eta-5","messages":[{canonical}]}}"#);
        prop_assert_eq!(sent(&payload, &[]), expected);
    }

    #[test]
    fn reserialized_order_validates_to_itself(
        said in prop::collection::vec((prop::sample::select(ROLES), any::<String>()), 0..5),
        seed in any::<i64>(),
    ) {
        let messages: Vec<_> = said
            .iter()
            .map(|(role, content)| serde_json::json!({"content": content, "role": role}))
            .collect();
        let payload = serde_json::json!({"messages": messages, "seed": seed, "model": "iota-5"});
        let judged = chat(payload.to_string().as_bytes(), &rules(&["seed"]));
        let sound = |text: &str| !is_blank(text) && nul(text).is_none();
        let expected = !said.is_empty() && said.iter().all(|(_, content)| sound(content));
        prop_assert_eq!(judged.is_ok(), expected);
        if let Ok(order) = judged {
            prop_assert_eq!(&chat(&order.get().body, &rules(&["seed"])).unwrap(), &order);
            let body: serde_json::Value = serde_json::from_slice(&order.get().body).unwrap();
            prop_assert_eq!(body, payload);
        }
    }

    #[test]
    fn order_with_one_changed_byte_is_rejected_or_stable(at in 0usize..85, byte: u8) {
        let sound = r#"{"model":"eta-5","messages":[{"role":"user","content":"hi \u00e9"}],"x":[1.0,{"a":2}]}"#;
        let mut payload = sound.as_bytes().to_vec();
        payload[at] = byte;
        if let Ok(order) = chat(&payload, &rules(&["x"])) {
            prop_assert_eq!(chat(&order.get().body, &rules(&["x"])).unwrap(), order);
        }
    }
}

#[test]
fn last_fault_reports_a_truncated_list() {
    let unknown = |count: usize| {
        let fields: String = (0..count).map(|number| format!(r#","f{number}":1"#)).collect();
        faults(&with_model("\"eta-5\"").replace("]}", &format!("]{fields}}}")))
    };
    let all = unknown(64);
    assert_eq!(all.len(), 64);
    assert!(all.iter().all(|(_, code, _)| *code == "unknown_field"), "{all:?}");
    for count in [65, 66, 200] {
        let first = unknown(count);
        assert_eq!(first[..64], all[..]);
        let last = (String::new(), "more_faults", "only the first 64 faults are listed".to_owned());
        assert_eq!(first[64..], [last], "{count}");
    }
}
