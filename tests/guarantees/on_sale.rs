//! A caller buys from the models that are sold to it, and sees no others.

mod hidden;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollgate::clock::{self, Date};
use tollgate::gateway::contract::catalog::{Catalog, Service};
use tollgate::ledger::Selection;
use uuid::Uuid;

use crate::support::client::Answer;
use crate::support::login::Login;
use crate::support::login_service::{Browser, LoginService};
use crate::support::{CHAT, Gate, Reply, Upstream, until};

const SETTINGS: &str = "limits = { requests = 10000, seconds = 1, burst = 10000 }
gateway.passthrough = [{ method = 'POST', path = '/api/v1/search', price = '0.01' }]
";
const SEARCH: &str = "/api/v1/search";
/// In every list of the tests below, something of each service is sold and something is not.
const CHATS: [&str; 2] = ["alpha-sonnet-4.5", "eta-5-mini"];
const VIDEOS: [&str; 2] = ["video-b", "video-c-2"];

fn upstream() -> Upstream {
    Upstream::start(|received| match received.target.as_str() {
        "/api/v1/video" => Reply::video(&format!("job-{}", Uuid::now_v7())),
        SEARCH => Reply::new(200, "{}").costing(10_000),
        _ => Reply::chat("hello"),
    })
}

struct Attempt {
    target: &'static str,
    media_type: &'static str,
    body: String,
    service: Service,
    model: &'static str,
}

/// Returns an order for each endpoint, dialect and model.
fn attempts() -> Vec<Attempt> {
    let json = |target, service, model, body: Value| {
        let (media_type, body) = ("application/json", body.to_string());
        Attempt { target, media_type, body, service, model }
    };
    let mut attempts = vec![
        json(SEARCH, Service::Other, SEARCH, json!({"q": "x"})),
        // The default model.
        json("/api/v1/video", Service::Video, "video-a-2", json!({"prompt": "a tide"})),
        json("/v1/videos", Service::Video, "video-a-2", json!({"prompt": "a tide"})),
    ];
    let messages = json!([{"role": "user", "content": "hello"}]);
    for model in CHATS {
        let chat = json!({"model": model, "messages": messages});
        attempts.push(json("/api/v1/chat", Service::Chat, model, chat.clone()));
        attempts.push(json("/v1/chat/completions", Service::Chat, model, chat));
        let stream = json!({"model": model, "messages": messages, "stream": true});
        attempts.push(json("/v1/chat/completions", Service::Chat, model, stream));
    }
    for model in VIDEOS {
        let video = json!({"model": model, "prompt": "a tide"});
        attempts.push(json("/api/v1/video", Service::Video, model, video.clone()));
        attempts.push(json("/v1/videos", Service::Video, model, video));
        let part = |name, value| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let body = format!("{}{}--b--\r\n", part("model", model), part("prompt", "a tide"));
        let media_type = "multipart/form-data; boundary=b";
        let service = Service::Video;
        attempts.push(Attempt { target: "/v1/videos", media_type, body, service, model });
    }
    attempts
}

/// Sends all orders, and asserts which of them are sold.
fn assert_buys(gate: &Gate, upstream: &Upstream, headers: &[(&str, &str)], may_buy: &str) {
    let selection = Selection::parse(may_buy);
    let may = |service, model: &str| selection.contains(service, model);
    let has_cookie = headers.iter().any(|(name, _)| *name == "cookie");
    for Attempt { target, media_type, body, service, model } in attempts() {
        // A form needs credentials in a header, also where they are ignored.
        if has_cookie && media_type.starts_with("multipart/") {
            continue;
        }
        let (before, key) = (upstream.purchases(), Uuid::now_v7().to_string());
        let more = [("content-type", media_type), ("idempotency-key", &key)];
        let token = headers.is_empty().then_some(("authorization", "Bearer sk-any"));
        let headers: Vec<_> = headers.iter().copied().chain(more).chain(token).collect();
        let answer = gate.ask("POST", target, &headers, &body);
        let about = format!("{may_buy}: {target} {model}: {}", answer.text());
        if may(service, model) {
            assert_eq!((answer.status, upstream.purchases()), (200, before + 1), "{about}");
            continue;
        }
        assert_eq!((answer.status, &*answer.code()), (403, "model_not_allowed"), "{about}");
        assert_eq!(answer.charged().as_deref(), Some("no"), "{about}");
        assert_eq!(upstream.purchases(), before, "{about}");
        assert_names_allowed(&answer, service, may, &about);
    }
}

/// Asserts that a refusal names the models that the caller may buy, and no others.
fn assert_names_allowed(
    answer: &Answer,
    service: Service,
    may: impl Fn(Service, &str) -> bool,
    about: &str,
) {
    let document = answer.json();
    let document = document.get("error").unwrap_or(&document);
    if service == Service::Other {
        assert!(document["errors"].is_null(), "{about}");
        return;
    }
    let error = &document["errors"][0];
    assert_eq!(
        (&error["pointer"], &error["code"]),
        (&json!("/model"), &json!("model_not_allowed"))
    );
    let detail = error["detail"].as_str().expect("text");
    let (allowed, refused) = detail.split_once(", not ").unwrap_or(("", detail));
    let words: BTreeSet<_> = allowed.split([' ', ',']).collect();
    for id in ids(service) {
        assert_eq!(words.contains(&*id), may(service, &id), "{about}: {id} in {detail}");
    }
    assert!(!refused.is_empty());
}

fn ids(service: Service) -> Vec<String> {
    let Catalog { chat, video } = Catalog::published();
    match service {
        Service::Chat => chat.into_iter().map(|model| model.id.into_owned()).collect(),
        Service::Video => video.into_iter().map(|model| model.id.into_owned()).collect(),
        Service::Other => Vec::new(),
    }
}

/// Asserts which models the caller sees in each list.
fn assert_sees(gate: &Gate, headers: &[(&str, &str)], may_buy: &str, is_private: bool) {
    let selection = Selection::parse(may_buy);
    let [catalog, list] = ["/bff/catalog", "/v1/models"].map(|path| {
        let answer = gate.ask("GET", path, headers, "");
        let vary = ("vary".to_owned(), "authorization, cookie".to_owned());
        assert!(answer.headers.contains(&vary), "{path}: {:?}", answer.headers);
        let is_cached = answer.value("cache-control") != Some("no-store");
        assert!(!(is_private && is_cached), "{path}: {may_buy}");
        answer.json()
    });
    let listed = |list: &Value| -> Vec<String> {
        let rows = list.as_array().expect("a list").iter();
        rows.map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    };
    let mut all = Vec::new();
    for service in [Service::Chat, Service::Video] {
        let sold = ids(service).into_iter().filter(|id| selection.contains(service, id));
        let sold: Vec<_> = sold.collect();
        assert_eq!(listed(&catalog[service.name()]), sold, "{may_buy}");
        let preset = catalog["defaults"][format!("{}_model", service.name())].as_str();
        assert!(preset.is_none_or(|id| sold.iter().any(|sold| sold == id)), "{preset:?}");
        assert_eq!(preset.is_none(), sold.is_empty(), "{may_buy}");
        for id in ids(service) {
            let one = gate.ask("GET", &format!("/v1/models/{id}"), headers, "");
            assert_eq!(one.status == 200, sold.contains(&id), "{may_buy}: {id}");
        }
        all.extend(sold);
    }
    assert_eq!(listed(&list["data"]), all, "{may_buy}");
}

#[test]
fn anonymous_caller_buys_what_the_settings_allow() {
    for (setting, may_buy) in [
        ("", "chat video other"),
        ("access.may_buy = [\"chat\"]", "chat"),
        (
            "access.may_buy = [\"eta-5-mini\", \"video-b\", \"/api/v1/search\"]",
            "eta-5-mini video-b /api/v1/search",
        ),
        ("access.may_buy = []", ""),
    ] {
        let upstream = upstream();
        let gate = Gate::start(&upstream, &format!("{SETTINGS}{setting}"));
        assert_buys(&gate, &upstream, &[], may_buy);
        // In open mode, credentials mean nothing.
        for headers in [&[][..], &[("authorization", "Bearer tg_x")]] {
            assert_sees(&gate, headers, may_buy, false);
        }
    }
}

#[test]
fn member_buys_what_its_own_rule_allows_by_token_and_by_cookie() {
    let upstream = upstream();
    let settings = "access = { mode = \"members\", may_buy = [\"eta-5-mini\", \"video\"] }";
    let gate = Gate::start(&upstream, &format!("{SETTINGS}{settings}"));
    let usual = "eta-5-mini video";
    assert_sees(&gate, &[], usual, false);
    assert_sees(&gate, &[("authorization", "Bearer tg_unknown")], usual, false);
    assert_eq!(gate.chat().code(), "missing_credentials");
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| gate.member(name));
    let knows = |headers: &[(&str, &str)], models: usize| {
        until("the gate knows the rule", || {
            let list = gate.ask("GET", "/v1/models", headers, "").json();
            list["data"].as_array().is_some_and(|list| list.len() == models)
        });
    };
    bob.may_buy("chat video-c-2");
    eve.may_buy("chat video other");
    knows(&[bob.bearer()], 13);
    knows(&[eve.bearer()], 20);
    for (holder, may_buy) in [(&ann, usual), (&bob, "chat video-c-2"), (&eve, "chat video other")] {
        assert_buys(&gate, &upstream, &[holder.bearer()], may_buy);
        assert_sees(&gate, &[holder.bearer()], may_buy, true);
        let body = json!({"token": holder.token}).to_string();
        let login = gate.post("/bff/login", &body);
        let cookie = login.value("set-cookie").expect("a session").split(';').next();
        let cookie = [("cookie", cookie.expect("a value")), ("x-tollgate", "1")];
        assert_buys(&gate, &upstream, &cookie, may_buy);
        assert_sees(&gate, &cookie, may_buy, true);
        gate.ask("POST", "/bff/logout", &cookie, "");
        assert_sees(&gate, &cookie, usual, false);
    }
}

#[test]
fn subject_buys_what_its_token_allows() {
    let (upstream, login) = (upstream(), Login::start());
    let settings = format!("{SETTINGS}access.may_buy = [\"chat\"]\n{}", login.settings());
    let gate = Gate::start(&upstream, &settings);
    for (number, (claim, may_buy)) in [
        (Value::Null, "chat"),
        (json!("video-b other"), "video-b other"),
        (json!(["eta-5-mini", "video", "no-such-model"]), "eta-5-mini video"),
        (json!([]), ""),
    ]
    .into_iter()
    .enumerate()
    {
        let mut claims = login.claims(&format!("user-{number}"), 3_600);
        if !claim.is_null() {
            claims["may_buy"] = claim;
        }
        let bearer = login.bearer(&gate, &claims);
        let headers = [("authorization", bearer.as_str())];
        assert_buys(&gate, &upstream, &headers, may_buy);
        assert_sees(&gate, &headers, may_buy, true);
    }
    let mut claims = login.claims("eve", 3_600);
    claims["may_buy"] = json!(7);
    let bearer = login.bearer(&gate, &claims);
    let answer = gate.ask("POST", "/api/v1/chat", &[("authorization", &bearer)], CHAT);
    assert_eq!(answer.code(), "invalid_credentials", "an unreadable rule allows nothing");
}

#[test]
fn user_of_a_login_service_buys_what_its_claim_allows_by_cookie_and_by_own_token() {
    let (upstream, service) = (upstream(), LoginService::start());
    let more = ", may_buy_claim = \"may_buy\"";
    let settings = format!("{SETTINGS}access.may_buy = [\"chat\"]\n{}", service.settings(more));
    let gate = Gate::start(&upstream, &settings);
    let tomorrow = Date::from_days(Date::at(clock::wall()).days() + 1).to_string();
    for (user, claim, may_buy) in
        [("ann", Value::Null, "chat"), ("bob", json!("video-b other"), "video-b other")]
    {
        let mut browser = Browser::default();
        let begun = service.begin(&gate, &mut browser, "/bff/login");
        let mut claims = service.claims(&begun, user);
        if !claim.is_null() {
            claims["may_buy"] = claim;
        }
        service.vouch(&claims);
        let callback = begun.callback(&[("code", "c1"), ("iss", &service.issuer())]);
        assert_eq!(browser.ask(&gate, "GET", &callback).status, 303);
        let cookie = format!("tollgate={}", browser.cookie("tollgate").expect("a session"));
        let cookie = [("cookie", cookie.as_str()), ("x-tollgate", "1")];
        assert_buys(&gate, &upstream, &cookie, may_buy);
        assert_sees(&gate, &cookie, may_buy, true);
        let wanted = json!({"name": "laptop", "until": tomorrow}).to_string();
        let made = gate.ask("POST", "/bff/tokens", &cookie, &wanted).json();
        let bearer = format!("Bearer {}", made["token"].as_str().expect("a token"));
        let headers = [("authorization", bearer.as_str())];
        assert_buys(&gate, &upstream, &headers, may_buy);
        assert_sees(&gate, &headers, may_buy, true);
    }
}

#[test]
fn purchase_is_replayed_after_its_model_was_taken_from_the_caller() {
    let upstream = upstream();
    let gate = Gate::start(&upstream, &format!("{SETTINGS}access.mode = \"members\""));
    let ann = gate.member("ann");
    let chat = |key: &str| {
        gate.ask("POST", "/api/v1/chat", &[ann.bearer(), ("idempotency-key", key)], CHAT)
    };
    assert_eq!(chat("one").status, 200);
    ann.may_buy("video");
    until("the gate knows the rule", || chat(&Uuid::now_v7().to_string()).status == 403);
    let bought = upstream.purchases();
    let again = chat("one");
    assert_eq!((again.status, again.is_replay()), (200, true), "{}", again.text());
    let other = [ann.bearer(), ("idempotency-key", "two"), ("tollgate-replay", "only")];
    assert_eq!(gate.ask("POST", "/api/v1/chat", &other, CHAT).code(), "purchase_not_found");
    assert_eq!((chat("two").code().as_str(), upstream.purchases()), ("model_not_allowed", bought));
}
