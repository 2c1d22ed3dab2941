//! The libraries that receivers of webhooks use accept what tollgate sends.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use super::program::OPENAI;
use crate::guarantees::webhooks::{Receiver, SECRET};
use crate::support::{Gate, Reply, Upstream};

#[test]
fn webhook_libraries_verify_both_shapes_of_a_finished_job() {
    let receiver = Receiver::ok();
    let upstream = Upstream::start(|received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => Reply::new(200, r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#),
    });
    let settings = format!("webhooks = [{{ url = \"{}\", events = \"*\" }}]\n", receiver.url());
    let gate = Gate::binary(&upstream, &settings, &[("TOLLGATE_WEBHOOK_SECRET", SECRET)]);
    assert_eq!(gate.video().status, 200);
    let messages = receiver.wait_for(2);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("message.json");
    let mut types = Vec::new();
    for message in &messages {
        let headers: BTreeMap<_, _> = message.headers.iter().cloned().collect();
        let body = String::from_utf8(message.body.clone()).expect("text");
        fs::write(&file, json!({"headers": headers, "body": body}).to_string()).expect("written");
        let kind = message.json()["type"].as_str().expect("a type").to_owned();
        for sdk in OPENAI {
            let told = sdk.verify_webhook(&file, SECRET);
            assert_eq!((&told["type"], &told["is_strict"]), (&json!(kind), &json!(true)), "{told}");
            if kind == "video.completed" {
                assert_eq!(told["id"], "job-1", "{sdk:?}: {told}");
            }
        }
        types.push(kind);
    }
    types.sort();
    assert_eq!(types, ["job.finished", "video.completed"]);
}
