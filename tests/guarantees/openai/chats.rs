//! `POST /v1/chat/completions` and `GET /v1/models`: what becomes of every field, and of the reply.

use serde_json::{Value, json};

use super::CHATS;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream};

/// A chat in the dialect with these members besides model and messages.
fn chat_with(more: &str) -> String {
    CHAT.replacen('{', &format!("{{{more}{}", if more.is_empty() { "" } else { "," }), 1)
}

fn said(messages: &Value) -> String {
    json!({ "model": "eta-5-mini", "messages": messages }).to_string()
}

#[test]
fn chat_reply_has_openai_shape() {
    let upstream = Upstream::start(|_| Reply::chat("hi there"));
    let gate = Gate::start(&upstream, "");
    let answer = gate.ask("POST", CHATS, &[("authorization", "Bearer sk-any")], CHAT);
    assert_eq!((answer.status, answer.cost()), (200, Some(6_000)));
    let body = answer.json();
    let id = answer.value("x-request-id").unwrap();
    assert_eq!(body["id"], format!("chatcmpl-{id}"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "alpha-sonnet-4.5");
    assert!(body["created"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(
        body["choices"],
        json!([{ "index": 0, "message": { "role": "assistant", "content": "hi there", "refusal": null },
                 "logprobs": null, "finish_reason": "stop" }])
    );
    assert_eq!(body.get("usage"), None, "what nobody counted is not told");
    assert_eq!(answer.value("tollgate-ignored"), None);
    let received = &upstream.received_requests()[0];
    assert_eq!(
        (received.target.as_str(), String::from_utf8_lossy(&received.body)),
        ("/api/v1/chat", CHAT.into())
    );
    assert_eq!(upstream.charges(), [6_000]);
}

#[test]
fn usage_is_passed_on_if_reported() {
    let upstream = Upstream::start(|_| {
        Reply::new(
            200,
            r#"{"message":{"content":"x"},"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#,
        )
    });
    let gate = Gate::start(&upstream, "");
    let usage = json!({ "prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4 });
    assert_eq!(gate.post(CHATS, CHAT).json()["usage"], usage);
    let wanted = chat_with(r#""stream":true,"stream_options":{"include_usage":true}"#);
    let events = gate.post(CHATS, &wanted).events();
    let last = events.last().unwrap();
    assert_eq!((&last["usage"], &last["choices"]), (&usage, &json!([])));
    let unwanted = gate.post(CHATS, &chat_with(r#""stream":true"#)).events();
    assert!(unwanted.iter().all(|event| event.get("usage").is_none()), "{unwanted:?}");
}

/// What becomes of a field.
enum Fate {
    /// It asks for what is done anyway.
    Met,
    /// It is passed over and named.
    Named(&'static str),
    /// It is refused here.
    Refused(&'static str),
}

#[test]
fn every_openai_chat_field_is_mapped_ignored_or_refused() {
    use Fate::{Met, Named, Refused};
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    let mut bought = 0;
    for (field, fate) in [
        (r#""temperature":0.7"#, Named("temperature")),
        (r#""top_p":1"#, Named("top_p")),
        (
            r#""max_tokens":10,"max_completion_tokens":10"#,
            Named("max_tokens, max_completion_tokens"),
        ),
        (r#""seed":7"#, Named("seed")),
        (r#""stop":["x"]"#, Named("stop")),
        (r#""user":"u""#, Named("user")),
        (r#""metadata":{"a":"b"}"#, Named("metadata")),
        (r#""store":true"#, Named("store")),
        (
            r#""presence_penalty":0,"frequency_penalty":0"#,
            Named("presence_penalty, frequency_penalty"),
        ),
        (r#""logit_bias":{"1":2}"#, Named("logit_bias")),
        (r#""reasoning_effort":"low","verbosity":"low""#, Named("reasoning_effort, verbosity")),
        (r#""service_tier":"auto""#, Named("service_tier")),
        (r#""parallel_tool_calls":true"#, Named("parallel_tool_calls")),
        (r#""prediction":{"type":"content","content":"x"}"#, Named("prediction")),
        (r#""audio":{"voice":"x"}"#, Named("audio")),
        (r#""tempratur":1"#, Named("tempratur")),
        (r#""bad\r\nname: x":1"#, Named("bad??name??x")),
        (
            r#""stream_options":{"include_obfuscation":false}"#,
            Named("stream_options.include_obfuscation"),
        ),
        (r#""temperature":null,"tools":null,"n":null,"stream":null,"stop":null"#, Met),
        (r#""stream":false,"stream_options":{"include_usage":true}"#, Met),
        (r#""n":1"#, Met),
        (r#""n":1.0,"top_logprobs":0.0"#, Met),
        (r#""tools":[],"tool_choice":"auto""#, Met),
        (r#""tool_choice":"none","functions":[],"function_call":"none""#, Met),
        (r#""response_format":{"type":"text"}"#, Met),
        (r#""logprobs":false,"top_logprobs":0"#, Met),
        (r#""modalities":["text"]"#, Met),
        (r#""tools":[{"type":"function","function":{"name":"f"}}]"#, Refused("tools")),
        (r#""tool_choice":"required""#, Refused("tool_choice")),
        (r#""tool_choice":{"type":"function","function":{"name":"f"}}"#, Refused("tool_choice")),
        (r#""functions":[{"name":"f"}]"#, Refused("functions")),
        (r#""function_call":{"name":"f"}"#, Refused("function_call")),
        (r#""n":2"#, Refused("n")),
        (r#""n":1.5"#, Refused("n")),
        (r#""n":"1""#, Refused("n")),
        (r#""response_format":{"type":"json_object"}"#, Refused("response_format")),
        (
            r#""response_format":{"type":"json_schema","json_schema":{}}"#,
            Refused("response_format"),
        ),
        (r#""logprobs":true"#, Refused("logprobs")),
        (r#""top_logprobs":3"#, Refused("top_logprobs")),
        (r#""modalities":["text","audio"]"#, Refused("modalities")),
        (r#""web_search_options":{}"#, Refused("web_search_options")),
        (r#""stream":"yes""#, Refused("stream")),
        (r#""stream_options":true"#, Refused("stream_options")),
    ] {
        let answer = gate.post(CHATS, &chat_with(field));
        match fate {
            Met | Named(_) => {
                bought += 1;
                assert_eq!(answer.status, 200, "{field}: {}", answer.text());
                let named = if let Named(name) = fate { Some(name) } else { None };
                assert_eq!(answer.value("tollgate-ignored"), named, "{field}");
                let received = upstream.received_requests().pop().unwrap();
                assert_eq!(String::from_utf8_lossy(&received.body), CHAT, "{field}");
            }
            Refused(param) => {
                assert_eq!(answer.status, 422, "{field}: {}", answer.text());
                let error = &answer.json()["error"];
                assert_eq!(
                    (&error["param"], &error["charged"]),
                    (&json!(param), &json!("no")),
                    "{field}"
                );
                assert_eq!(answer.value("x-should-retry"), Some("false"));
            }
        }
        assert_eq!(upstream.requests(), bought, "{field}");
    }
    assert_eq!(upstream.charges().len(), bought);
}

#[test]
fn openai_messages_are_translated_for_the_gateway() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    for (sent, received, named) in [
        (
            json!([{ "role": "developer", "content": "be brief" }, { "role": "user", "content": "a" }]),
            json!([{ "role": "system", "content": "be brief" }, { "role": "user", "content": "a" }]),
            None,
        ),
        (
            json!([{ "role": "user", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] }]),
            json!([{ "role": "user", "content": "one\ntwo" }]),
            None,
        ),
        (
            json!([{ "role": "user", "name": "ann", "content": [{ "type": "text", "text": "x", "cache_control": {} }] }]),
            json!([{ "role": "user", "content": "x" }]),
            Some("messages.content.cache_control, messages.name"),
        ),
        // Interfaces send a system prompt that the user has left empty.
        (
            json!([{ "role": "system", "content": "" }, { "role": "user", "content": "a" },
                   { "role": "developer", "content": [{ "type": "text", "text": " \n" }] }, { "role": "system", "content": [] }]),
            json!([{ "role": "user", "content": "a" }]),
            Some("messages.system"),
        ),
        // An answer of ours, sent back as SDKs keep it.
        (
            json!([{ "role": "assistant", "content": "hi", "refusal": null, "audio": null, "tool_calls": null, "function_call": null },
                   { "role": "user", "content": "more" }]),
            json!([{ "role": "assistant", "content": "hi" }, { "role": "user", "content": "more" }]),
            None,
        ),
    ] {
        let answer = gate.post(CHATS, &said(&sent));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(upstream.received_requests().pop().unwrap().json()["messages"], received);
        let mut names: Vec<_> =
            answer.value("tollgate-ignored").unwrap_or_default().split(", ").collect();
        names.sort_unstable();
        assert_eq!(names.join(", "), named.unwrap_or_default());
    }
}

#[test]
fn message_faults_point_into_the_original_payload() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "");
    let text = json!({ "type": "text", "text": "what is this?" });
    for (messages, params) in [
        (
            json!([{ "role": "user", "content": [text, { "type": "image_url", "image_url": { "url": "https://x/y.png" } }] }]),
            &["messages[0].content[1].type"][..],
        ),
        (
            json!([{ "role": "user", "content": [{ "type": "input_audio", "input_audio": {} }, { "type": "file", "file": {} }] }]),
            &["messages[0].content[0].type", "messages[0].content[1].type"],
        ),
        (
            json!([{ "role": "user", "content": "a" }, { "role": "tool", "tool_call_id": "1", "content": "7" }]),
            &["messages[1].role"],
        ),
        (json!([{ "role": "function", "name": "f", "content": "7" }]), &["messages[0].role"]),
        (
            json!([{ "role": "assistant", "content": "x", "tool_calls": [{ "id": "1" }] }]),
            &["messages[0].tool_calls"],
        ),
        (json!([{ "role": "user", "content": " " }]), &["messages[0].content"]),
        (json!([{ "role": "user", "content": [] }]), &["messages[0].content"]),
        (
            json!([{ "role": "user", "content": [{ "type": "text", "text": "\u{200b}" }] }]),
            &["messages[0].content"],
        ),
        (
            json!([{ "role": "user", "content": [{ "type": "text" }, "x", { "text": "x" }] }]),
            &[
                "messages[0].content[0].text",
                "messages[0].content[1]",
                "messages[0].content[2].type",
            ],
        ),
        (
            json!([{ "role": "user", "content": 7 }, 8, { "role": "user", "content": "fine" }]),
            &["messages[0].content", "messages[1]"],
        ),
        (json!([]), &["messages"]),
        (json!([{ "role": "system", "content": "" }]), &["messages"]),
        (
            json!([{ "role": "system", "content": "" }, { "role": "user", "content": "" }]),
            &["messages[1].content"],
        ),
    ] {
        let answer = gate.post(CHATS, &said(&messages));
        assert_eq!(answer.status, 422, "{messages}");
        let error = &answer.json()["error"];
        assert_eq!(error["param"], params[0], "{messages}: {error}");
        let pointers: Vec<_> = error["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|fault| fault["pointer"].as_str().unwrap().to_owned())
            .collect();
        let expected: Vec<_> = params
            .iter()
            .map(|param| format!("/{}", param.replace(['.', '['], "/").replace(']', "")))
            .collect();
        assert_eq!(pointers, expected, "{error}");
    }
    let unknown =
        gate.post(CHATS, r#"{"model":"gpt-4o","messages":[{"role":"user","content":"x"}],"n":2}"#);
    assert_eq!(unknown.json()["error"]["errors"].as_array().unwrap().len(), 2, "all at once");
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn allowed_chat_fields_pass_unchanged() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::start(&upstream, "gateway.chat_fields = [\"temperature\", \"tools\"]");
    let answer = gate.post(CHATS, &chat_with(r#""temperature":0.70,"tools":[{"x":1}],"top_p":1"#));
    assert_eq!((answer.status, answer.value("tollgate-ignored")), (200, Some("top_p")));
    let received = String::from_utf8(upstream.received_requests()[0].body.clone()).unwrap();
    assert!(received.ends_with(r#","temperature":0.70,"tools":[{"x":1}]}"#), "{received}");
}

#[test]
fn key_is_shared_by_both_dialects_with_their_own_reply_shape() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("once"));
        let gate = Gate::start(&upstream, store);
        let key = [("idempotency-key", "k-1")];
        let first = gate.ask("POST", CHATS, &key, &chat_with(r#""temperature":1"#));
        let again = gate.ask("POST", CHATS, &key, CHAT);
        let native = gate.ask("POST", "/api/v1/chat", &key, CHAT);
        assert!(!first.is_replay() && again.is_replay() && native.is_replay());
        let text = "/choices/0/message/content";
        assert_eq!(first.json().pointer(text), again.json().pointer(text));
        assert_eq!(native.body, Reply::chat("once").body());
        let other = gate.ask("POST", CHATS, &key, &CHAT.replace("hello", "other"));
        assert_eq!((other.status, other.code().as_str()), (422, "idempotency_key_reused"));
        assert_eq!(upstream.charges(), [6_000], "{store}");
    }
}

#[test]
fn reply_without_text_is_charged_and_not_retried() {
    let upstream = Upstream::start(|_| Reply::new(200, r#"{"message":{"parts":[]}}"#));
    let gate = Gate::start(&upstream, "");
    let key = [("idempotency-key", "k-1")];
    let answer = gate.ask("POST", CHATS, &key, CHAT);
    assert_eq!((answer.status, answer.charged().as_deref()), (424, Some("yes")));
    assert_eq!(answer.value("x-should-retry"), Some("false"));
    let native = gate.ask("POST", "/api/v1/chat", &key, CHAT);
    assert_eq!((native.status, native.charged().as_deref()), (424, Some("yes")));
    assert_eq!(upstream.charges(), [6_000]);
}

#[test]
fn openai_models_match_the_catalog() {
    let upstream = Upstream::start(|_| Reply::error(500));
    let gate =
        Gate::start(&upstream, "models.chat = [{ id = \"org/new-model\", price = \"0.01\" }]");
    let list = gate.get("/v1/models").json();
    let catalog = gate.get("/bff/catalog").json();
    let ids = |rows: &Value| -> Vec<Value> {
        rows.as_array().unwrap().iter().map(|row| row["id"].clone()).collect()
    };
    assert_eq!(list["object"], "list");
    assert_eq!(ids(&list["data"]), [ids(&catalog["chat"]), ids(&catalog["video"])].concat());
    assert!(list["data"].as_array().unwrap().iter().all(|row| row["object"] == "model"));
    let one = gate.get("/v1/models/org%2Fnew-model").json();
    assert_eq!((&one["id"], &one["price"]), (&json!("org/new-model"), &json!("0.010000")));
    let none = gate.get("/v1/models/gpt-4o");
    assert_eq!((none.status, none.code().as_str()), (404, "not_found"));
    assert_eq!(upstream.requests(), 0);
}
