//! Users of a login service sign in by redirects, and a hostile answer signs nobody in.

use serde_json::{Value, json};

use crate::support::login_service::{Begun, Browser, LoginService};
use crate::support::{CHAT, Gate, Reply, STORES, Upstream};

fn upstream() -> Upstream {
    Upstream::start(|_| Reply::chat("hello"))
}

fn start(upstream: &Upstream, service: &LoginService, more: &str) -> Gate {
    Gate::start(upstream, &service.settings(more))
}

#[test]
fn signed_in_user_buys_under_its_own_name_until_it_signs_out() {
    for store in STORES {
        let (upstream, service) = (upstream(), LoginService::start());
        let gate = Gate::start(&upstream, &format!("{store}\n{}", service.settings("")));
        let mut browser = Browser::default();
        let begun = service.begin(&gate, &mut browser, "/bff/login?return=%2Fusage%3Fsince%3D7d");
        for (name, value) in [
            ("tenant", "one"),
            ("response_type", "code"),
            ("client_id", "tollgate"),
            ("scope", "openid profile"),
            ("code_challenge_method", "S256"),
        ] {
            assert_eq!(begun.parameter(name), value);
        }
        service.vouch(&service.claims(&begun, "ada"));
        let issuer = service.issuer();
        let callback = begun.callback(&[("code", "c1"), ("iss", &issuer)]);
        let answer = browser.ask(&gate, "GET", &callback);
        assert_eq!((answer.status, answer.value("location")), (303, Some("/usage?since=7d")));
        let cookies = answer.value("set-cookie").unwrap();
        assert!(cookies.contains("HttpOnly; SameSite=Strict"), "{cookies}");
        let me = browser.ask(&gate, "GET", "/bff/me").json();
        assert_eq!(me["caller"]["kind"], "subject");
        assert_eq!(me["caller"]["name"], "ada");
        assert_eq!(me["caller"]["display_name"], "ada the user");
        let session = format!("tollgate={}", browser.cookie("tollgate").unwrap());
        let headers = [("cookie", &*session), ("x-tollgate", "1"), ("idempotency-key", "k")];
        assert_eq!(gate.ask("POST", "/api/v1/chat", &headers, CHAT).status, 200);
        let (form, _) = service.asked().remove(0);
        assert!(form.contains(&("code".to_owned(), "c1".to_owned())), "{form:?}");

        let out = browser.ask(&gate, "POST", "/bff/logout");
        assert_eq!(out.status, 200);
        let end = out.json()["continue"].as_str().unwrap().to_owned();
        assert_eq!(end, format!("{issuer}/logout?client_id=tollgate"));
        let refused = gate.ask("GET", "/bff/me", &[("cookie", &session)], "");
        assert_eq!((refused.status, &*refused.code()), (401, "invalid_credentials"));
    }
}

#[test]
fn program_without_credentials_gets_a_401_and_never_a_redirect() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = start(&upstream, &service, "");
    for (target, method) in [("/bff/me", "GET"), ("/api/v1/chat", "POST"), ("/v1/videos", "GET")] {
        let answer = gate.ask(method, target, &[], if method == "POST" { CHAT } else { "" });
        assert_eq!((answer.status, answer.value("location")), (401, None), "{target}");
    }
    assert_eq!(upstream.requests(), 0);
}

/// Changes the claims of an ID token.
type Change = fn(&mut Value);

#[test]
fn hostile_id_token_signs_nobody_in() {
    let (upstream, service, stranger) = (upstream(), LoginService::start(), LoginService::start());
    let gate = start(&upstream, &service, "");
    let issuer = service.issuer();
    let attempt = |(status, code): (u16, &str), make: &dyn Fn(&Begun)| {
        let mut browser = Browser::default();
        let begun = service.begin(&gate, &mut browser, "/bff/login");
        make(&begun);
        let callback = begun.callback(&[("code", "c1"), ("iss", &issuer)]);
        let answer = browser.ask(&gate, "GET", &callback);
        assert!(browser.cookie("tollgate").is_none());
        assert!(answer.value("content-type").unwrap().starts_with("text/html"));
        let text = answer.text();
        assert!(answer.status == status && text.contains(code), "{}: {text}", answer.status);
    };
    // The same response would be refused again, so the page does not suggest a retry.
    const REFUSED: (u16, &str) = (403, "forbidden");
    const UNAVAILABLE: (u16, &str) = (503, "login_unavailable");
    let changes: &[Change] = &[
        |claims| claims["nonce"] = json!("another"),
        |claims| claims["nonce"] = Value::Null,
        |claims| claims["iss"] = json!("https://evil.example"),
        |claims| claims["aud"] = json!("another"),
        |claims| claims["aud"] = json!(["tollgate", "another"]),
        |claims| claims["azp"] = json!("another"),
        |claims| claims["exp"] = json!(1_000),
        |claims| claims["iat"] = json!(claims["iat"].as_u64().unwrap() - 700),
        |claims| claims["sub"] = json!(""),
        |claims| claims["at_hash"] = json!("AAAAAAAAAAAAAAAAAAAAAA"),
        |claims| claims["budget"] = json!("lots"),
    ];
    for change in changes {
        attempt(REFUSED, &|begun| {
            let mut claims = service.claims(begun, "ada");
            change(&mut claims);
            service.vouch(&claims);
        });
    }
    for header in [
        json!({"alg": "none"}),
        json!({"alg": "HS256", "kid": "one"}),
        json!({"alg": "ES256", "kid": "one", "typ": "at+jwt"}),
    ] {
        attempt(REFUSED, &|begun| {
            service.return_token(&service.sign(&header, &service.claims(begun, "ada")));
        });
    }
    attempt(REFUSED, &|begun| {
        let header = json!({"alg": "ES256", "kid": "one"});
        service.return_token(&stranger.sign(&header, &service.claims(begun, "ada")));
    });
    for (status, body, answer) in [
        (200, "{}".to_owned(), REFUSED),
        (200, "<html>".to_owned(), REFUSED),
        (200, format!("{{\"id_token\":\"{}\"}}", "x".repeat(5 << 20)), UNAVAILABLE),
        (302, String::new(), UNAVAILABLE),
        (500, String::new(), UNAVAILABLE),
        (401, r#"{"error":"invalid_client"}"#.to_owned(), REFUSED),
    ] {
        attempt(answer, &|_| service.reply(status, &body));
    }
}

#[test]
fn callback_counts_in_the_browser_that_began_only() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = start(&upstream, &service, "");
    let issuer = service.issuer();
    let (mut attacker, mut victim) = (Browser::default(), Browser::default());
    let begun = service.begin(&gate, &mut attacker, "/bff/login");
    service.begin(&gate, &mut victim, "/bff/login");
    service.vouch(&service.claims(&begun, "attacker"));
    let callback = begun.callback(&[("code", "c1"), ("iss", &issuer)]);
    let tampered = callback.replace("state=", "state=A");
    let twice = format!("{callback}&code=c2");
    let mixed_up = begun.callback(&[("code", "c1"), ("iss", "https://evil.example")]);
    let silent = begun.callback(&[("code", "c1")]);
    let stranger = Browser::default();
    for (browser, target) in [
        (victim.clone(), &*callback),
        (stranger, &callback),
        (attacker.clone(), &tampered),
        (attacker.clone(), &twice),
        (attacker.clone(), &mixed_up),
        (attacker.clone(), &silent),
        (attacker.clone(), "/bff/login/callback"),
    ] {
        let mut browser = browser;
        let answer = browser.ask(&gate, "GET", target);
        assert_eq!(answer.status, 400, "{target}");
        assert!(answer.text().contains("login_expired"), "{target}");
        assert!(browser.cookie("tollgate").is_none(), "{target}");
    }
    assert!(service.asked().is_empty(), "no code was exchanged");
    service.reply(400, r#"{"error":"invalid_grant"}"#);
    assert_eq!(attacker.clone().ask(&gate, "GET", &callback).status, 400, "a used code");
    service.vouch(&service.claims(&begun, "attacker"));
    assert_eq!(attacker.ask(&gate, "GET", &callback).status, 303);
}

#[test]
fn sign_in_returns_to_pages_of_this_site_only() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = start(&upstream, &service, "");
    for target in [
        "https%3A%2F%2Fevil.example",
        "%2F%2Fevil.example",
        "%2F%5Cevil.example",
        "%5C%5Cevil.example",
        "%2F%09%2Fevil.example",
        "%2F%0A%2Fevil.example",
        "javascript%3Aalert(1)",
        "evil.example",
        "",
        "%2F..%2F%2Fevil.example",
        "%2Fa%2F%2Fevil.example",
        "%2F%252e%252e%2Fx",
        "%2F.%2Fx",
        "%2Fbff%2Flogin",
        "%2Fbff%2Flogout",
        "%2Fapi%2Fv1%2Fchat",
        "%2Fv1%2Fmodels",
        "%2Fmcp",
        "%2F%C3%A9",
        "%2F%zz",
        "%2Fa%20b",
        "%2Fa&return=%2Fb",
        "%2Fa&x=y",
        "%40evil.example",
    ] {
        let answer = gate.get(&format!("/bff/login?return={target}"));
        assert_eq!((answer.status, answer.value("location")), (400, None), "{target}");
        assert!(answer.text().contains("malformed_request"), "{target}");
    }
    let long = format!("/bff/login?return=%2F{}", "x".repeat(512));
    assert_eq!(gate.get(&long).status, 400);
    for target in ["%2F", "%2Fusage", "%2F%3Fa%3D%2F%2Fb", "%2F%23video", "/usage"] {
        assert_eq!(gate.get(&format!("/bff/login?return={target}")).status, 303, "{target}");
    }
}

#[test]
fn only_users_who_meet_a_rule_are_allowed() {
    let (upstream, service) = (upstream(), LoginService::start());
    let rules = ", allow = [{ claim = \"/groups\", is = \"ai\" }, { claim = \"hd\", is = \"example.com\" }]";
    let gate = start(&upstream, &service, rules);
    let issuer = service.issuer();
    for (name, value, status) in [
        ("groups", json!(["staff", "ai"]), 303),
        ("groups", json!("ai"), 303),
        ("hd", json!("example.com"), 303),
        ("groups", json!(["staff"]), 403),
        ("groups", json!([["ai"]]), 403),
        ("hd", json!("evil.example.com"), 403),
        ("other", json!("ai"), 403),
    ] {
        let mut browser = Browser::default();
        let begun = service.begin(&gate, &mut browser, "/bff/login");
        let mut claims = service.claims(&begun, "ada");
        claims[name] = value.clone();
        service.vouch(&claims);
        let callback = begun.callback(&[("code", "c1"), ("iss", &issuer)]);
        let answer = browser.ask(&gate, "GET", &callback);
        assert_eq!(answer.status, status, "{name} {value}: {}", answer.text());
        assert_eq!(browser.cookie("tollgate").is_some(), status == 303);
    }
    let mut browser = Browser::default();
    let begun = service.begin(&gate, &mut browser, "/bff/login");
    let denied = begun.callback(&[("error", "access_denied"), ("iss", &issuer)]);
    assert_eq!(browser.ask(&gate, "GET", &denied).status, 403);
}

#[test]
fn each_sign_in_opens_a_session_of_its_own() {
    let (upstream, service) = (upstream(), LoginService::start());
    let gate = start(&upstream, &service, "");
    let mut browser = Browser::default();
    let mut tab = browser.clone();
    assert_eq!(service.sign_in(&gate, &mut browser, "ada").status, 303);
    let first = browser.clone();
    // The user of this browser changes, and the earlier session ends.
    assert_eq!(service.sign_in(&gate, &mut browser, "eve").status, 303);
    assert_eq!(browser.ask(&gate, "GET", "/bff/me").json()["caller"]["name"], "eve");
    assert_eq!(first.clone().ask(&gate, "GET", "/bff/me").status, 401);
    // Another browser of the same user has a session of its own.
    assert_eq!(service.sign_in(&gate, &mut tab, "eve").status, 303);
    assert_ne!(tab.cookie("tollgate"), browser.cookie("tollgate"));
    assert_eq!(tab.ask(&gate, "POST", "/bff/logout").status, 200);
    assert_eq!(browser.ask(&gate, "GET", "/bff/me").status, 200);
}
