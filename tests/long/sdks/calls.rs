//! What people do with the SDKs, as their documents show it.

use serde_json::{Value, json};

use super::sandbox;
use crate::long::sdks::program::{ALL, OPENAI, Sdk};

#[test]
fn models_are_listed_and_found() {
    let sandbox = sandbox();
    for sdk in OPENAI {
        let told = sdk.run(&sandbox.address.to_string(), "models");
        let ids = told["ids"].as_array().expect("ids");
        for id in ["alpha-sonnet-4.5", "eta-5-mini", "video-a-2"] {
            assert!(ids.contains(&json!(id)), "{sdk:?}: {told}");
        }
        assert_eq!((&told["one"], &told["none"]), (&json!("eta-5-mini"), &json!(404)), "{sdk:?}");
    }
}

#[test]
fn sdk_chat_is_answered_whole_and_streamed() {
    let sandbox = sandbox();
    for sdk in ALL {
        for errand in ["chat", "stream"] {
            let told = sdk.run(&sandbox.address.to_string(), errand);
            let text = told["text"].as_str().unwrap_or_default();
            assert!(text.contains("Hello from the sandbox"), "{sdk:?} {errand}: {told}");
        }
    }
}

#[test]
fn sdk_error_has_status_message_and_field() {
    let sandbox = sandbox();
    for sdk in OPENAI {
        let told = sdk.run(&sandbox.address.to_string(), "mistake");
        assert_eq!(
            (&told["status"], &told["param"]),
            (&json!(422), &json!("model")),
            "{sdk:?}: {told}"
        );
        assert_eq!((&told["code"], &told["charged"]), (&json!("invalid_request"), &json!("no")));
        assert!(
            told["message"].as_str().is_some_and(|message| message.contains("gpt-4o")),
            "{told}"
        );
    }
    let told = Sdk::Vercel.run(&sandbox.address.to_string(), "mistake");
    assert_eq!(told["status"], 422, "{told}");
}

#[test]
fn sdk_video_is_ordered_polled_and_downloaded() {
    let sandbox = sandbox();
    for sdk in OPENAI {
        let told = sdk.run(&sandbox.address.to_string(), "video");
        assert_eq!(told["status"], "completed", "{sdk:?}: {told}");
        assert_eq!((&told["seconds"], &told["is_listed"]), (&json!("6"), &Value::Bool(true)));
        assert_eq!(told["is_mp4"], true, "{sdk:?}: {told}");
        assert!(told["bytes"].as_u64().is_some_and(|bytes| bytes > 1_000), "{told}");
    }
}
