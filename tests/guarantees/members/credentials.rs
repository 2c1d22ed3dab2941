//! Every credential in every mode: one that holds lets its holder in, and all others are refused alike.

use tollgate::api::endpoints;
use tollgate::gate::route::Auth;

use super::MEMBERS;
use crate::support::client::Answer;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, until};

const JWT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl";

fn chat(gate: &Gate, headers: &[(&str, &str)]) -> Answer {
    gate.ask("POST", "/api/v1/chat", headers, CHAT)
}

#[track_caller]
fn assert_refused(answer: &Answer, code: &str, challenge: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (401, code), "{}", answer.text());
    assert_eq!(answer.charged().as_deref(), Some("no"));
    assert_eq!(answer.value("www-authenticate"), Some(challenge));
    assert_eq!(answer.value("set-cookie"), None);
}

#[test]
fn valid_token_is_accepted_and_every_other_refused_alike() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        let gate = Gate::start(&upstream, &format!("{store}\n{MEMBERS}"));
        let (ann, bob) = (gate.member("ann"), gate.member("bob"));
        bob.revoke();
        until("bob is out", || gate.ask("GET", "/bff/me", &[bob.bearer()], "").status == 401);

        let (lower, shouted) = (format!("bearer  {}", ann.token), format!("BEARER {}", ann.token));
        for value in [ann.bearer().1, &lower, &shouted] {
            let answer = gate.ask("GET", "/bff/me", &[("Authorization", value)], "");
            assert_eq!(answer.status, 200, "{}", answer.text());
            let caller = &answer.json()["caller"];
            assert_eq!((&caller["kind"], &caller["name"]), (&"member".into(), &"ann".into()));
        }

        let missing = "Bearer realm=\"tollgate\"";
        let cookie_of_nobody = [("Cookie", "a=b; __Host-Http-tollgate=x")];
        for absent in [&[][..], &cookie_of_nobody] {
            assert_refused(&chat(&gate, absent), "missing_credentials", missing);
        }
        let invalid = "Bearer realm=\"tollgate\", error=\"invalid_token\"";
        let (longer, shorter) = (format!("{}x", ann.bearer().1), &ann.bearer().1[..40]);
        let two = format!("{0}, {0}", ann.bearer().1);
        let basic = format!("Basic {}", ann.token);
        let mut said = Vec::new();
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer tg_",
            "Bearer \u{e9}",
            "Negotiate",
            &ann.token,
            &basic,
            &two,
            &longer,
            shorter,
            &format!("Bearer {}", ann.token.to_uppercase()),
            &format!("Bearer {JWT}"),
            bob.bearer().1,
        ] {
            let answer = chat(&gate, &[("Authorization", value)]);
            assert_refused(&answer, "invalid_credentials", invalid);
            let mut body = answer.json();
            body.as_object_mut().unwrap().remove("instance");
            said.push(body);
        }
        let twice = chat(&gate, &[ann.bearer(), ann.bearer()]);
        assert_refused(&twice, "invalid_credentials", invalid);
        let other_cookie = [ann.bearer(), ("Cookie", "tollgate=x")];
        assert_eq!(
            gate.ask("GET", "/bff/me", &other_cookie, "").status,
            200,
            "it is not looked at"
        );
        assert!(said.iter().all(|body| *body == said[0]), "nothing says what was wrong: {said:?}");
        assert_eq!(upstream.requests(), 0);
        assert_eq!(chat(&gate, &[ann.bearer()]).status, 200);
    }
}

#[test]
fn paid_and_private_endpoints_require_credentials() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let further = "gateway.passthrough = [{ method = \"POST\", path = \"/api/v1/search\", price = \"0.01\" }]\nmcp.enabled = true";
    let gate = Gate::start(&upstream, &format!("{MEMBERS}{further}"));
    for route in endpoints::all().map(|endpoint| &endpoint.route) {
        // In another mode only.
        if route.path.starts_with("/bff/tokens") {
            continue;
        }
        let answer = gate.ask(route.method.as_str(), route.path, &[], "");
        let is_refused = answer.status == 401;
        let is_private = matches!(route.auth, Auth::Caller | Auth::Admin);
        assert_eq!(is_refused, is_private, "{route:?}: {}", answer.status);
    }
    assert_eq!(gate.post("/api/v1/search", "{}").status, 401);
    for open in ["/", "/healthz", "/bff/catalog", "/problems/missing_credentials"] {
        // What is wrong is not looked at, either.
        let answer = gate.ask("GET", open, &[("Authorization", "Bearer wrong")], "");
        assert_eq!(answer.status, 200, "{open}");
    }
    assert_eq!(gate.get("/api/v1/nothing").status, 404);
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn open_mode_ignores_credentials() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, "");
    for headers in [
        &[][..],
        &[("Authorization", "")],
        &[("Authorization", "Bearer sk-anything")],
        &[("Authorization", "Basic eDp5")],
        &[("Authorization", "Bearer a"), ("Authorization", "Bearer b")],
        &[("Cookie", "tollgate=x; __Host-Http-tollgate=y")],
    ] {
        let mut headers = headers.to_vec();
        let key = uuid::Uuid::now_v7().to_string();
        headers.push(("Idempotency-Key", &key));
        assert_eq!(chat(&gate, &headers).status, 200, "{headers:?}");
        let me = gate.ask("GET", "/bff/me", &headers, "").json();
        assert_eq!(me["caller"], serde_json::json!({"kind": "address"}));
    }
    assert_eq!(gate.post("/bff/login", "{\"token\":\"tg_a\"}").code(), "not_found");
    assert_eq!(gate.post("/bff/logout", "").code(), "not_found");
}

#[test]
fn failed_credentials_are_limited_by_address_without_blocking_valid_ones() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, MEMBERS);
    let ann = gate.member("ann");
    let (mut refused, mut limited) = (0, None);
    // A minute may end in between, and another begin.
    for guess in 0..100 {
        let wrong = format!("Bearer tg_guess_{guess}");
        let answer = chat(&gate, &[("Authorization", &wrong)]);
        if answer.status == 429 {
            limited = Some(answer);
            break;
        }
        assert_eq!(answer.status, 401);
        refused += 1;
    }
    let limited = limited.expect("guessing is slowed down");
    assert!(refused >= 30, "{refused}");
    assert_eq!(
        (limited.code().as_str(), limited.charged().as_deref()),
        ("rate_limited", Some("no"))
    );
    let wait: u64 = limited.value("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");

    let token = |token: &str| format!("{{\"token\":\"{token}\"}}");
    assert_eq!(chat(&gate, &[ann.bearer()]).status, 200);
    assert_eq!(gate.post("/bff/login", &token(&ann.token)).status, 204);
    let again = gate.post("/bff/login", &token("tg_guess"));
    assert!(matches!(again.status, 401 | 429), "{}", again.status);
    assert_eq!(chat(&gate, &[]).code(), "missing_credentials", "nothing shown is no guess");
    assert_eq!(upstream.requests(), 1);
    let metrics = gate.metrics();
    let line = metrics.lines().find(|line| line.starts_with("tollgate_credentials_failed_total "));
    let failed = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    assert_eq!(failed, Some(refused + 2), "{metrics}");
}

#[test]
fn cookie_is_accepted_from_listed_origins_only() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let origins = "access.allowed_origins = [\"https://app.example\"]";
    let gate = Gate::start(&upstream, &format!("{MEMBERS}{origins}"));
    for (origin, may) in [("https://app.example", Some("true")), ("https://evil.example", None)] {
        let asked = [("Origin", origin), ("Access-Control-Request-Method", "POST")];
        let preflight = gate.ask("OPTIONS", "/api/v1/chat", &asked, "");
        assert_eq!(preflight.status, 204, "a preflight has no credentials");
        assert_eq!(preflight.value("access-control-allow-credentials"), may);
        let answer = gate.ask("GET", "/bff/me", &[("Origin", origin)], "");
        assert_eq!(answer.value("access-control-allow-credentials"), may);
        assert_eq!(answer.value("access-control-allow-origin"), may.map(|_| origin));
        assert_eq!(answer.status, 401);
    }
    assert_eq!(gate.get("/bff/me").value("access-control-allow-credentials"), None);
}
