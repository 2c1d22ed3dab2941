//! Keys, credit and the window.

use super::*;
use crate::gateway::contract::money::Usd;
use crate::gateway::sandbox::ChargeCounts;

#[tokio::test]
async fn charges_add_up_to_the_micro_dollar() {
    let running = run(quick()).await;
    for model in ["alpha-sonnet-4.5", "zeta-m2.5", "eta-5"] {
        running.chat(model, "Hi").await.expect("a reply");
    }
    running.video(json!({"prompt": "A fox"})).await.expect("a reply");
    let last = running.video(json!({"prompt": "A fox", "model": "video-e-gen4.5"})).await;
    assert_eq!(last.expect("a reply").json()["balance"], "$41.985");
    assert_eq!(running.sandbox.charged(), Usd::micros(8_015_000));
    assert_eq!(running.sandbox.balance(), Usd::micros(41_985_000));
    assert_eq!(running.sandbox.charges(), ChargeCounts { chat: 3, video: 2 });
    assert_eq!(running.sandbox.requests(), 5);
}

#[tokio::test]
async fn the_account_lists_its_keys_and_its_billing() {
    let settings = SandboxSettings { window: (7, Duration::from_secs(90)), ..quick() };
    let running = run(settings).await;
    running.chat("alpha-sonnet-4.5", "Hi").await.expect("a reply");
    running.chat("alpha-sonnet-4.5", "Hi").await.expect("a reply");
    running.video(json!({"prompt": "A fox"})).await.expect("a reply");
    let second = running.sandbox.add_key().expect("room for a second");
    assert!(running.sandbox.revoke(&second));
    let got = running.get("/api/api-keys").await;
    let account = got.json();
    assert_eq!(
        account["billing"],
        json!({
            "hasCredits": true, "balanceCents": 4698, "balanceFormatted": "$46.988",
            "rateLimit": {"requests": 7, "windowSeconds": 90},
            "usage": {
                "chat": {"count": 2, "costCents": 1}, "search": {"count": 0, "costCents": 0},
                "images": {"count": 0, "costCents": 0}, "totalSpentCents": 301,
            },
        })
    );
    assert_eq!(account["stats"], json!({"activeKeys": 1, "totalUsage": 4}));
    let (first, revoked) = (&account["keys"][0], &account["keys"][1]);
    assert_eq!(first["usageCount"], 4);
    assert_eq!(first["revokedAt"], Value::Null);
    assert!(first["lastUsedAt"].as_str().expect("a date").ends_with('Z'));
    assert_eq!(revoked["lastUsedAt"], Value::Null);
    assert_eq!(
        revoked["revokedAt"].as_str().expect("a date").len(),
        "2026-01-01T00:00:00.000Z".len()
    );
    let prefix = first["keyPrefix"].as_str().expect("text");
    assert!(running.key.starts_with(prefix) && prefix.len() < running.key.len() / 2 + 7);
    let text = String::from_utf8(got.body.to_vec()).expect("text");
    assert!(!text.contains(&running.key) && !text.contains(&second), "a key in full");
}

#[tokio::test]
async fn only_active_key_with_prefix_is_accepted() {
    let keys = vec!["svc_sk_canary_1".to_owned(), "wrong_prefix".to_owned()];
    let running = run(SandboxSettings { keys, ..quick() }).await;
    let attempt = async |authorization: Option<&str>| {
        let mut request = Request::builder().uri("/api/api-keys").header("host", "localhost");
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        let got = running.send(request, "").await.expect("a reply");
        (got.status == 401).then(|| got.refusal().1)
    };
    assert_eq!(attempt(None).await.as_deref(), Some("missing_api_key"));
    assert_eq!(attempt(Some("Basic c3Zj")).await.as_deref(), Some("missing_api_key"));
    for bad in ["Bearer wrong_prefix", "Bearer svc_sk_canary_2", "Bearer svc_sk_canary_11"] {
        assert_eq!(attempt(Some(bad)).await.as_deref(), Some("invalid_api_key"), "{bad}");
    }
    assert_eq!(attempt(Some("Bearer svc_sk_canary_1")).await, None);
    assert!(running.sandbox.revoke("svc_sk_canary_1"));
    assert!(!running.sandbox.revoke("svc_sk_canary_1"), "it is revoked already");
    let revoked = attempt(Some("Bearer svc_sk_canary_1")).await;
    assert_eq!(revoked.as_deref(), Some("invalid_api_key"));
    assert_eq!(running.sandbox.keys(), ["wrong_prefix"]);
}

#[tokio::test]
async fn an_account_holds_five_active_keys_at_most() {
    let sandbox = Sandbox::new(quick());
    for _ in 1..5 {
        assert!(sandbox.add_key().is_some());
    }
    assert_eq!(sandbox.add_key(), None);
    let keys = sandbox.keys();
    assert!(sandbox.revoke(&keys[0]));
    let new = sandbox.add_key().expect("room again");
    assert!(!keys.contains(&new));
    let many = (0..6).map(|nth| format!("svc_sk_{nth}")).collect();
    assert_eq!(Sandbox::new(SandboxSettings { keys: many, ..quick() }).keys().len(), 5);
}

#[tokio::test]
async fn purchase_beyond_balance_is_refused() {
    let balance = Usd::micros(3_005_999);
    let running = run(SandboxSettings { balance, ..quick() }).await;
    let dear = json!({"prompt": "A fox", "model": "video-d-3.1"});
    let got = running.video(dear).await.expect("a reply");
    assert_eq!(got.refusal(), refused(402, "insufficient_credits"));
    let got = running.video(json!({"prompt": "A fox"})).await.expect("a reply");
    assert_eq!(got.status, 200);
    let got = running.chat("gamma-large", "Hi").await.expect("a reply");
    assert_eq!(got.refusal(), refused(402, "insufficient_credits"));
    let got = running.chat("iota-5", "Hi").await.expect("a reply");
    assert_eq!(got.status, 200);
    assert_eq!(running.sandbox.balance(), Usd::micros(2_999));
    assert_eq!(running.sandbox.charged(), Usd::micros(3_003_000));
}

#[tokio::test]
async fn rate_limit_counts_requests_with_valid_key_only() {
    let running = run(SandboxSettings { window: (3, Duration::from_secs(3600)), ..quick() }).await;
    let stranger = Request::builder().uri("/api/api-keys").header("host", "localhost");
    running.send(stranger, "").await.expect("a reply");
    running.get("/nowhere").await;
    running.chat("eta-5", "Hi").await.expect("a reply");
    running.get("/api/v1/video/status?request_id=none").await;
    running.get("/api/api-keys").await;
    let got = running.chat("eta-5", "Hi").await.expect("a reply");
    assert_eq!(got.refusal(), refused(429, "rate_limit_exceeded"));
    let wait: u64 = got.header("retry-after").parse().expect("whole seconds");
    assert!((3590..=3600).contains(&wait), "{wait}");
    assert_eq!(running.sandbox.charges(), ChargeCounts { chat: 1, video: 0 });
    assert_eq!(running.sandbox.requests(), 6);
}

#[test]
fn settings_never_print_a_key() {
    let settings = SandboxSettings { keys: vec!["svc_sk_canary".to_owned()], ..quick() };
    assert!(!format!("{settings:?}").contains("canary"));
}
