//! Who comes with a token of a web app's own login is known by it; whoever made one up is not.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::client::Answer;
use crate::support::login::{Login, b64};
use crate::support::{CHAT, Gate, Reply, Upstream, VIDEO};

fn upstream() -> Upstream {
    Upstream::start(|received| match (&*received.method, &*received.target) {
        ("POST", "/api/v1/video") => Reply::video("job-1"),
        ("POST", _) => Reply::chat("hello"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    })
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
    assert_eq!(login.asked(), 1, "unknown keys made us ask for none, so soon after the start");
}

#[test]
fn jobs_and_keys_of_one_subject_are_hidden_from_others() {
    let (upstream, login) = (upstream(), Login::start());
    let gate = Gate::start(&upstream, &login.settings());
    let [ada, eve] = ["ada", "eve"].map(|name| login.bearer(&gate, &login.claims(name, 600)));
    // The same key for both: each buys one of its own, and has it again with a renewed token.
    for bearer in [&ada, &eve] {
        let answer = buy(&gate, bearer, "the-same-for-both");
        assert_eq!((answer.status, answer.value("idempotent-replayed")), (200, None));
    }
    let renewed = login.bearer(&gate, &login.claims("ada", 1_200));
    let again = buy(&gate, &renewed, "the-same-for-both");
    assert_eq!((again.status, again.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(upstream.charges(), [6_000; 2]);

    let ordered = gate.ask("POST", "/api/v1/video", &[("authorization", &ada)], VIDEO);
    assert_eq!(ordered.status, 200);
    // After its first poll, a job without watchers is polled less often.
    upstream.wait_for(4);
    let asked = upstream.requests();
    let status = "/api/v1/video/status?request_id=job-1";
    let others = gate.ask("GET", status, &[("authorization", &eve)], "");
    assert_eq!((others.status, &*others.code()), (404, "job_not_found"));
    assert_eq!(upstream.requests(), asked);
    assert_eq!(gate.ask("GET", status, &[("authorization", &renewed)], "").status, 200);
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
    // It is asked again within five seconds; a slow machine has more.
    let back = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(100));
        buy(&gate, &bearer, "a-key").status == 200
    });
    assert!(back, "its keys were asked for {} times", login.asked());
    login.is_up(false);
    // A token that was not seen before, checked with the keys that are known.
    let other = login.bearer(&gate, &login.claims("eve", 3_600));
    assert_eq!(buy(&gate, &other, "a-key").status, 200);
    assert_eq!(upstream.charges(), [6_000; 2]);
}

#[test]
fn event_stream_ends_when_its_token_expires() {
    let (upstream, login) = (upstream(), Login::start());
    let gate = Gate::start(&upstream, &login.settings());
    let long = login.bearer(&gate, &login.claims("ada", 3_600));
    assert_eq!(gate.ask("POST", "/api/v1/video", &[("authorization", &long)], VIDEO).status, 200);
    // On a slow machine a short token may be over before it is shown.
    let answer = [2, 4, 8].into_iter().find_map(|seconds| {
        let short = login.bearer(&gate, &login.claims("ada", seconds));
        let target = "/bff/events?request_id=job-1";
        let answer = gate.ask("GET", target, &[("authorization", &short)], "");
        (answer.status != 401).then_some(answer)
    });
    // The answer is whole, which a stream is not before it ends.
    let answer = answer.expect("in time");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let open = gate.ask("GET", "/bff/jobs", &[("authorization", &long)], "");
    assert!(open.text().contains("job-1"), "the job itself goes on: {}", open.text());
}
