//! A member's login: the cookie, what it may do, and its end.

use super::MEMBERS;
use crate::support::client::Answer;
use crate::support::members::Holder;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, until};

const MEANT: (&str, &str) = ("X-Tollgate", "1");

fn gate(settings: &str) -> (Upstream, Gate) {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, &format!("{settings}\n{MEMBERS}"));
    (upstream, gate)
}

fn log_in(gate: &Gate, holder: &Holder, headers: &[(&str, &str)]) -> Answer {
    // As a page sends it: with the cookie of another login, it is demanded.
    let headers: Vec<_> = headers.iter().copied().chain([("X-Tollgate", "1")]).collect();
    gate.ask("POST", "/bff/login", &headers, &format!("{{\"token\":\"{}\"}}", holder.token))
}

/// The cookie as a browser sends it back.
fn cookie(answer: &Answer) -> String {
    assert_eq!(answer.status, 204, "{}", answer.text());
    let set = answer.value("set-cookie").expect("a cookie");
    set.split(';').next().unwrap().to_owned()
}

fn me(gate: &Gate, cookie: &str) -> Answer {
    gate.ask("GET", "/bff/me", &[("Cookie", cookie)], "")
}

#[test]
fn cookie_buys_only_with_the_csrf_header() {
    for store in STORES {
        let (upstream, gate) = gate(store);
        let ann = gate.member("ann");
        let answer = log_in(&gate, &ann, &[]);
        let cookie = cookie(&answer);
        let value = cookie.strip_prefix("tollgate=").expect("on loopback, no prefix");
        assert_eq!(value.len(), 43, "256 bits");
        let set = answer.value("set-cookie").unwrap();
        assert!(set.ends_with("; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict"), "{set}");
        assert_eq!(answer.value("cache-control"), Some("no-store"));
        assert_eq!(me(&gate, &cookie).json()["caller"]["name"], "ann");
        assert_eq!(me(&gate, &format!("a=b; {cookie}; c=d")).status, 200);

        for unmeant in [&[][..], &[("X-Tollgate", "true")], &[MEANT, MEANT]] {
            let headers = [unmeant, &[("Cookie", &*cookie)]].concat();
            let refused = gate.ask("POST", "/api/v1/chat", &headers, CHAT);
            assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"));
            assert!(refused.text().contains("X-Tollgate: 1"), "{}", refused.text());
        }
        assert_eq!(upstream.requests(), 0);
        let bought = gate.ask("POST", "/api/v1/chat", &[MEANT, ("Cookie", &cookie)], CHAT);
        assert_eq!((bought.status, upstream.requests()), (200, 1));

        // A token that is wrong is not made good by a cookie, nor one cookie by another.
        let both = [MEANT, ("Cookie", &*cookie), ("Authorization", "Bearer tg_wrong")];
        assert_eq!(gate.ask("POST", "/api/v1/chat", &both, CHAT).code(), "invalid_credentials");
        let several = [("Cookie", &*cookie), ("Cookie", &*cookie)];
        assert_eq!(gate.ask("GET", "/bff/me", &several, "").code(), "invalid_credentials");
        assert_eq!(me(&gate, &format!("{cookie}x")).code(), "invalid_credentials");
        let as_token = format!("Bearer {value}");
        let as_token = gate.ask("GET", "/bff/me", &[("Authorization", &as_token)], "");
        assert_eq!(as_token.status, 401, "a cookie is no token");
        assert_eq!(me(&gate, &format!("tollgate={}", ann.token)).status, 401, "nor back");
        assert_eq!(upstream.requests(), 1);
    }
}

#[test]
fn logout_ends_only_its_own_session() {
    let (_upstream, gate) = gate("");
    let ann = gate.member("ann");
    let (here, there) = (cookie(&log_in(&gate, &ann, &[])), cookie(&log_in(&gate, &ann, &[])));
    let unmeant = gate.ask("POST", "/bff/logout", &[("Cookie", &here)], "");
    assert_eq!((unmeant.status, me(&gate, &here).status), (403, 200));
    let answer = gate.ask("POST", "/bff/logout", &[MEANT, ("Cookie", &here)], "");
    assert_eq!(answer.status, 204);
    let cleared = "tollgate=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict";
    assert_eq!(answer.value("set-cookie"), Some(cleared));
    assert_eq!(me(&gate, &here).code(), "invalid_credentials");
    assert_eq!(me(&gate, &there).status, 200);
    assert_eq!(gate.ask("GET", "/bff/me", &[ann.bearer()], "").status, 200);
    let again = gate.ask("POST", "/bff/logout", &[MEANT, ("Cookie", &here)], "");
    assert_eq!(again.status, 204, "who is out may go again");
    assert_eq!(gate.post("/bff/logout", "").status, 204);
}

#[test]
fn login_always_starts_a_new_session() {
    let (_upstream, gate) = gate("");
    let (ann, bob) = (gate.member("ann"), gate.member("bob"));
    let planted = format!("tollgate={}", "A".repeat(43));
    let first = cookie(&log_in(&gate, &ann, &[("Cookie", &planted)]));
    assert_ne!(first, planted);
    assert_eq!(me(&gate, &planted).status, 401);
    let second = cookie(&log_in(&gate, &bob, &[("Cookie", &first)]));
    assert_ne!(first, second);
    assert_eq!(me(&gate, &second).json()["caller"]["name"], "bob");
    assert_eq!(me(&gate, &first).status, 401, "the browser is bob's now");
    let unasked = format!("{{\"token\":\"{}\"}}", ann.token);
    let swapped = gate.ask("POST", "/bff/login", &[("Cookie", &second)], &unasked);
    assert_eq!(swapped.code(), "forbidden", "another page cannot end a login by opening one");
    assert_eq!(me(&gate, &second).json()["caller"]["name"], "bob");
}

#[test]
fn cookie_ends_with_its_members_token() {
    let (_upstream, gate) = gate("");
    let (mut ann, bob) = (gate.member("ann"), gate.member("bob"));
    let (anns, bobs) = (cookie(&log_in(&gate, &ann, &[])), cookie(&log_in(&gate, &bob, &[])));
    ann.rotate(&gate);
    bob.revoke();
    for cookie in [&anns, &bobs] {
        until("it is over", || me(&gate, cookie).status == 401);
    }
    assert_eq!(log_in(&gate, &bob, &[]).code(), "invalid_credentials");
    assert_eq!(me(&gate, &cookie(&log_in(&gate, &ann, &[]))).json()["caller"]["name"], "ann");
}

#[test]
fn cookie_is_secure_over_https_and_refused_over_plain_http() {
    const PROTO: &str = "X-Forwarded-Proto";
    let settings = "server.trusted_proxies = [\"127.0.0.1/32\"]\nserver.hosts = [\"chat.example\"]";
    let (_upstream, gate) = gate(settings);
    let ann = gate.member("ann");
    let host = ("Host", "chat.example");
    for https in [(PROTO, "https"), ("Forwarded", "for=203.0.113.9;proto=https")] {
        let answer = log_in(&gate, &ann, &[host, https]);
        let cookie = cookie(&answer);
        assert!(cookie.starts_with("__Host-Http-tollgate="), "{cookie}");
        let set = answer.value("set-cookie").unwrap();
        let attributes = "; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict; Secure";
        assert!(set.ends_with(attributes) && !set.contains("Domain"), "{set}");
        let ask = |way| gate.ask("GET", "/bff/me", &[host, way, ("Cookie", &*cookie)], "").code();
        assert_eq!(ask(https), "");
        assert_eq!(ask((PROTO, "http")), "missing_credentials", "it means nothing there");
        let out = gate.ask("POST", "/bff/logout", &[host, https, MEANT, ("Cookie", &cookie)], "");
        assert!(out.value("set-cookie").unwrap().starts_with("__Host-Http-tollgate=;"));
        assert_eq!(ask(https), "invalid_credentials");
    }
    for plain in [
        &[host][..],
        &[host, (PROTO, "http")],
        &[host, (PROTO, "https, http")],
        &[host, (PROTO, "https"), ("Forwarded", "proto=http")],
        &[("X-Forwarded-For", "203.0.113.9")],
    ] {
        let refused = log_in(&gate, &ann, plain);
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{plain:?}");
        assert!(refused.text().contains("https"), "{}", refused.text());
        assert_eq!(refused.value("set-cookie"), None);
    }
}

#[test]
fn untrusted_forwarded_proto_is_ignored() {
    let (_upstream, gate) = gate("server.hosts = [\"chat.example\"]");
    let ann = gate.member("ann");
    for headers in [
        &[("X-Forwarded-Proto", "https")][..],
        &[("Host", "chat.example")],
        &[("Host", "chat.example"), ("X-Forwarded-Proto", "https")],
    ] {
        let refused = log_in(&gate, &ann, headers);
        assert_eq!((refused.status, refused.value("set-cookie")), (403, None), "{headers:?}");
    }
}

#[test]
fn login_takes_one_token_as_json() {
    let (_upstream, gate) = gate("");
    let large = format!("{{\"token\":\"{}\"}}", "x".repeat(5_000));
    for (body, status, code) in [
        ("{\"token\":\"tg_wrong\"}", 401, "invalid_credentials"),
        ("{\"token\":\"\"}", 401, "invalid_credentials"),
        ("{\"token\":7}", 422, "invalid_request"),
        ("{}", 422, "invalid_request"),
        ("{\"token\":\"tg_a\",\"token\":\"tg_b\"}", 400, "malformed_json"),
        ("tg_a", 400, "malformed_json"),
        (&large, 413, "payload_too_large"),
    ] {
        let answer = gate.post("/bff/login", body);
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{body}");
        assert_eq!(answer.value("set-cookie"), None);
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(gate.ask("POST", "/bff/login", &form, "token=tg_a").status, 415);
    let elsewhere = [("Origin", "https://evil.example")];
    assert_eq!(gate.ask("POST", "/bff/login", &elsewhere, "{}").status, 403);
    assert_eq!(gate.get("/bff/login").status, 405);
}

#[test]
fn frequent_logins_limit_only_their_member() {
    let limits = "limits = { requests = 1, seconds = 3600, burst = 3, concurrent = 9 }";
    let (_upstream, gate) = gate(limits);
    let (ann, bob) = (gate.member("ann"), gate.member("bob"));
    for _ in 0..3 {
        assert_eq!(log_in(&gate, &ann, &[]).status, 204);
    }
    let refused = log_in(&gate, &ann, &[]);
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    let wait: u64 = refused.value("retry-after").unwrap().parse().unwrap();
    assert!((1..=3_600).contains(&wait), "{wait}");
    assert_eq!(refused.value("set-cookie"), None);
    assert_eq!(log_in(&gate, &bob, &[]).status, 204);
    let (name, bearer) = ann.bearer();
    let bought = gate.ask("POST", "/api/v1/chat", &[(name, bearer)], CHAT);
    assert_eq!(bought.status, 200, "what she may buy is another allowance");
}
