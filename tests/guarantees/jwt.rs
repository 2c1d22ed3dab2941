//! Who comes with a token of a web app's own login is known by it; whoever made one up is not.

use std::time::Duration;

use serde_json::json;

use crate::support::client::Answer;
use crate::support::login::{Login, b64};
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::received::ReceivedRequest;
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO, until};

fn reply(received: &ReceivedRequest) -> Reply {
    match (&*received.method, &*received.target) {
        ("POST", "/api/v1/video") => Reply::video("job-1"),
        ("POST", _) => Reply::chat("hello"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    }
}

fn upstream() -> Upstream {
    Upstream::start(reply)
}

fn buy(gate: &Gate, bearer: &str, key: &str) -> Answer {
    gate.ask("POST", "/api/v1/chat", &[("authorization", bearer), ("idempotency-key", key)], CHAT)
}

#[test]
fn forged_jwt_buys_nothing() {
    let (upstream, login, stranger) = (upstream(), Login::start(), Login::start());
    let gate = Gate::start(&upstream, &login.settings());
    let claims = login.claims("ada", 600);
    let good = login.bearer(&gate, &claims);
    let header = json!({"alg": "ES256", "kid": "one"});
    let but = |name: &str, value| {
        let mut claims = claims.clone();
        claims[name] = value;
        login.signed(&header, &claims)
    };
    let (message, signature) = good.rsplit_once('.').unwrap();
    let payload = b64(claims.to_string());
    let none = |alg: &str| format!("Bearer {}.{payload}.", b64(json!({ "alg": alg }).to_string()));
    let past = tollgate::clock::wall().as_secs() - 1;
    let forged = [
        stranger.signed(&header, &claims),
        stranger.signed(&json!({"alg": "ES256", "kid": "two"}), &claims),
        stranger.signed(&json!({"alg": "ES256", "kid": "../../etc/passwd"}), &claims),
        stranger
            .signed(&json!({"alg": "ES256", "kid": "one", "jku": "http://127.0.0.1:1/"}), &claims),
        login.signed(&json!({"alg": "HS256", "kid": "one"}), &claims),
        login.signed(&json!({"alg": "ES384", "kid": "one"}), &claims),
        login.signed(&json!({"alg": "RS256", "kid": "one"}), &claims),
        login.signed(&json!({"alg": "ES256", "kid": "one", "crit": ["exp"]}), &claims),
        none("none"),
        none("ES256"),
        but("iss", json!("https://login.example.com")),
        but("aud", json!("tollgate2")),
        but("exp", json!(past)),
        but("exp", json!("tomorrow")),
        but("nbf", json!(past + 600)),
        but("sub", json!("")),
        but("sub", json!("ada\nlevel=error")),
        but("budget", json!("lots")),
        format!("{message}."),
        format!("{message}.{signature}AAAA"),
        format!("{message}.{signature}=="),
        format!("{message} .{signature}"),
        good.replace("Bearer ", "Basic "),
    ];
    for bearer in &forged {
        let answer = buy(&gate, bearer, "a-key");
        assert_eq!((answer.status, &*answer.code()), (401, "invalid_credentials"), "{bearer}");
        assert_eq!(answer.charged().as_deref(), Some("no"));
    }
    let nothing = gate.ask("POST", "/api/v1/chat", &[], CHAT);
    assert_eq!((nothing.status, &*nothing.code()), (401, "missing_credentials"));
    assert_eq!(upstream.connections(), 0);
    assert_eq!(buy(&gate, &good, "a-key").status, 200);
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn refused_jwt_has_its_reason_in_the_log_and_a_large_one_is_accepted() {
    let (upstream, login) = (upstream(), Login::start());
    let gate = Gate::binary(&upstream, &login.settings(), &[]);
    let claims = login.claims("ada", 600);
    let header = json!({"alg": "ES256", "kid": "one"});
    let groups: Vec<_> =
        (0..220).map(|number| format!("00000000-0000-4000-8000-{number:012}")).collect();
    let mut large = claims.clone();
    large["groups"] = json!(groups);
    let large = login.signed(&header, &large);
    assert!((10_000..15_000).contains(&large.len()), "{}", large.len());
    until("the keys are fetched", || buy(&gate, &large, "a-key").status == 200);
    let but = |name: &str, value| {
        let mut claims = claims.clone();
        claims[name] = value;
        login.signed(&header, &claims)
    };
    for (bearer, reason) in [
        (but("aud", json!("tollgate2")), "the token's aud is not the audience of the settings"),
        (
            but("iss", json!("https://a.example")),
            "the token's iss is not the issuer of the settings",
        ),
        (but("exp", json!(1)), "the token has expired"),
        (login.signed(&json!({"alg": "ES256", "kid": "two"}), &claims), "the token's kid"),
        (format!("Bearer {}", "a".repeat(10_000)), "the token is no JWT"),
    ] {
        assert_eq!(gate.ask("GET", "/bff/me", &[("authorization", &bearer)], "").status, 401);
        until(reason, || gate.printed().contains(reason));
    }
    assert!(!gate.printed().contains("tollgate2"), "{}", gate.printed());
}

#[tokio::test(start_paused = true)]
async fn jobs_and_keys_of_one_subject_are_hidden_from_others() {
    let (upstream, login) = (PausedUpstream::start(reply), Login::start());
    let folder = tempfile::tempdir().unwrap();
    let gate = PausedGate::start(&upstream, &login.settings_in(folder.path())).await;
    let [ada, eve] = ["ada", "eve"].map(|name| login.token(&login.claims(name, 600)));
    // The same key for both: each buys one of its own, and has it again with a renewed token.
    let buy = async |bearer: &str| {
        let headers = [("authorization", bearer), ("idempotency-key", "the-same-for-both")];
        gate.ask("POST", "/api/v1/chat", &headers, CHAT).await
    };
    for bearer in [&ada, &eve] {
        let answer = buy(bearer).await;
        assert_eq!((answer.status, answer.value("idempotent-replayed")), (200, None));
    }
    let renewed = login.token(&login.claims("ada", 1_200));
    let again = buy(&renewed).await;
    assert_eq!((again.status, again.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(upstream.charges(), [6_000; 2]);

    let ordered = gate.ask("POST", "/api/v1/video", &[("authorization", &ada)], VIDEO).await;
    assert_eq!(ordered.status, 200);
    // The job is polled once, and a while later again.
    upstream.wait_for(4).await;
    let status = "/api/v1/video/status?request_id=job-1";
    let others = gate.ask("GET", status, &[("authorization", &eve)], "").await;
    assert_eq!((others.status, &*others.code()), (404, "job_not_found"));
    gate.settle().await;
    assert_eq!(upstream.requests(), 4, "a stranger's question causes no poll");
    assert_eq!(gate.ask("GET", status, &[("authorization", &renewed)], "").await.status, 200);
}

#[test]
fn budget_claim_applies_to_its_subject() {
    let (upstream, login) = (upstream(), Login::start());
    let gate = Gate::start(&upstream, &login.settings());
    let poor = |name| {
        let mut claims = login.claims(name, 600);
        claims["budget"] = json!("0.006/day");
        login.bearer(&gate, &claims)
    };
    let [ada, eve] = ["ada", "eve"].map(poor);
    assert_eq!(buy(&gate, &ada, "first").status, 200);
    let refused = buy(&gate, &ada, "second");
    assert_eq!((refused.status, &*refused.code()), (402, "budget_exhausted"));
    assert_eq!(buy(&gate, &eve, "first").status, 200);
    assert_eq!(upstream.charges(), [6_000; 2]);
}

#[test]
fn unreachable_issuer_does_not_stop_known_keys() {
    let (upstream, login) = (upstream(), Login::start());
    login.is_up(false);
    let gate = Gate::start(&upstream, &login.settings());
    let bearer = login.bearer(&gate, &login.claims("ada", 3_600));
    let refused = buy(&gate, &bearer, "a-key");
    assert_eq!((refused.status, &*refused.code()), (503, "overloaded"));
    assert_eq!(refused.charged().as_deref(), Some("no"));
    assert_eq!(refused.value("retry-after"), Some("30"));
    assert_eq!(upstream.connections(), 0);
    login.is_up(true);
    until("its keys are fetched again", || buy(&gate, &bearer, "a-key").status == 200);
    login.is_up(false);
    // A token that was not seen before, checked with the keys that are known.
    let other = login.bearer(&gate, &login.claims("eve", 3_600));
    assert_eq!(buy(&gate, &other, "a-key").status, 200);
    assert_eq!(upstream.charges(), [6_000; 2]);
}

#[tokio::test(start_paused = true)]
async fn event_stream_ends_when_its_token_expires() {
    let (upstream, login) = (PausedUpstream::start(reply), Login::start());
    let folder = tempfile::tempdir().unwrap();
    let gate = PausedGate::start(&upstream, &login.settings_in(folder.path())).await;
    let [long, short] = [3_600, 60].map(|seconds| login.token(&login.claims("ada", seconds)));
    let ordered = gate.ask("POST", "/api/v1/video", &[("authorization", &long)], VIDEO).await;
    assert_eq!(ordered.status, 200);
    let target = "/bff/events?request_id=job-1";
    let stream = gate.send("GET", target, &[("authorization", &short)], "");
    gate.advance(Duration::from_secs(58)).await;
    assert!(!stream.is_answered());
    gate.advance(Duration::from_secs(3)).await;
    assert!(stream.is_answered(), "it has ended");
    assert_eq!(stream.answer().await.status, 200);
    assert_eq!(gate.ask("GET", target, &[("authorization", &short)], "").await.status, 401);
    let open = gate.ask("GET", "/bff/jobs", &[("authorization", &long)], "").await;
    assert!(open.text().contains("job-1"), "the job itself goes on: {}", open.text());
}
