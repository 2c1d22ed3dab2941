//! Chats, videos and their status, as the contract shows them.

use super::*;
use crate::gateway::contract::catalog::Catalog;

#[tokio::test]
async fn a_chat_answers_with_the_assistants_words() {
    let running = run(quick()).await;
    let got = running.chat("alpha-sonnet-4.5", "Good morning").await.expect("a reply");
    assert_eq!(got.status, 200);
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(got.header("access-control-allow-origin"), "*");
    let body = got.json();
    assert_eq!(body["model"], "alpha-sonnet-4.5");
    assert_eq!(body["message"]["role"], "assistant");
    assert!(body["message"]["content"].as_str().expect("text").contains("no model was asked"));
    assert!(body["id"].as_str().expect("text").starts_with("chat_"));
    assert!(body["created"].is_u64());
}

#[tokio::test]
async fn the_same_seed_gives_the_same_key_ids_and_words() {
    let mut seen = Vec::new();
    for seed in [1, 1, 2] {
        let running = run(SandboxSettings { seed, ..quick() }).await;
        let chat = running.chat("eta-5", "Hello").await.expect("a reply").json();
        let video = running.video(json!({"prompt": "A fox"})).await.expect("a reply").json();
        let account = running.get("/api/api-keys").await.json();
        seen.push((
            running.key.clone(),
            [&chat["id"], &chat["message"], &video["request_id"], &account["keys"][0]["id"]]
                .map(Value::to_string),
        ));
    }
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0].0, seen[2].0);
    assert_ne!(seen[0].1[0], seen[2].1[0]);
    assert!(seen[0].0.starts_with("svc_sk_sandbox_"));
}

#[tokio::test]
async fn video_job_ends_in_a_clip_on_the_requested_host() {
    let running = run(quick()).await;
    let order =
        json!({"prompt": "A fox", "model": "video-d-3.1", "duration": 8, "aspect_ratio": "9:16"});
    let accepted = running.video(order).await.expect("a reply").json();
    assert_eq!(accepted["model"], "video-d-3.1");
    assert_eq!(accepted["cost"], json!({"this_request": "$5.00", "per_video": "$5.00"}));
    assert_eq!(accepted["balance"], "$45.00");
    assert!(accepted["metadata"]["latency_ms"].is_u64());
    let id = accepted["request_id"].as_str().expect("text");
    assert!(accepted["message"].as_str().expect("text").contains(id));

    let status = running.get(&format!("/api/v1/video/status?request_id={id}")).await.json();
    assert_eq!((&status["status"], &status["progress"]), (&json!("completed"), &json!(100)));
    assert_eq!((&status["request_id"], &status["model"]), (&json!(id), &json!("video-d-3.1")));
    let address = running.address;
    assert_eq!(status["video_url"], format!("http://{address}/clips/portrait.mp4"));

    let named = running.request("GET", &format!("/api/v1/video/status?request_id={id}"));
    let mut named = named.body(()).expect("well-formed").into_parts().0;
    named.headers.insert("host", "sandbox.localhost:81".parse().expect("a host"));
    let mut builder = Request::builder().uri(named.uri);
    *builder.headers_mut().expect("well-formed") = named.headers;
    let status = running.send(builder, "").await.expect("a reply").json();
    assert_eq!(status["video_url"], "http://sandbox.localhost:81/clips/portrait.mp4");
}

#[tokio::test]
async fn a_job_under_way_is_queued_and_shows_no_clip() {
    let running = run(SandboxSettings { job_time: Duration::from_secs(3600), ..quick() }).await;
    let accepted = running.video(json!({"prompt": "A fox"})).await.expect("a reply").json();
    let id = accepted["request_id"].as_str().expect("text");
    let status = running.get(&format!("/api/v1/video/status?request_id={id}")).await.json();
    assert_eq!((&status["status"], &status["progress"]), (&json!("queued"), &json!(0)));
    assert!(status.get("video_url").is_none() && status.get("error").is_none());
}

#[tokio::test]
async fn the_model_that_ignores_the_aspect_ratio_makes_a_landscape() {
    let running = run(quick()).await;
    let order = json!({"prompt": "A fox", "model": "video-a-2", "aspect_ratio": "9:16"});
    let accepted = running.video(order).await.expect("a reply").json();
    let id = accepted["request_id"].as_str().expect("text");
    let status = running.get(&format!("/api/v1/video/status?request_id={id}")).await.json();
    let url = status["video_url"].as_str().expect("text");
    assert!(url.ends_with("/clips/landscape.mp4"), "{url}");
}

#[tokio::test]
async fn unknown_job_is_not_found() {
    let running = run(quick()).await;
    let got = running.get("/api/v1/video/status?request_id=vid_0").await;
    assert_eq!(got.refusal(), refused(404, "not_found"));
    let got = running.get("/api/v1/video/status").await;
    assert_eq!(got.refusal(), refused(400, "invalid_request"));
}

#[tokio::test]
async fn every_model_on_offer_can_be_bought() {
    let running = run(quick()).await;
    let catalog = Catalog::published();
    for model in &catalog.chat {
        let got = running.chat(&model.id, "Hi").await.expect("a reply");
        assert_eq!(got.status, 200, "{}", model.id);
    }
    for model in &catalog.video {
        let order =
            json!({"prompt": "A fox", "model": model.id, "image_url": "https://example.com/a.png"});
        let got = running.video(order).await.expect("a reply");
        assert_eq!(got.status, 200, "{}", model.id);
    }
}

#[tokio::test]
async fn an_order_that_breaks_the_contract_is_refused_and_costs_nothing() {
    let running = run(SandboxSettings { window: (100, Duration::from_secs(60)), ..quick() }).await;
    for body in [
        json!({"model": "alpha", "messages": [{"role": "user", "content": "Hi"}]}),
        json!({"model": "eta-5", "messages": []}),
        json!({"model": "eta-5", "messages": [{"role": "user", "content": "  "}]}),
        json!({"model": "eta-5", "messages": [{"role": "user"}]}),
        json!({"model": "eta-5"}),
        json!({"messages": [{"role": "user", "content": "Hi"}]}),
        json!("hi"),
    ] {
        let got = running.post("/api/v1/chat", &body).await.expect("a reply");
        assert_eq!(got.refusal(), refused(400, "invalid_request"), "{body}");
    }
    for body in [
        json!({}),
        json!({"prompt": "\u{a0}\n"}),
        json!({"prompt": "x".repeat(4001)}),
        json!({"prompt": "A fox", "model": "video-z"}),
        json!({"prompt": "A fox", "duration": 4}),
        json!({"prompt": "A fox", "duration": "8"}),
        json!({"prompt": "A fox", "model": "video-d-3.1", "duration": 7}),
        json!({"prompt": "A fox", "aspect_ratio": "4:3"}),
        json!({"prompt": "A fox", "image_url": "file:///a.png"}),
        json!({"prompt": "A fox", "model": "video-e-gen4-turbo"}),
    ] {
        let got = running.video(body.clone()).await.expect("a reply");
        assert_eq!(got.refusal(), refused(400, "invalid_request"), "{body}");
    }
    let plain = running.request("POST", "/api/v1/chat");
    let got = running.send(plain, "{\"model\"").await.expect("a reply");
    assert_eq!(got.refusal(), refused(400, "invalid_request"));
    let mut plain = running.request("POST", "/api/v1/chat");
    plain
        .headers_mut()
        .expect("well-formed")
        .insert("content-type", "text/plain".parse().expect("a header"));
    let got = running.send(plain, chat_of("eta-5", "Hi").to_string()).await.expect("a reply");
    assert_eq!(got.refusal(), refused(415, "unsupported_media_type"));
    let got =
        running.send(running.request("POST", "/api/v1/chat"), vec![b' '; (4 << 20) + 1]).await;
    assert_eq!(got.expect("a reply").refusal(), refused(413, "payload_too_large"));
    assert_eq!(running.sandbox.charges(), crate::gateway::sandbox::ChargeCounts::default());
}
