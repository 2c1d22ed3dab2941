//! Links: a guest buys for exactly the amount of a link, and for no more.

use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};
use tollgate::clock::{self, Date};
use tollgate::ledger::{Role, SpendLimit};
use uuid::{NoContext, Timestamp, Uuid};

use crate::support::client::Answer;
use crate::support::fleet::Fleet;
use crate::support::login::Login;
use crate::support::members::Holder;
use crate::support::postgres::Cluster;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, VIDEO, until};

const LINKS: &str = "access.mode = \"members\"\naccess.links = true\n";

fn upstream() -> Upstream {
    Upstream::start(|received| match &*received.target {
        "/api/v1/video" => Reply::video("job-1"),
        _ => Reply::chat("hello"),
    })
}

/// Returns a UTC day, so many days from now.
fn day(ahead: u64) -> String {
    Date::from_days(Date::at(clock::wall()).days() + ahead).to_string()
}

struct Shop {
    gate: Gate,
    upstream: Upstream,
    root: Holder,
}

impl Shop {
    fn open(store: &str) -> Self {
        let upstream = upstream();
        let gate = Gate::start(&upstream, &format!("{store}\n{LINKS}"));
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        Self { gate, upstream, root }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.gate.ask(method, path, &[self.root.bearer()], &body)
    }

    fn link(&self, amount: &str, more: &Value) -> Value {
        let mut body = json!({"amount": amount, "for": "Trade fair", "until": day(30)});
        let more = more.as_object().cloned().unwrap_or_default();
        more.into_iter().for_each(|(name, value)| body[name] = value);
        let made = self.ask("POST", "/bff/links", &body);
        assert_eq!(made.status, 201, "{}", made.text());
        made.json()
    }

    fn token(&self, amount: &str) -> String {
        text(&self.link(amount, &Value::Null)["token"])
    }

    fn row(&self, id: &Value) -> Value {
        let rows = self.ask("GET", "/bff/links", &Value::Null).json()["rows"].clone();
        rows.as_array().unwrap().iter().find(|row| row["id"] == *id).expect("listed").clone()
    }

    /// Opens a link in a browser. Returns the session cookie, or the refusal.
    fn open_in_browser(&self, token: &str, cookie: Option<&str>) -> Result<String, Answer> {
        let body = json!({"token": token}).to_string();
        let mut headers = vec![("content-type", "application/json"), ("x-tollgate", "1")];
        headers.extend(cookie.map(|cookie| ("cookie", cookie)));
        let answer = self.gate.ask("POST", "/bff/login", &headers, &body);
        if answer.status != 204 {
            return Err(answer);
        }
        let cookie = answer.value("set-cookie").expect("a cookie").split(';').next().unwrap();
        Ok(cookie.to_owned())
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn buy(gate: &Gate, token: &str, path: &str, body: &str) -> Answer {
    gate.ask("POST", path, &[("authorization", &format!("Bearer {token}"))], body)
}

fn chat(gate: &Gate, token: &str) -> Answer {
    buy(gate, token, "/api/v1/chat", CHAT)
}

#[test]
fn many_buyers_at_once_spend_exactly_the_amount_of_a_link() {
    for store in STORES {
        let shop = Shop::open(&format!("{store}\nlimits.burst = 1000\nlimits.concurrent = 100"));
        let (for_chats, for_videos) = (shop.token("0.060"), shop.token("3.00"));
        let together = Barrier::new(24);
        let all = thread::scope(|scope| {
            let buyer = |at: usize| {
                let (shop, together) = (&shop, &together);
                let (path, body, token) = match at % 2 {
                    0 => ("/api/v1/chat", CHAT, &for_chats),
                    _ => ("/api/v1/video", VIDEO, &for_videos),
                };
                scope.spawn(move || {
                    together.wait();
                    let key = format!("buyer-{at}");
                    let bearer = format!("Bearer {token}");
                    let headers = [("authorization", &*bearer), ("idempotency-key", &*key)];
                    (path, shop.gate.ask("POST", path, &headers, body))
                })
            };
            let buyers: Vec<_> = (0..24).map(buyer).collect();
            buyers.into_iter().map(|buyer| buyer.join().expect("answered")).collect::<Vec<_>>()
        });
        for (path, bought) in [("/api/v1/chat", 10), ("/api/v1/video", 1)] {
            let answers = || all.iter().filter(|(of, _)| *of == path).map(|(_, answer)| answer);
            let served = answers().filter(|answer| answer.status == 200).count();
            assert_eq!(served, bought, "{store} {path}");
            let refused = answers().filter(|answer| answer.status != 200);
            assert!(refused.clone().all(|answer| answer.code() == "budget_exhausted"), "{store}");
            assert_eq!(refused.count(), 12 - bought);
        }
        assert_eq!(shop.upstream.charges().len(), 11, "{store}");
        let me = shop.gate.ask(
            "GET",
            "/bff/me",
            &[("authorization", &format!("Bearer {for_chats}"))],
            "",
        );
        let me = me.json();
        assert_eq!(
            (&me["caller"]["kind"], &me["caller"]["role"]),
            (&json!("link"), &json!("member"))
        );
        assert_eq!(me["caller"]["display_name"], "Trade fair");
        assert_eq!(me.get("may_ask"), None, "a link is worth what it is worth");
        let budget = &me["budgets"][0];
        assert_eq!((&budget["period"], &budget["left_micros"]), (&json!("ever"), &json!(0)));
    }
}

#[test]
fn link_opens_in_as_many_browsers_as_it_allows() {
    let shop = Shop::open("");
    let made = shop.link("1.00", &json!({"uses": 2}));
    let (token, id) = (text(&made["token"]), &made["link"]["id"]);
    assert!(text(&made["url"]).ends_with(&format!("/#t={token}")), "{made}");
    let program = chat(&shop.gate, &token);
    assert_eq!(program.status, 401);
    assert!(program.text().contains("works in browsers only"), "{}", program.text());

    let first = shop.open_in_browser(&token, None).expect("open");
    let again = shop.open_in_browser(&token, Some(&first)).expect("the same browser");
    assert_eq!(again, first);
    let second = shop.open_in_browser(&token, None).expect("another browser");
    assert_ne!(second, first);
    let refused = shop.open_in_browser(&token, None).expect_err("a third browser");
    assert_eq!(refused.status, 401);
    assert!(refused.text().contains("as many browsers as it allows"), "{}", refused.text());
    assert_eq!((&shop.row(id)["opened"], &shop.row(id)["uses"]), (&json!(2), &json!(2)));

    for cookie in [&first, &second] {
        let headers = [("cookie", &**cookie), ("x-tollgate", "1")];
        assert_eq!(shop.gate.ask("POST", "/api/v1/chat", &headers, CHAT).status, 200);
        let without = shop.gate.ask("POST", "/api/v1/chat", &[("cookie", cookie)], CHAT);
        assert_eq!(without.status, 403, "the header is missing");
    }
    // Both browsers spend from one amount.
    assert_eq!(shop.row(id)["spent_micros"], 12_000);
    let (_, value) = first.split_once('=').unwrap();
    assert_eq!(chat(&shop.gate, value).status, 401, "a cookie is no token for programs");
    assert!(shop.open_in_browser(value, None).is_err(), "a cookie opens no other browser");
}

#[test]
fn forged_and_revoked_links_buy_nothing() {
    for store in STORES {
        let shop = Shop::open(store);
        let made = shop.link("1.00", &json!({"may_buy": ["chat"]}));
        let (token, id) = (text(&made["token"]), &made["link"]["id"]);
        assert_eq!(chat(&shop.gate, &token).status, 200, "{store}");
        let other = buy(&shop.gate, &token, "/api/v1/video", VIDEO);
        assert_eq!((other.status, &*other.code()), (403, "model_not_allowed"), "{store}");
        let openai =
            r#"{"model":"alpha-sonnet-4.5","messages":[{"role":"user","content":"another"}]}"#;
        assert_eq!(buy(&shop.gate, &token, "/v1/chat/completions", openai).status, 200, "{store}");
        for at in [8, 20, token.len() - 2] {
            let mut forged = token.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(chat(&shop.gate, &forged).status, 401, "{store} {at}");
        }
        for text in ["tgl_", "tgl_AAAA", &format!("{token}A"), &token[..token.len() - 4]] {
            assert_eq!(chat(&shop.gate, text).code(), "invalid_credentials", "{store} {text}");
        }

        let path = format!("/bff/links/{}", text(id));
        let by_guest =
            shop.gate.ask("DELETE", &path, &[("authorization", &format!("Bearer {token}"))], "");
        assert_eq!(by_guest.status, 403, "{store}");
        assert_eq!(shop.ask("DELETE", &path, &Value::Null).status, 204, "{store}");
        let refused = chat(&shop.gate, &token);
        assert_eq!(refused.status, 401, "{store}");
        assert!(refused.text().contains("has been revoked"), "{}", refused.text());
        assert_eq!(shop.row(id)["state"], "revoked");
        assert_eq!(shop.ask("DELETE", "/bff/links/0123", &Value::Null).status, 404, "{store}");

        let log = shop.ask("GET", "/bff/admin/audit", &Value::Null);
        assert!(!log.text().contains(&token[10..]), "{}", log.text());
        let acts: Vec<_> = log.json()["rows"].as_array().unwrap().clone();
        assert_eq!(
            (&acts[0]["act"], &acts[0]["by"]),
            (&json!("link.revoke"), &json!("member:root"))
        );
        let made = format!("1.00 through {}, for Trade fair, may buy chat", day(30));
        assert_eq!((&acts[1]["act"], &acts[1]["new"]), (&json!("link.create"), &json!(made)));
        let list = shop.ask("GET", "/bff/links", &Value::Null);
        assert!(!list.text().contains(&token[16..]), "{}", list.text());
    }
}

#[test]
fn wrong_links_are_refused_with_all_their_faults() {
    let shop = Shop::open("");
    let pointers = |body: &Value| -> Vec<String> {
        let answer = shop.ask("POST", "/bff/links", body);
        assert_eq!(answer.status, 422, "{}", answer.text());
        answer.json()["errors"].as_array().unwrap().iter().map(|it| text(&it["pointer"])).collect()
    };
    assert_eq!(pointers(&json!({})), ["/amount", "/for", "/until"]);
    let past =
        json!({"amount": "0", "for": " ", "until": "2026-01-01", "uses": 0, "may_buy": [], "x": 1});
    assert_eq!(pointers(&past), ["/x", "/amount", "/for", "/until", "/may_buy", "/uses"]);
    assert_eq!(shop.ask("GET", "/bff/links", &Value::Null).json(), json!({"rows": []}));
    let asked = shop.token("1.00");
    let headers = [("authorization", &*format!("Bearer {asked}"))];
    let more = shop.gate.ask("POST", "/bff/budget-requests", &headers, r#"{"amount":"5.00"}"#);
    assert_eq!(more.code(), "not_found");
}

#[test]
fn links_sell_beside_a_login_and_not_in_open_mode() {
    let (upstream, login) = (upstream(), Login::start());
    let settings = login.settings().replace(" }", ", role_claim = \"role\" }");
    let gate = Gate::start(&upstream, &format!("{settings}\naccess.links = true"));
    let token_of = |name: &str, role: &str| {
        let mut claims = login.claims(name, 3_600);
        claims["role"] = json!(role);
        login.bearer(&gate, &claims).replace("Bearer ", "")
    };
    let admin = token_of("root", "admin");
    let body = json!({"amount": "0.006", "for": "demo", "until": day(1)}).to_string();
    let made = buy(&gate, &admin, "/bff/links", &body);
    assert_eq!(made.status, 201, "{}", made.text());
    let token = text(&made.json()["token"]);
    assert_eq!(chat(&gate, &token).status, 200);
    assert_eq!(chat(&gate, &token).code(), "budget_exhausted");
    assert_eq!(chat(&gate, &token_of("ann", "member")).status, 200, "users are served as before");

    let off = Gate::start(&upstream, "access.mode = \"members\"");
    let root = off.member_with("root", Role::Admin, SpendLimit::default());
    let refused = off.ask("POST", "/bff/links", &[root.bearer()], &body);
    assert_eq!((refused.status, &*refused.code()), (404, "not_found"));
    assert!(refused.text().contains("access.links = true"), "{}", refused.text());
    assert_eq!(chat(&off, &token).code(), "invalid_credentials");
}

#[test]
fn links_end_when_the_ledger_of_running_servers_is_renamed() {
    let upstream = upstream();
    let fleet = Fleet::start(Cluster::shared(), &upstream, LINKS, 2);
    let until_day = day(30);
    let make = ["link", "create", "--amount", "1.00", "--for", "demo", "--until", &until_day];
    let made = fleet.run(&make);
    assert_eq!(made.code, Some(0), "{made:?}");
    let (_, token) = made.stdout.trim().split_once("/#t=").expect("a fragment");
    let bearer = format!("Bearer {token}");
    let chat = |server, key: &str| {
        let headers = [("authorization", &*bearer), ("idempotency-key", key)];
        fleet.ask(server, "POST", "/api/v1/chat", &headers, CHAT)
    };
    for server in 0..2 {
        assert_eq!(chat(server, &format!("before-{server}")).status, 200);
    }
    // As a server does that notices a loss of commits.
    let lost_at = Timestamp::from_unix(NoContext, clock::wall().as_secs() + 1, 0);
    let name = format!("durable-{}", Uuid::new_v7(lost_at).simple());
    fleet.database.sql(&format!(
        "UPDATE ledger SET name = '{name}', version = version + 1;
        UPDATE members_version SET version = version + 1"
    ));
    let mut tries = 0;
    for server in 0..2 {
        until("the link has ended", || {
            tries += 1;
            let answer = chat(server, &format!("after-{tries}"));
            answer.status == 401 && answer.text().contains("ledger was restored")
        });
    }
}
