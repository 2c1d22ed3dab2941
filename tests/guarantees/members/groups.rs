//! A group's callers spend one budget together, in addition to their own.

use std::thread;

use serde_json::{Value, json};
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{GroupChange, LimitChange, Period, SpendLimit};

use super::MEMBERS;
use crate::support::client::Answer;
use crate::support::login::Login;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, until};

const PRICE: u64 = 6_000;

fn limit(period: Period, chats: u64) -> SpendLimit {
    SpendLimit::of(period, Usd::micros(chats * PRICE))
}

fn buy(gate: &Gate, bearer: (&str, &str), what: &str) -> Answer {
    gate.ask("POST", "/api/v1/chat", &[bearer], &CHAT.replace("hello", what))
}

fn me(gate: &Gate, bearer: (&str, &str)) -> Value {
    gate.ask("GET", "/bff/me", &[bearer], "").json()
}

#[test]
fn callers_of_a_group_stay_within_its_budget_together() {
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        let gate = Gate::start(&upstream, &format!("{store}\n{MEMBERS}"));
        gate.group("design", GroupChange::Add(limit(Period::Week, 50)));
        let holders = ["ann", "bob", "eve"].map(|name| gate.member(name));
        for holder in &holders[..2] {
            holder.joins("design");
            let knows = || me(&gate, holder.bearer())["group"] == "design";
            until("the gate knows the group", knows);
        }
        let shop = |(who, part): (usize, usize)| {
            let holder = &holders[who];
            let numbers = (0..10).map(|number| format!("{who} {part} {number}"));
            let answers = numbers.map(|what| buy(&gate, holder.bearer(), &what));
            answers.filter(|answer| answer.status == 200).count()
        };
        let bought: usize = thread::scope(|scope| {
            let parts = (0..2).flat_map(|who| (0..4).map(move |part| (who, part)));
            let started: Vec<_> = parts.map(|part| scope.spawn(move || shop(part))).collect();
            started.into_iter().map(|part| part.join().unwrap()).sum()
        });
        assert_eq!((bought, upstream.charges().len()), (50, 50), "{store}");

        let refused = buy(&gate, holders[0].bearer(), "one more");
        assert_eq!((refused.status, refused.code().as_str()), (402, "budget_exhausted"));
        let document = refused.json();
        assert_eq!((&document["scope"], &document["period"]), (&json!("group"), &json!("week")));
        let words = "this costs $0.006; your group's budget, $0.30 a week, has $0.00 left";
        assert!(refused.text().contains(words), "{}", refused.text());
        assert_eq!(buy(&gate, holders[2].bearer(), "of no group").status, 200);

        let document = me(&gate, holders[1].bearer());
        let row = &document["budgets"][0];
        assert_eq!((&row["scope"], &row["period"]), (&json!("group"), &json!("week")));
        assert_eq!((&row["limit"], &row["left"]), (&json!("0.300000"), &json!("0.000000")));
        assert!(me(&gate, holders[2].bearer()).get("group").is_none());
    }
}

#[test]
fn openai_error_names_the_budget() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, &format!("{MEMBERS}budget.caller = {{ ever = \"0\" }}"));
    let ann = gate.member("ann");
    let refused = gate.ask("POST", "/v1/chat/completions", &[ann.bearer()], CHAT);
    assert_eq!(refused.status, 402, "{}", refused.text());
    let error = &refused.json()["error"];
    assert_eq!((&error["scope"], &error["period"]), (&json!("caller"), &json!("ever")));
    let words = "this costs $0.006; your budget, $0.00 in all, never covers it";
    assert!(refused.text().contains(words), "{}", refused.text());
}

#[test]
fn member_that_moves_leaves_its_spending_behind() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, MEMBERS);
    gate.group("design", GroupChange::Add(limit(Period::Month, 1)));
    gate.group("sales", GroupChange::Add(limit(Period::Month, 1)));
    let ann = gate.member("ann");
    for group in ["design", "sales"] {
        ann.joins(group);
        until("the gate knows the group", || me(&gate, ann.bearer())["group"] == group);
        assert_eq!(buy(&gate, ann.bearer(), group).status, 200);
        assert_eq!(buy(&gate, ann.bearer(), &format!("{group} again")).status, 402);
    }
    // A raised budget applies to the next purchase.
    gate.group("sales", GroupChange::Update(LimitChange::default().set(limit(Period::Month, 2))));
    assert_eq!(buy(&gate, ann.bearer(), "raised").status, 200);
    assert_eq!(upstream.charges(), [PRICE; 3]);
}

#[test]
fn group_of_a_jwt_is_that_of_its_claim() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let login = Login::start();
    let gate = Gate::start(&upstream, &login.settings());
    let token = |subject: &str, group: Value| {
        let mut claims = login.claims(subject, 3_600);
        claims["group"] = group;
        login.bearer(&gate, &claims)
    };
    let ada = token("ada", json!("design"));
    let bob = token("bob", json!(["design"]));
    for (number, bearer) in [&ada, &bob].into_iter().enumerate() {
        let bearer = ("Authorization", bearer.as_str());
        assert_eq!(me(&gate, bearer)["group"], "design");
        assert_eq!(buy(&gate, bearer, &number.to_string()).status, 200);
    }
    for wrong in [json!(""), json!("Design"), json!(7), json!([]), json!(["a", "b"]), Value::Null] {
        let bearer = token("eve", wrong.clone());
        let refused = gate.ask("GET", "/bff/me", &[("Authorization", &bearer)], "");
        assert_eq!(refused.code(), "invalid_credentials", "{wrong}");
    }
}
