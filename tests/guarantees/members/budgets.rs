//! What members may spend and how often they may come: each for itself, and all together.

use std::thread;

use tollgate::clock::{self, Date};
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Period, Role, SpendLimit};

use super::MEMBERS;
use crate::support::client::Answer;
use crate::support::members::Holder;
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, STORES, Upstream};

const PRICE: u64 = 6_000;

fn day(micros: u64) -> SpendLimit {
    SpendLimit::of(Period::Day, Usd::micros(micros))
}

fn buy(gate: &Gate, holder: &Holder, what: &str) -> Answer {
    let chat = CHAT.replace("hello", what);
    gate.ask("POST", "/api/v1/chat", &[holder.bearer()], &chat)
}

#[test]
fn report_on_members_says_which_limit_applies() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let shared = "budget.caller = { day = \"5.00\", month = \"50.00\" }";
    let gate = Gate::start(&upstream, &format!("{MEMBERS}{shared}"));
    let root = gate.member_with("root", Role::Admin, SpendLimit::default());
    gate.member_with("ann", Role::Member, day(1_000_000));
    gate.member_with("bob", Role::Member, day(9_000_000));
    let until = Date::from_days(Date::at(clock::wall()).days() + 1);
    let extra = format!(r#"{{"amount": "2.00", "until": "{until}"}}"#);
    let raised = gate.ask("POST", "/bff/admin/members/root/extra", &[root.bearer()], &extra);
    assert_eq!(raised.status, 201, "{}", raised.text());
    let report = gate.ask("GET", "/bff/admin/members", &[root.bearer()], "").json();
    for (at, name, effective) in [
        (0, "ann", ["1.000000", "-", "50.000000", "-"]),
        (1, "bob", ["5.000000", "-", "50.000000", "-"]),
        (2, "root", ["7.000000", "-", "52.000000", "-"]),
    ] {
        let member = &report["rows"][at];
        let limits = member["budgets"].as_array().unwrap().iter();
        let limits: Vec<_> = limits.map(|row| row["effective"].as_str().unwrap_or("-")).collect();
        assert_eq!((member["name"].as_str(), &limits[..]), (Some(name), &effective[..]));
    }
    assert!(report["rows"][2]["budgets"][0]["limit"].is_null(), "its own is as it was");
}

#[test]
fn concurrent_members_stay_within_total_and_own_budgets() {
    const EACH: usize = 200;
    const AT_ONCE: usize = 8;
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        let settings = format!("{store}\n{MEMBERS}budget.total = {{ day = \"1.50\" }}");
        let gate = Gate::start(&upstream, &settings);
        let holders =
            ["ann", "bob"].map(|name| gate.member_with(name, Role::Member, day(1_000_000)));
        let shop = |holder: &Holder, part: usize| -> u64 {
            let numbers = (0..EACH).filter(|number| number % AT_ONCE == part);
            let answers = numbers.map(|number| buy(&gate, holder, &format!("no. {number}")));
            answers.filter(|answer| answer.status == 200).filter_map(|one| one.cost()).sum()
        };
        let spent: Vec<(usize, u64)> = thread::scope(|scope| {
            let all = (0..holders.len()).flat_map(|who| (0..AT_ONCE).map(move |part| (who, part)));
            let (holders, shop) = (&holders, &shop);
            let started: Vec<_> = all
                .map(|(who, part)| scope.spawn(move || (who, shop(&holders[who], part))))
                .collect();
            started.into_iter().map(|part| part.join().unwrap()).collect()
        });
        assert_eq!(upstream.charges().iter().sum::<u64>(), 1_500_000, "{store}");
        let of = |who| spent.iter().filter(|part| part.0 == who).map(|part| part.1).sum();
        let each: [u64; 2] = [of(0), of(1)];
        assert_eq!(each.iter().sum::<u64>(), 1_500_000, "{store}");
        assert!(each.iter().all(|spent| *spent <= 1_000_000), "{store}: {each:?}");
        for (holder, spent) in holders.iter().zip(each) {
            let usage = gate.ask("GET", "/bff/usage", &[holder.bearer()], "").json();
            assert_eq!(usage["total_micros"], spent, "{store}: {}", holder.name);
        }
    }
}

#[test]
fn own_budget_applies_with_the_total_and_is_visible() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = format!("{MEMBERS}budget.caller = {{ day = \"0.012\", month = \"5.00\" }}");
    let gate = Gate::start(&upstream, &settings);
    let poor = gate.member_with("poor", Role::Member, day(PRICE));
    let rich = gate.member_with("rich", Role::Member, day(1_000_000));
    for (holder, buys, limit) in [(&poor, 1, "$0.006"), (&rich, 2, "$0.012")] {
        let me = gate.ask("GET", "/bff/me", &[holder.bearer()], "").json();
        assert_eq!(
            me["caller"],
            serde_json::json!({"kind": "member", "name": holder.name, "role": "member"})
        );
        let rows = me["budgets"].as_array().unwrap();
        let rows: Vec<_> = rows.iter().map(|row| (&row["period"], &row["limit_micros"])).collect();
        let expected = [("day".into(), (buys * PRICE).into()), ("month".into(), 5_000_000.into())];
        assert_eq!(rows, expected.each_ref().map(|(period, limit)| (period, limit)));
        for number in 0..buys {
            assert_eq!(buy(&gate, holder, &number.to_string()).status, 200, "{}", holder.name);
        }
        let refused = buy(&gate, holder, "one more");
        assert_eq!((refused.status, refused.code().as_str()), (402, "budget_exhausted"));
        let words = format!("; your budget, {limit} a day, has $0.00 left");
        assert!(refused.text().contains(&words), "{}", refused.text());
    }
    assert_eq!(upstream.charges(), [PRICE; 3]);
}

#[test]
fn account_balance_is_shown_to_admins_only() {
    // The reply of a video tells it.
    let upstream = Upstream::start(|_| Reply::video("job-1"));
    let gate = Gate::start(&upstream, MEMBERS);
    let (ann, eve) =
        (gate.member("ann"), gate.member_with("eve", Role::Admin, SpendLimit::default()));
    let bought = gate.ask("POST", "/api/v1/video", &[ann.bearer()], crate::support::VIDEO);
    assert_eq!(bought.status, 200);
    let me = |holder: &Holder| gate.ask("GET", "/bff/me", &[holder.bearer()], "").json();
    assert_eq!(me(&ann)["balance"], serde_json::Value::Null);
    let admin = me(&eve);
    assert_eq!(admin["caller"]["role"], "admin");
    assert_eq!(admin["balance"]["amount"], "97.000000");
}

#[test]
fn members_behind_one_address_have_separate_limits() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let limits = "limits = { requests = 1, seconds = 3600, burst = 2, concurrent = 8 }\n";
    let gate = Gate::start(&upstream, &format!("{limits}{MEMBERS}"));
    let holders = [gate.member("ann"), gate.member("bob")];
    for holder in &holders {
        let statuses = ["1", "2", "3"].map(|what| buy(&gate, holder, what).status);
        assert_eq!(statuses, [200, 200, 429], "{}", holder.name);
    }
    assert_eq!(upstream.requests(), 4);
}

#[test]
fn member_at_its_concurrency_limit_blocks_no_other() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |received| match received.number {
        0 => Reply::chat("hello").when(latch),
        _ => Reply::chat("hello"),
    });
    let limits = "limits = { requests = 1000, seconds = 1, burst = 1000, concurrent = 1 }\n";
    let gate = Gate::start(&upstream, &format!("{limits}{MEMBERS}"));
    let (ann, bob) = (gate.member("ann"), gate.member("bob"));
    let mut busy = gate.client();
    busy.send("POST", "/api/v1/chat", &[ann.bearer()], CHAT);
    upstream.wait_for(1);
    let refused = buy(&gate, &ann, "another");
    assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"));
    assert_eq!(buy(&gate, &bob, "another").status, 200);
    latch.open();
    assert_eq!(busy.answer().status, 200);
}
