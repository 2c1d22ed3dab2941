//! The outcome of a purchase for each word in a prompt.

use futures_util::FutureExt;

use super::*;
use crate::gateway::contract::money::Usd;
use crate::gateway::sandbox::ChargeCounts;

const FREE: ChargeCounts = ChargeCounts { chat: 0, video: 0 };
const ONE_OF_EACH: ChargeCounts = ChargeCounts { chat: 1, video: 1 };

/// Buys a chat and a video in the fault of `word`.
async fn buy_both(running: &Running, word: &str) -> [Option<Got>; 2] {
    let prompt = format!("Please {word} now");
    [running.chat("eta-5", &prompt).await, running.video(json!({"prompt": prompt})).await]
}

#[tokio::test]
async fn slow_charges_and_answers_late() {
    let slow = Duration::from_millis(60);
    let running = run(SandboxSettings { slow, ..quick() }).await;
    let start = crate::clock::now();
    for got in buy_both(&running, "sandbox:slow").await {
        assert_eq!(got.expect("a reply").status, 200);
    }
    assert!(crate::clock::now().duration_since(start) >= 2 * slow);
    assert_eq!(running.sandbox.charges(), ONE_OF_EACH);
}

#[tokio::test]
async fn drop_charges_and_closes_without_a_reply() {
    let running = run(quick()).await;
    for got in buy_both(&running, "sandbox:drop").await {
        assert!(got.is_none());
    }
    assert_eq!(running.sandbox.charges(), ONE_OF_EACH);
    assert_eq!(running.sandbox.charged(), Usd::micros(3_006_000));
}

#[tokio::test]
async fn hang_charges_and_never_answers() {
    let running = run(SandboxSettings { hang: Duration::from_millis(30), ..quick() }).await;
    for got in buy_both(&running, "sandbox:hang").await {
        assert!(got.is_none(), "even the end of the wait is no reply");
    }
    assert_eq!(running.sandbox.charges(), ONE_OF_EACH);

    let running = run(quick()).await;
    let mut asked = std::pin::pin!(running.chat("eta-5", "sandbox:hang"));
    tokio::select! {
        _ = &mut asked => panic!("it was answered"),
        () = running.is_charged() => {}
    }
    assert_eq!(running.chat("eta-5", "Hi").await.expect("others are served").status, 200);
    assert!(asked.now_or_never().is_none(), "it was answered");
}

#[tokio::test]
async fn a_502_charges_and_shows_html() {
    let running = run(quick()).await;
    for got in buy_both(&running, "sandbox:502").await {
        let got = got.expect("a reply");
        assert_eq!((got.status.as_u16(), got.header("content-type")), (502, "text/html"));
        assert!(got.body.starts_with(b"<html>"));
    }
    assert_eq!(running.sandbox.charges(), ONE_OF_EACH);
}

#[tokio::test]
async fn a_429_is_free_and_the_same_prompt_passes_when_it_comes_again() {
    let running = run(quick()).await;
    let got = running.chat("eta-5", "sandbox:429").await.expect("a reply");
    assert_eq!(got.refusal(), refused(429, "rate_limit_exceeded"));
    assert_eq!(got.header("retry-after"), "2");
    let got = running.chat("eta-5", "sandbox:429 and another").await.expect("a reply");
    assert_eq!(got.status, 429);
    assert_eq!(running.sandbox.charges(), FREE);
    let got = running.chat("eta-5", "sandbox:429").await.expect("a reply");
    assert_eq!(got.status, 200);
    let order = json!({"prompt": "sandbox:429, a fox"});
    assert_eq!(running.video(order.clone()).await.expect("a reply").status, 429);
    assert_eq!(running.video(order).await.expect("a reply").status, 200);
    assert_eq!(running.sandbox.charges(), ONE_OF_EACH);
}

#[tokio::test]
async fn garbled_charges_and_breaks_the_json() {
    let running = run(quick()).await;
    for got in buy_both(&running, "sandbox:garbled").await {
        let got = got.expect("a reply");
        assert_eq!((got.status.as_u16(), got.header("content-type")), (200, "application/json"));
        assert!(serde_json::from_slice::<Value>(&got.body).is_err());
    }
    assert_eq!(running.sandbox.charges(), ONE_OF_EACH);
}

#[tokio::test]
async fn broke_and_revoked_refuse_without_a_charge_and_without_lasting() {
    let running = run(quick()).await;
    for (word, status, name) in [
        ("sandbox:broke", 402, "insufficient_credits"),
        ("sandbox:revoked", 401, "invalid_api_key"),
    ] {
        for got in buy_both(&running, word).await {
            assert_eq!(got.expect("a reply").refusal(), refused(status, name));
        }
    }
    assert_eq!(running.sandbox.charges(), FREE);
    for got in buy_both(&running, "nothing").await {
        assert_eq!(got.expect("a reply").status, 200);
    }
}

#[tokio::test]
async fn fail_charges_for_a_job_that_ends_as_failed() {
    let running = run(quick()).await;
    let [chat, video] = buy_both(&running, "sandbox:fail").await;
    assert_eq!(chat.expect("a reply").status, 200);
    let accepted = video.expect("a reply").json();
    let id = accepted["request_id"].as_str().expect("text");
    let status = running.get(&format!("/api/v1/video/status?request_id={id}")).await.json();
    assert_eq!(status["status"], "failed");
    assert!(status["error"].is_string() && status.get("video_url").is_none());
    assert_eq!(running.sandbox.charges(), ONE_OF_EACH);
}

#[tokio::test]
async fn a_chats_fault_is_that_of_the_users_last_message() {
    let running = run(quick()).await;
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let talk = json!({"model": "eta-5", "messages": [
        message("system", "sandbox:502"),
        message("user", "sandbox:drop"),
        message("user", "How are you?"),
        message("assistant", "sandbox:broke"),
    ]});
    let got = running.post("/api/v1/chat", &talk).await.expect("a reply");
    assert_eq!(got.status, 200);
    let content = got.json()["message"]["content"].as_str().expect("text").to_owned();
    assert!(content.contains("no model was asked"), "{content}");
}
