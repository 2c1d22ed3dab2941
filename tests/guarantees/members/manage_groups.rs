//! Admins manage groups, and raise a member's limits for a time, over HTTP.

use serde_json::{Value, json};
use tollgate::clock::{self, Date};
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Period, Role, SpendLimit};

use super::MEMBERS;
use crate::support::client::Client;
use crate::support::members::Holder;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream};

fn gate(settings: &str) -> (Upstream, Gate) {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, &format!("{settings}\n{MEMBERS}"));
    (upstream, gate)
}

/// Returns a UTC day, so many days from now.
fn day(ahead: u64) -> String {
    let Date { year, month, day } = Date::from_days(Date::at(clock::wall()).days() + ahead);
    format!("{year:04}-{month:02}-{day:02}")
}

#[test]
fn group_is_added_changed_and_removed_by_admins() {
    for store in STORES {
        let (_upstream, gate) = gate(store);
        let (root, ann) =
            (gate.member_with("root", Role::Admin, SpendLimit::default()), gate.member("ann"));
        let ask =
            |method: &str, path: &str, body: &str| gate.ask(method, path, &[root.bearer()], body);
        let groups = "/bff/admin/groups";
        assert_eq!(ask("GET", groups, "").json(), json!({"rows": []}));
        let added = ask("POST", groups, r#"{"name": "design", "budget": {"day": "0.006"}}"#);
        assert_eq!(added.status, 201, "{}", added.text());
        let limits = |row: &Value| -> Vec<Value> {
            row["budgets"].as_array().unwrap().iter().map(|row| row["limit"].clone()).collect()
        };
        let none = json!(null);
        assert_eq!(
            limits(&added.json()),
            [json!("0.006000"), none.clone(), none.clone(), none.clone()]
        );
        assert_eq!(ask("PATCH", "/bff/admin/members/ann", r#"{"group": "design"}"#).status, 200);
        let chat = || gate.ask("POST", "/api/v1/chat", &[ann.bearer()], CHAT);
        assert_eq!(chat().status, 200, "{store}");
        assert_eq!(chat().code(), "budget_exhausted", "{store}");
        let changed =
            ask("PATCH", "/bff/admin/groups/design", r#"{"budget": {"day": null, "month": "5"}}"#);
        let row = changed.json();
        assert_eq!((&row["name"], &row["members"]), (&json!("design"), &json!(1)));
        assert_eq!(limits(&row), [none.clone(), none.clone(), json!("5.000000"), none.clone()]);
        assert_eq!(row["budgets"][2]["spent_micros"], 6_000);
        assert_eq!(ask("GET", groups, "").json(), json!({"rows": [row]}));
        assert_eq!(chat().status, 200, "{store}");

        let kept = ask("DELETE", "/bff/admin/groups/design", "");
        assert_eq!((kept.status, &kept.json()["errors"][0]["code"]), (422, &json!("has_members")));
        assert_eq!(ask("PATCH", "/bff/admin/members/ann", r#"{"group": null}"#).status, 200);
        assert_eq!(ask("DELETE", "/bff/admin/groups/design", "").status, 204);
        assert_eq!(ask("DELETE", "/bff/admin/groups/design", "").status, 404);
        let log = ask("GET", "/bff/admin/audit", "").json();
        let acts: Vec<_> =
            log["rows"].as_array().unwrap().iter().map(|entry| entry["act"].clone()).collect();
        assert_eq!(
            acts[..5],
            ["group.remove", "member.group", "group.budget", "member.group", "group.add"]
        );
        assert_eq!(log["rows"][0]["by"], "member:root");
    }
}

#[test]
fn repeated_change_with_one_key_is_made_once() {
    for store in STORES {
        let (_upstream, gate) = gate(store);
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        let eve = gate.member_with("eve", Role::Admin, SpendLimit::default());
        gate.member("ann");
        let path = "/bff/admin/members/ann/extra";
        let body = |amount: &str| format!(r#"{{"amount": "{amount}", "until": "{}"}}"#, day(1));
        let raise = |by: &Holder, key: &str, amount: &str| {
            gate.ask("POST", path, &[by.bearer(), ("idempotency-key", key)], &body(amount))
        };
        let raised = raise(&root, "one", "5.00");
        assert_eq!((raised.status, raised.is_replay()), (201, false), "{}", raised.text());
        assert_eq!(raised.json()["extra"], "5.000000");
        for key in ["one", "\"one\""] {
            let again = raise(&root, key, "5.00");
            assert_eq!((again.status, again.is_replay()), (201, true), "{store}");
            assert_eq!(again.body, raised.body);
        }
        let other = raise(&root, "one", "6.00");
        assert_eq!((other.status, &*other.code()), (422, "idempotency_key_reused"), "{store}");
        let bad = raise(&root, "a b", "5.00");
        assert_eq!((bad.status, &*bad.code()), (400, "invalid_idempotency_key"));
        // Another key, another admin's, and none: each is a change of its own.
        assert_eq!(raise(&root, "two", "1.00").json()["extra"], "6.000000");
        assert_eq!(raise(&eve, "one", "1.00").json()["extra"], "7.000000");
        let plain = gate.ask("POST", path, &[root.bearer()], &body("1.00"));
        assert_eq!(plain.json()["extra"], "8.000000", "{store}");

        // A token that was lost on its way comes again.
        let add = |key| {
            let headers = [root.bearer(), ("idempotency-key", key)];
            gate.ask("POST", "/bff/admin/members", &headers, r#"{"name": "joe"}"#)
        };
        let added = add("three");
        assert_eq!((added.status, add("three").body), (201, added.body), "{store}");
        // A refusal is no change, so its key is free.
        assert_eq!((add("four").status, add("four").is_replay()), (422, false));
    }
}

#[test]
fn concurrent_repeats_of_a_change_make_it_once() {
    for store in STORES {
        let (_upstream, gate) = gate(store);
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        gate.member("ann");
        let body = format!(r#"{{"amount": "5.00", "until": "{}"}}"#, day(1));
        let headers = [root.bearer(), ("idempotency-key", "one")];
        let mut clients: Vec<_> = (0..8).map(|_| gate.client()).collect();
        for client in &mut clients {
            client.send("POST", "/bff/admin/members/ann/extra", &headers, &body);
        }
        let answers: Vec<_> = clients.iter_mut().map(Client::answer).collect();
        assert!(answers.iter().all(|answer| answer.status == 201), "{store}");
        assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1, "{store}");
        let members = gate.ask("GET", "/bff/admin/members", &[root.bearer()], "").json();
        assert_eq!(members["rows"][0]["extra"], "5.000000", "{store}");
    }
}

#[test]
fn extra_raises_the_limits_of_a_member() {
    for store in STORES {
        let (_upstream, gate) = gate(store);
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        let ann = gate.member_with("ann", Role::Member, SpendLimit::of(Period::Day, Usd::mills(6)));
        let chat = || gate.ask("POST", "/api/v1/chat", &[ann.bearer()], CHAT);
        assert_eq!(chat().status, 200);
        assert_eq!(chat().code(), "budget_exhausted");
        let body = format!(r#"{{"amount": "0.006", "until": "{}"}}"#, day(1));
        let path = "/bff/admin/members/ann/extra";
        let raised = gate.ask("POST", path, &[root.bearer()], &body);
        assert_eq!(
            (raised.status, &raised.json()["name"]),
            (201, &json!("ann")),
            "{}",
            raised.text()
        );
        assert_eq!(chat().status, 200, "{store}");
        assert_eq!(chat().code(), "budget_exhausted");
        // A member without a budget of its own has one in the settings, which is raised.
        let bob = gate.member("bob");
        let path = format!("/bff/admin/members/{}/extra", bob.name);
        let raised = gate.ask("POST", &path, &[root.bearer()], &body).json();
        assert_eq!(
            (&raised["extra"], &raised["budgets"][0]["limit"]),
            (&json!("0.006000"), &json!(null))
        );
        let until = raised["extra_until"].as_str().unwrap();
        assert_eq!(until, day(1));
        let log = gate.ask("GET", "/bff/admin/audit", &[root.bearer()], "").json();
        let entry = &log["rows"][0];
        let new = format!("0.006 through {until}");
        assert_eq!(
            [&entry["act"], &entry["by"], &entry["caller"], &entry["new"]],
            ["member.extra", "member:root", "member:bob", &new]
        );
    }
}

#[test]
fn wrong_change_of_a_group_or_extra_is_refused() {
    let (_upstream, gate) = gate("");
    let (root, ann) =
        (gate.member_with("root", Role::Admin, SpendLimit::default()), gate.member("ann"));
    let ask = |method: &str, path: &str, body: &str| gate.ask(method, path, &[root.bearer()], body);
    assert_eq!(ask("POST", "/bff/admin/groups", r#"{"name": "design"}"#).status, 201);
    let before = ask("GET", "/bff/admin/audit", "").text();
    let (groups, design, extra) =
        ("/bff/admin/groups", "/bff/admin/groups/design", "/bff/admin/members/ann/extra");
    let past = format!(r#"{{"amount": "5", "until": "{}"}}"#, "2026-01-31");
    let (ahead, zero) = (day(1), format!(r#"{{"amount": "0", "until": "{}"}}"#, day(1)));
    let extra_of = format!(r#"{{"amount": "5", "until": "{ahead}"}}"#);
    for (method, path, body, status, fault) in [
        ("POST", groups, "{}", 422, "/name required"),
        ("POST", groups, r#"{"name": "design"}"#, 422, "/name taken"),
        ("POST", groups, r#"{"name": "De sign"}"#, 422, "/name bad_value"),
        (
            "POST",
            groups,
            r#"{"name": "sales", "budget": {"day": "5/day"}}"#,
            422,
            "/budget/day bad_value",
        ),
        ("POST", groups, r#"{"name": "sales", "budgets": {}}"#, 422, "/budgets unknown_field"),
        ("PATCH", design, "{}", 422, "/budget required"),
        ("PATCH", design, r#"{"budget": {}}"#, 422, "/budget required"),
        ("PATCH", design, r#"{"name": "sales"}"#, 422, "/name unknown_field"),
        ("PATCH", "/bff/admin/groups/sales", r#"{"budget": null}"#, 404, "not_found"),
        ("DELETE", "/bff/admin/groups/sales", "", 404, "not_found"),
        ("POST", extra, "{}", 422, "/amount required"),
        ("POST", extra, &past, 422, "/until bad_value"),
        ("POST", extra, &zero, 422, "/amount bad_value"),
        ("POST", extra, r#"{"amount": "5", "until": "2027-02-30"}"#, 422, "/until bad_value"),
        ("POST", extra, r#"{"amount": 5, "until": null}"#, 422, "/amount wrong_type"),
        ("POST", "/bff/admin/members/joe/extra", &extra_of, 404, "not_found"),
    ] {
        let answer = ask(method, path, body);
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.text());
        let errors = answer.json()["errors"].clone();
        let first = errors.as_array().and_then(|errors| errors.first());
        let text = |error: &Value| {
            format!("{} {}", error["pointer"].as_str().unwrap(), error["code"].as_str().unwrap())
        };
        assert_eq!(first.map_or_else(|| answer.code(), text), fault, "{method} {path} {body}");
        let refused = gate.ask(method, path, &[ann.bearer()], body);
        assert_eq!(refused.code(), "forbidden", "{method} {path}");
        assert_eq!(gate.ask(method, path, &[], body).code(), "missing_credentials");
    }
    assert_eq!(ask("GET", "/bff/admin/audit", "").text(), before);
}
