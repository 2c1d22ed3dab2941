//! With `access.mode = "jwt"`, a token of the app's own login is let in, however else somebody may try.

use serde_json::{Value, json};

use crate::support::login::Login;
use crate::support::{CHAT, Gate, Reply, Upstream};

#[test]
fn signed_jwt_is_accepted_and_other_credentials_are_refused_alike() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let login = Login::start();
    let gate = Gate::start(&upstream, &login.settings());
    let ada = login.bearer(&gate, &login.claims("ada", 3_600));
    let me = gate.ask("GET", "/bff/me", &[("Authorization", &ada)], "");
    assert_eq!(me.status, 200, "{}", me.text());
    assert_eq!(me.json()["caller"], json!({"kind": "subject", "name": "ada", "role": "member"}));
    assert_eq!(me.json()["balance"], Value::Null);

    let chat = |headers: &[(&str, &str)]| gate.ask("POST", "/api/v1/chat", headers, CHAT);
    for absent in [&[][..], &[("Cookie", "a=b")], &[("Cookie", "tollgate=x")]] {
        let answer = chat(absent);
        assert_eq!(answer.code(), "missing_credentials", "no cookie means anything here");
        assert_eq!(answer.value("www-authenticate"), Some("Bearer realm=\"tollgate\""));
    }
    let bare = ada.replace("Bearer ", "");
    let (two, basic) = (format!("{ada}, {ada}"), format!("Basic {bare}"));
    let of_members = format!("Bearer tg_{}", "A".repeat(43));
    for wrong in ["", "Bearer", "Bearer x", &bare, &two, &basic, &of_members] {
        let answer = chat(&[("Authorization", wrong)]);
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_credentials"));
        let challenge = "Bearer realm=\"tollgate\", error=\"invalid_token\"";
        assert_eq!(answer.value("www-authenticate"), Some(challenge));
    }
    let twice = chat(&[("Authorization", &ada), ("Authorization", &ada)]);
    assert_eq!(twice.code(), "invalid_credentials");
    assert_eq!(gate.post("/bff/login", "{\"token\":\"x\"}").code(), "not_found");
    assert_eq!((gate.get("/").status, gate.get("/bff/catalog").status), (200, 200));
    assert_eq!(upstream.requests(), 0);
    assert_eq!(chat(&[("Authorization", &ada)]).status, 200);
}

#[test]
fn forged_tokens_are_limited_by_address_without_blocking_others() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    // One whose key is another, under the same name.
    let (login, forger) = (Login::start(), Login::start());
    let settings = format!("server.trusted_proxies = [\"127.0.0.0/8\"]\n{}", login.settings());
    let gate = Gate::start(&upstream, &settings);
    let me = |from: &str, bearer: &str| {
        let headers = [("X-Forwarded-For", from), ("Authorization", bearer)];
        gate.ask("GET", "/bff/me", &headers, "")
    };
    let of = |subject| login.bearer(&gate, &login.claims(subject, 3_600));
    let (ada, bob, eve) = (of("ada"), of("bob"), of("eve"));
    assert_eq!(me("192.0.2.1", &ada).status, 200);

    // What has ended costs no signature, and shuts nobody out.
    let ended = login.bearer(&gate, &login.claims("ada", 0));
    let statuses: Vec<_> = (0..40).map(|_| me("192.0.2.1", &ended).status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429)), "{statuses:?}");
    assert_eq!(me("192.0.2.1", &eve).status, 200);

    let forged = forger.bearer(&gate, &login.claims("ada", 3_600));
    for _ in 0..30 {
        assert_eq!(me("192.0.2.2", &forged).code(), "invalid_credentials");
    }
    // Whether it is right is not looked at any more, unless it was just now.
    let unheard = me("192.0.2.2", &bob);
    assert_eq!((unheard.status, &*unheard.code()), (429, "rate_limited"));
    assert!(unheard.value("retry-after").is_some());
    assert_eq!(me("192.0.2.2", &ada).status, 200);
    assert_eq!(me("192.0.2.3", &bob).status, 200);
}

#[test]
fn jwt_times_may_be_fractional_and_invisible_characters_are_escaped() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let login = Login::start();
    let gate = Gate::start(&upstream, &login.settings());
    let mut claims = login.claims("a\u{200b}d\\a\u{feff}", 3_600);
    let end = claims["exp"].as_u64().unwrap();
    claims["exp"] = serde_json::from_str(&format!("{end}.25")).unwrap();
    claims["iat"] = serde_json::from_str(&format!("{}.75", end - 3_700)).unwrap();
    let bearer = login.bearer(&gate, &claims);
    let me = gate.ask("GET", "/bff/me", &[("Authorization", &bearer)], "");
    assert_eq!(me.status, 200, "{}", me.text());
    assert_eq!(me.json()["caller"]["name"], "a\\u{200b}d\\a\\u{feff}");
    assert_eq!(gate.ask("POST", "/api/v1/chat", &[("Authorization", &bearer)], CHAT).status, 200);
    let printed = gate.printed();
    assert!(!printed.contains('\u{200b}') && !printed.contains('\u{feff}'));
}
