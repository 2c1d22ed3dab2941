//! An admin settles a purchase whose outcome is unknown, once it was found out.

use serde_json::json;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Period, Role, SpendLimit};

use super::MEMBERS;
use crate::support::{CHAT, Ending, Gate, Reply, STORES, Upstream};

const BILLING: &str = "/bff/admin/billing";

#[test]
fn admin_settles_unknown_outcomes_and_released_money_is_free_again() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::nothing(Ending::Fin));
        let gate = Gate::start(&upstream, &format!("{store}\n{MEMBERS}"));
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        let limit = SpendLimit::of(Period::Day, Usd::mills(12));
        let ann = gate.member_with("ann", Role::Member, limit);
        let chat = |key: &str| {
            gate.ask("POST", "/api/v1/chat", &[ann.bearer(), ("idempotency-key", key)], CHAT)
        };
        assert_eq!([chat("a").status, chat("b").status], [424, 424], "{store}");
        assert_eq!(chat("c").code(), "budget_exhausted", "unknown outcomes count as spent");

        let unknown = || {
            let billing = gate.ask("GET", BILLING, &[root.bearer()], "").json();
            billing["unknown"]["rows"].as_array().expect("rows").clone()
        };
        let rows = unknown();
        assert_eq!(rows.len(), 2, "{store}");
        let settle = |bearer: (&str, &str), id: &serde_json::Value, body: &str| {
            let id = id.as_str().expect("a text");
            gate.ask("POST", &format!("/bff/admin/purchases/{id}"), &[bearer], body)
        };
        let [first, second] = [&rows[0]["id"], &rows[1]["id"]];
        let released = r#"{"outcome": "released"}"#;
        assert_eq!(settle(ann.bearer(), first, released).status, 403);
        assert_eq!(settle(root.bearer(), first, r#"{"outcome": "lost"}"#).status, 422);
        assert_eq!(settle(root.bearer(), &json!("1"), released).status, 404);
        assert_eq!(settle(root.bearer(), first, released).status, 204);
        assert_eq!(settle(root.bearer(), second, r#"{"outcome": "charged"}"#).status, 204);
        let again = settle(root.bearer(), first, released);
        assert_eq!((again.status, &again.json()["errors"][0]["code"]), (422, &json!("settled")));
        assert_eq!(unknown(), Vec::<serde_json::Value>::new());
        assert_eq!(chat("d").status, 424, "the released money buys again");

        let log = gate.ask("GET", "/bff/admin/audit", &[root.bearer()], "").json();
        let [charged, released] = [&log["rows"][0], &log["rows"][1]];
        for (row, outcome) in [(charged, "charged: "), (released, "released: ")] {
            assert_eq!([&row["act"], &row["by"]], ["purchase.resolve", "member:root"]);
            assert!(row["new"].as_str().is_some_and(|new| new.starts_with(outcome)), "{row}");
        }
    }
}

#[test]
fn list_of_members_says_when_each_was_last_seen() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        let gate = Gate::start(&upstream, &format!("{store}\n{MEMBERS}"));
        let root = gate.member_with("root", Role::Admin, SpendLimit::default());
        let ann = gate.member_with("ann", Role::Member, SpendLimit::default());
        let seen = || {
            let members = gate.ask("GET", "/bff/admin/members", &[root.bearer()], "").json();
            let rows = members["rows"].as_array().expect("rows").clone();
            let row = rows.into_iter().find(|row| row["name"] == "ann").expect("ann");
            row["last_seen_at"].clone()
        };
        assert_eq!(seen(), json!(null), "{store}");
        assert_eq!(gate.ask("POST", "/api/v1/chat", &[ann.bearer()], CHAT).status, 200);
        let bought = seen();
        assert!(bought.as_str().is_some_and(|at| at.ends_with('Z')), "{store} {bought}");
    }
}
