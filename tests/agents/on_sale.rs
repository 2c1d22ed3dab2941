//! Agents buy what their callers may buy, also with a quote that is older than the rule.

use serde_json::{Value, json};

use super::client::{ON, chat, gate, quote_in, request, send, upstream, video, with_quote};
use crate::support::members::Holder;
use crate::support::{Gate, until};

fn call(gate: &Gate, who: &Holder, tool: &str, arguments: &Value) -> Value {
    let request = request("tools/call", json!({ "name": tool, "arguments": arguments }));
    send(gate, &request, &[who.bearer()]).json()["result"].clone()
}

/// Returns the ids of the models that an agent sees.
fn seen(gate: &Gate, who: &Holder) -> Vec<String> {
    let listed = call(gate, who, "list_models", &json!({}));
    let ids = |kind: &str| {
        let models = listed["structuredContent"][kind].as_array().cloned().unwrap_or_default();
        models.into_iter().map(|model| model["id"].as_str().expect("an id").to_owned())
    };
    ids("chat").chain(ids("video")).collect()
}

fn assert_refused(result: &Value) {
    let problem = &result["structuredContent"];
    assert_eq!(problem["code"], "model_not_allowed", "{result}");
    assert_eq!((&result["isError"], &problem["charged"]), (&json!(true), &json!("no")), "{result}");
    assert!(problem["errors"][0]["detail"].is_string(), "{result}");
}

#[test]
fn agent_buys_what_its_caller_may_buy() {
    let upstream = upstream();
    let gate = gate(&upstream, &format!("{ON}\naccess.mode = \"members\""));
    let ann = gate.member("ann");
    assert!(seen(&gate, &ann).len() > 2);
    let quote = quote_in(&call(&gate, &ann, "create_video", &video()));
    ann.may_buy("alpha-sonnet-4.5 video-c-2");
    let expected = ["alpha-sonnet-4.5", "video-c-2"];
    until("the gate knows the rule", || seen(&gate, &ann) == expected);

    let mut other = chat();
    other["model"] = json!("eta-5-mini");
    for (tool, arguments) in [
        ("chat", other.clone()),
        ("quote", json!({ "chat": other })),
        ("create_video", video()),
        ("create_video", with_quote(video(), &quote)),
        ("quote", json!({ "video": video() })),
    ] {
        assert_refused(&call(&gate, &ann, tool, &arguments));
    }
    assert_eq!(upstream.purchases(), 0);

    assert_eq!(call(&gate, &ann, "chat", &chat())["isError"], false);
    let short = json!({ "prompt": "a tide", "model": "video-c-2", "duration": 6 });
    let quote = quote_in(&call(&gate, &ann, "create_video", &short));
    let bought = call(&gate, &ann, "create_video", &with_quote(short, &quote));
    assert_eq!(bought["structuredContent"]["request_id"], "job-1", "{bought}");
    assert_eq!(upstream.purchases(), 2);
}
