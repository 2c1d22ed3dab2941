//! Users of a login service at several servers.

use serde_json::json;

use crate::support::client::Answer;
use crate::support::fleet::Fleet;
use crate::support::login_service::{Begun, LoginService};
use crate::support::postgres::Cluster;
use crate::support::{CHAT, Reply, Upstream, until};

const SECRET: &str = "a secret of 0123456789abcdef0123456789";

#[test]
fn sign_in_begun_at_one_server_counts_and_ends_at_all() {
    let (upstream, service) = (Upstream::start(|_| Reply::chat("hello")), LoginService::start());
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, &service.settings(""), 0);
    for _ in 0..2 {
        fleet.add_with(&[("TOLLGATE_SECRET", SECRET)]);
    }
    let cookie = |answer: &Answer| {
        let line = answer.value("set-cookie").unwrap().to_owned();
        line.split(';').next().unwrap().to_owned()
    };
    let begun = fleet.ask(0, "GET", "/bff/login", &[], "");
    assert_eq!(begun.status, 303, "{}", begun.text());
    let pending = cookie(&begun);
    let begun = Begun { address: begun.value("location").unwrap().parse().unwrap() };
    service.vouch(&service.claims(&begun, "ada"));
    let callback = begun.callback(&[("code", "c1"), ("iss", &service.issuer())]);
    let signed_in = fleet.ask(1, "GET", &callback, &[("cookie", &pending)], "");
    assert_eq!(signed_in.status, 303, "{}", signed_in.text());
    let session = cookie(&signed_in);

    let own = [("cookie", &*session), ("x-tollgate", "1"), ("content-type", "application/json")];
    let today = tollgate::clock::Date::at(tollgate::clock::wall()).days();
    let last = tollgate::clock::Date::from_days(today + 2).to_string();
    let wanted = json!({"name": "a", "until": last, "budget": {"day": "0.007"}}).to_string();
    let made = fleet.ask(0, "POST", "/bff/tokens", &own, &wanted);
    assert_eq!(made.status, 201, "{}", made.text());
    let bearer = format!("Bearer {}", made.json()["token"].as_str().unwrap());
    let buy = |server, words: &str| {
        let body = CHAT.replace("hello", words);
        fleet.ask(server, "POST", "/api/v1/chat", &[("authorization", &bearer)], &body).status
    };
    // Another server knows the token at once, and shares its budget.
    assert_eq!((buy(1, "one"), buy(0, "two")), (200, 402));

    let issuer = service.issuer();
    let revoke = ["member", "revoke", "--subject", &issuer, "ada"];
    let ended = fleet.run_with(&revoke, &[("TOLLGATE_SECRET", SECRET)]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for server in 0..2 {
        until("the session and the token have ended", || {
            let ask = |headers: &[(&str, &str)]| fleet.ask(server, "GET", "/bff/me", headers, "");
            ask(&[("cookie", &session)]).status == 401
                && ask(&[("authorization", &bearer)]).status == 401
        });
    }
}

#[test]
fn sign_out_at_one_server_ends_the_session_at_the_other() {
    let (upstream, service) = (Upstream::start(|_| Reply::chat("hello")), LoginService::start());
    let mut fleet = Fleet::start(Cluster::shared(), &upstream, &service.settings(""), 0);
    for _ in 0..2 {
        fleet.add_with(&[("TOLLGATE_SECRET", SECRET)]);
    }
    let begun = fleet.ask(0, "GET", "/bff/login", &[], "");
    let pending = begun.value("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let begun = Begun { address: begun.value("location").unwrap().parse().unwrap() };
    service.vouch(&service.claims(&begun, "ada"));
    let callback = begun.callback(&[("code", "c1"), ("iss", &service.issuer())]);
    let signed_in = fleet.ask(0, "GET", &callback, &[("cookie", &pending)], "");
    let session = signed_in.value("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let own = [("cookie", &*session), ("x-tollgate", "1")];
    assert_eq!(fleet.ask(1, "GET", "/bff/me", &own, "").status, 200);
    assert_eq!(fleet.ask(1, "POST", "/bff/logout", &own, "").status, 200);
    until("the session has ended", || fleet.ask(0, "GET", "/bff/me", &own, "").status == 401);
}
