//! A member asks for more budget; an admin grants or declines it, once.

use serde_json::json;
use tollgate::clock::{self, Date};
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Period, Role, SpendLimit};

use super::MEMBERS;
use crate::support::login_service::{Browser, LoginService};
use crate::support::members::SECRET;
use crate::support::process;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream};

const ASK: &str = "/bff/budget-requests";
const LIST: &str = "/bff/admin/budget-requests";

fn gate(settings: &str) -> (Upstream, Gate) {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, settings);
    (upstream, gate)
}

/// Grants an amount until tomorrow.
fn grant(amount: &str) -> String {
    let tomorrow = Date::from_days(Date::at(clock::wall()).days() + 1);
    let Date { year, month, day } = tomorrow;
    format!(r#"{{"grant": "{amount}", "until": "{year:04}-{month:02}-{day:02}"}}"#)
}

#[test]
fn granted_request_lets_the_member_buy_again() {
    for store in STORES {
        let (_upstream, gate) = gate(&format!("{store}\n{MEMBERS}"));
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        let ann = gate.member_with("ann", Role::Member, SpendLimit::of(Period::Day, Usd::mills(6)));
        let chat = || gate.ask("POST", "/api/v1/chat", &[ann.bearer()], CHAT);
        assert_eq!((chat().status, &*chat().code()), (200, "budget_exhausted"), "{store}");
        assert_eq!(gate.ask("GET", "/bff/me", &[ann.bearer()], "").json()["may_ask"], true);
        let ask = |body: &str| gate.ask("POST", ASK, &[ann.bearer()], body);
        let first = ask(r#"{"amount": "1.00", "reason": "a film"}"#);
        assert_eq!(first.status, 201, "{}", first.text());
        let asked = ask(r#"{"amount": "0.012", "reason": "two chats"}"#).json();
        assert_eq!(
            (&asked["caller"], &asked["amount_micros"], &asked["reason"]),
            (&json!("member:ann"), &json!(12_000), &json!("two chats"))
        );
        let list = gate.ask("GET", LIST, &[root.bearer()], "").json();
        assert_eq!(list, json!({"rows": [asked]}), "{store}");

        let answer = |id: &serde_json::Value, body: &str| {
            gate.ask("POST", &format!("{LIST}/{id}"), &[root.bearer()], body)
        };
        assert_eq!(answer(&first.json()["id"], &grant("0.006")).status, 404, "it was replaced");
        assert_eq!(answer(&asked["id"], &grant("0.006")).status, 204, "{store}");
        assert_eq!(answer(&asked["id"], &grant("0.006")).status, 404, "answered once");
        assert_eq!((chat().status, &*chat().code()), (200, "budget_exhausted"), "{store}");

        let again = ask(r#"{"amount": "5", "reason": "more"}"#).json();
        assert_eq!(answer(&again["id"], r#"{"decline": true}"#).status, 204);
        assert_eq!(chat().code(), "budget_exhausted");
        assert_eq!(gate.ask("GET", LIST, &[root.bearer()], "").json(), json!({"rows": []}));
        let log = gate.ask("GET", "/bff/admin/audit", &[root.bearer()], "").json();
        let [declined, granted] = [&log["rows"][0], &log["rows"][1]];
        assert_eq!([&declined["act"], &declined["old"]], ["request.decline", "5.00"]);
        assert_eq!(
            [&granted["act"], &granted["by"], &granted["caller"], &granted["old"]],
            ["request.grant", "member:root", "member:ann", "0.012"]
        );
    }
}

#[test]
fn user_of_a_login_service_asks_and_its_admin_grants() {
    for store in STORES {
        let (upstream, service) =
            (Upstream::start(|_| Reply::chat("hello")), LoginService::start());
        let budget = "budget.caller = { day = \"0.006\" }";
        let gate = Gate::start(&upstream, &format!("{store}\n{budget}\n{}", service.settings("")));
        let (mut ada, mut root) = (Browser::default(), Browser::default());
        assert_eq!(service.sign_in(&gate, &mut ada, "ada").status, 303);
        let begun = service.begin(&gate, &mut root, "/bff/login");
        let mut claims = service.claims(&begun, "root");
        claims["role"] = json!("admin");
        service.vouch(&claims);
        let callback = begun.callback(&[("code", "c1"), ("iss", &service.issuer())]);
        assert_eq!(root.ask(&gate, "GET", &callback).status, 303);
        let send = |browser: &mut Browser, target: &str, body: &str| {
            let json = [("content-type", "application/json")];
            browser.send(&gate, "POST", target, &json, body)
        };
        assert_eq!(send(&mut ada, "/api/v1/chat", CHAT).status, 200, "{store}");
        let other = CHAT.replace("hello", "another");
        assert_eq!(send(&mut ada, "/api/v1/chat", &other).code(), "budget_exhausted");
        assert_eq!(ada.ask(&gate, "GET", "/bff/me").json()["may_ask"], true);
        let asked = send(&mut ada, ASK, r#"{"amount": "1.00", "reason": "a film"}"#);
        assert_eq!((asked.status, &asked.json()["caller"]), (201, &json!("subject:ada")));
        assert_eq!(root.ask(&gate, "GET", LIST).json(), json!({"rows": [asked.json()]}));
        let path = format!("{LIST}/{}", asked.json()["id"]);
        assert_eq!(send(&mut ada, &path, &grant("1.00")).code(), "forbidden");
        assert_eq!(send(&mut root, &path, &grant("0.006")).status, 204);
        assert_eq!(send(&mut ada, "/api/v1/chat", &other).status, 200, "{store}");
        let me = ada.ask(&gate, "GET", "/bff/me").json();
        assert_eq!(me["budgets"][0]["extra"], "0.006000", "{me}");
        let log = root.ask(&gate, "GET", "/bff/admin/audit").json();
        let latest = &log["rows"][0];
        assert_eq!(
            [&latest["act"], &latest["by"], &latest["caller"], &latest["old"]],
            ["request.grant", "subject:root", "subject:ada", "1.00"]
        );
    }
}

#[test]
fn command_line_raises_a_user_of_a_login_service_and_ends_it() {
    let (upstream, service) = (Upstream::start(|_| Reply::chat("hello")), LoginService::start());
    let budget = "store.url = \"sqlite:ledger.db\"\nbudget.caller = { day = \"0.006\" }";
    let gate = Gate::binary(&upstream, &format!("{budget}\n{}", service.settings("")), &[]);
    let mut ada = Browser::default();
    assert_eq!(service.sign_in(&gate, &mut ada, "ada").status, 303);
    let limit = |browser: &mut Browser| {
        browser.ask(&gate, "GET", "/bff/me").json()["budgets"][0]["limit"].clone()
    };
    let member = |arguments: &[&str]| {
        let arguments = [&["member"], arguments].concat();
        process::run(gate.folder(), &arguments, &[("TOLLGATE_SECRET", SECRET)])
    };
    assert_eq!(limit(&mut ada), "0.006000");
    let of_ada = |more: &[&str]| member(&[&["update", "subject:ada"], more].concat());
    let refusals = [
        of_ada(&["--role", "admin"]),
        of_ada(&["--budget", "5/day", "--no-extra"]),
        of_ada(&["ann", "--no-extra"]),
        member(&["update", "subject:", "--no-extra"]),
        member(&["add", "subject:ada"]),
        member(&["rotate", "subject:ada"]),
    ];
    for refused in refusals {
        assert_eq!((refused.code, &*refused.stdout), (Some(2), ""), "{}", refused.stderr);
    }
    let raised = of_ada(&["--extra", "0.006", "--until", "2199-12-31"]);
    assert_eq!(raised.code, Some(0), "{}", raised.stderr);
    let words = "raised subject:ada: $0.006 extra through 2199-12-31\n";
    assert!(raised.stderr.ends_with(words), "{}", raised.stderr);
    assert_eq!(limit(&mut ada), "0.012000");
    let ended = of_ada(&["--no-extra"]);
    assert!(ended.stderr.ends_with("updated subject:ada: no extra\n"), "{}", ended.stderr);
    assert_eq!(limit(&mut ada), "0.006000");
}

#[test]
fn wrong_request_or_answer_is_refused() {
    let (_upstream, gate) = gate(MEMBERS);
    let (root, ann) =
        (gate.member_with("root", Role::Admin, SpendLimit::default()), gate.member("ann"));
    let long = format!(r#"{{"amount": "5", "reason": "{}"}}"#, "x".repeat(501));
    for (body, fault) in [
        ("{}", "/amount required"),
        (r#"{"amount": "5", "reason": null}"#, "/reason wrong_type"),
        (r#"{"amount": "0", "reason": "x"}"#, "/amount bad_value"),
        (r#"{"amount": 5, "reason": "x"}"#, "/amount wrong_type"),
        (r#"{"amount": "5", "reason": " "}"#, "/reason bad_value"),
        (r#"{"amount": "5", "reason": "a\nb"}"#, "/reason bad_value"),
        (&long, "/reason bad_value"),
        (r#"{"amount": "5", "reason": "x", "caller": "bob"}"#, "/caller unknown_field"),
    ] {
        let refused = gate.ask("POST", ASK, &[ann.bearer()], body);
        let error = &refused.json()["errors"][0];
        let found = [&error["pointer"], &error["code"]].map(|text| text.as_str().unwrap_or("-"));
        assert_eq!((refused.status, found.join(" ").as_str()), (422, fault), "{body}");
    }
    let body = r#"{"amount": "5", "reason": "x"}"#;
    assert_eq!(gate.ask("POST", ASK, &[], body).code(), "missing_credentials");
    let asked = gate.ask("POST", ASK, &[ann.bearer()], body).json();
    let path = format!("{LIST}/{}", asked["id"]);
    let both = grant("5").replace('}', r#", "decline": true}"#);
    for (body, fault) in [
        ("{}", "/grant required"),
        (r#"{"decline": false}"#, "/decline bad_value"),
        (r#"{"decline": 1}"#, "/decline wrong_type"),
        (&both, "/decline bad_value"),
        (r#"{"grant": "5"}"#, "/until required"),
        (r#"{"grant": "5", "until": "2026-01-31"}"#, "/until bad_value"),
    ] {
        let refused = gate.ask("POST", &path, &[root.bearer()], body);
        let error = &refused.json()["errors"][0];
        let found = [&error["pointer"], &error["code"]].map(|text| text.as_str().unwrap_or("-"));
        assert_eq!((refused.status, found.join(" ").as_str()), (422, fault), "{body}");
    }
    for (method, path) in [("POST", &*path), ("GET", LIST)] {
        assert_eq!(gate.ask(method, path, &[ann.bearer()], "").code(), "forbidden", "{path}");
    }
    for id in ["0", "x", "-1", "99"] {
        let path = format!("{LIST}/{id}");
        assert_eq!(gate.ask("POST", &path, &[root.bearer()], r#"{"decline": true}"#).status, 404);
    }
    let list = gate.ask("GET", LIST, &[root.bearer()], "").json();
    assert_eq!(list, json!({"rows": [asked]}), "nothing was answered");
}

#[test]
fn reason_is_optional_and_a_missing_amount_is_explained() {
    let (_upstream, gate) = gate(MEMBERS);
    let ann = gate.member("ann");
    let ask = |body: &str| gate.ask("POST", ASK, &[ann.bearer()], body);
    for body in [r#"{"amount": "5.00"}"#, r#"{"amount": "5.00", "reason": ""}"#] {
        let asked = ask(body);
        assert_eq!((asked.status, &asked.json()["reason"]), (201, &json!("")), "{body}");
    }
    let refused = ask(r#"{"reason": "a film"}"#).json();
    assert_eq!(refused["detail"], "amount: required: dollars as text, such as \"5.00\"");
}

#[test]
fn caller_without_a_name_cannot_ask() {
    let (_upstream, gate) = gate("");
    let refused = gate.post(ASK, r#"{"amount": "5", "reason": "x"}"#);
    assert_eq!((refused.status, &*refused.code()), (404, "not_found"));
    assert!(gate.get("/bff/me").json()["may_ask"].is_null());
}
