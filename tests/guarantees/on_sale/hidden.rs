//! A model that is not sold is unknown, and a reload of the settings changes what is sold.

use std::fs;

use serde_json::{Value, json};

use super::upstream;
use crate::support::process::Signal;
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

fn chat(model: &str) -> String {
    CHAT.replace("alpha-sonnet-4.5", model)
}

#[test]
fn hidden_model_is_unknown_like_a_misspelled_one() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "models.hide = [\"uncensored-ai\", \"video-b\"]");
    for target in ["/api/v1/chat", "/v1/chat/completions"] {
        for model in ["uncensored-ai", "uncensored-ia"] {
            let answer = gate.post(target, &chat(model));
            assert_eq!((answer.status, &*answer.code()), (422, "invalid_request"), "{model}");
            let text = answer.text();
            assert!(text.contains("unknown_model") && text.contains("there is no chat model"));
            let quoted = format!("`{model}`");
            assert!(!text.replace(&quoted, "").contains("uncensored-ai"), "{text}");
        }
    }
    for target in ["/api/v1/video", "/v1/videos"] {
        let answer = gate.post(target, r#"{"prompt":"a tide","model":"video-b"}"#);
        assert_eq!((answer.status, answer.text().contains("unknown_model")), (422, true));
        let answer = gate.post("/api/v1/chat", &chat("video-b"));
        assert!(answer.text().contains("there is no chat model"), "{}", answer.text());
    }
    for list in ["/bff/catalog", "/v1/models", "/bff/openapi.json"] {
        let text = gate.get(list).text();
        for id in ["uncensored-ai", "\"video-b\""] {
            assert!(!text.contains(id), "{list} has {id}");
        }
    }
    assert_eq!(gate.get("/v1/models/uncensored-ai").status, 404);
    assert_eq!(upstream.requests(), 0);
    assert_eq!(gate.post("/api/v1/chat", &chat("eta-5-mini")).status, 200);
}

#[test]
fn order_names_a_model_if_the_default_is_not_sold() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, "models.sell = [\"chat\", \"video-c-2\"]");
    for target in ["/api/v1/video", "/v1/videos"] {
        let answer = gate.post(target, r#"{"prompt":"a tide"}"#);
        assert_eq!(answer.status, 422, "{}", answer.text());
        let document = answer.json();
        let error = &document.get("error").unwrap_or(&document)["errors"][0];
        assert_eq!((&error["pointer"], &error["code"]), (&json!("/model"), &json!("required")));
    }
    let catalog = gate.get("/bff/catalog").json();
    assert_eq!(catalog["defaults"]["video_model"], "video-c-2");
    assert_eq!(catalog["video"].as_array().map(Vec::len), Some(1));
    assert_eq!(upstream.requests(), 0);
    let order = r#"{"prompt":"a tide","model":"video-c-2"}"#;
    assert_eq!(gate.post("/api/v1/video", order).status, 200);

    let gate = Gate::start(&upstream, "models.hide = [\"video\"]");
    let catalog = gate.get("/bff/catalog").json();
    assert_eq!(
        (&catalog["video"], &catalog["defaults"]["video_model"]),
        (&json!([]), &Value::Null)
    );
    let answer = gate.post("/api/v1/video", order);
    assert!(answer.text().contains("no video models are sold"), "{}", answer.text());
}

#[test]
fn reload_keeps_a_waiting_purchase_on_its_settings() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hello").when(latch));
    let limit = "gateway.rate_limit = { requests = 1, seconds = 1 }\ngateway.max_wait = \"60s\"\n";
    let gate = Gate::binary(&upstream, limit, &[]);
    let [mut first, mut waiting] = [gate.client(), gate.client()];
    first.send("POST", "/api/v1/chat", &[], &chat("eta-5-mini"));
    upstream.wait_for(1);
    waiting.send("POST", "/api/v1/chat", &[], &chat("iota-5"));
    until("the second one waits for a slot", || {
        gate.metrics().lines().any(|line| line == "tollgate_rate_limit_waiting 1")
    });
    let file = gate.folder().join("proxy.toml");
    let settings = fs::read_to_string(&file).unwrap();
    let reload = |settings: &str, outcome: &str| {
        let before = gate.printed().len();
        fs::write(&file, settings).unwrap();
        gate.signal(Signal::SIGHUP);
        until(outcome, || gate.printed()[before..].contains(outcome));
    };
    reload(&format!("models.hide = [\"iota-5\"]\n{settings}"), "settings reloaded");
    let unknown = gate.post("/api/v1/chat", &chat("iota-5"));
    assert_eq!((unknown.status, unknown.text().contains("unknown_model")), (422, true));
    assert_eq!(upstream.requests(), 1, "the second one still waits");
    latch.open();
    assert_eq!([first.answer().status, waiting.answer().status], [200, 200]);
    assert_eq!(upstream.received_requests()[1].json()["model"], "iota-5");

    reload(&format!("models.hide = [\"iota-6\"]\n{settings}"), "settings rejected");
    assert!(gate.printed().contains("did you mean \\\"iota-5\\\"?"), "{}", gate.printed());
    assert!(!gate.get("/bff/catalog").text().contains("iota-5"), "the old settings hold");
}
