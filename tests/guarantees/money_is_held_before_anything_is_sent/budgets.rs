//! Budgets: how much they let through at once, what a refusal says, what is given back.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate::clock;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{Budgets, DedupeKey, PurchaseId, Reservation, Service, Store};

use crate::support::client::Answer;
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::received::ReceivedRequest;
use crate::support::{CHAT, Ending, Gate, Reply, STORES, Upstream, VIDEO, until};

const DEAR: &str = r#"{"prompt":"a lighthouse","model":"video-d-3.1","duration":8}"#;

fn accepted(dollars: u64) -> Reply {
    let cost = format!(
        r#"{{"request_id":"job-1","model":"m","message":"Poll.","cost":{{"this_request":"${dollars}.00","per_video":"${dollars}.00"}},"balance":"$97.00","metadata":{{"latency_ms":12}}}}"#
    );
    Reply::new(200, cost).costing(dollars * 1_000_000)
}

/// A gateway that answers as its price list says.
fn honest(received: &ReceivedRequest) -> Reply {
    match received.price() {
        0..1_000_000 => Reply::chat("hi"),
        micros => accepted(micros / 1_000_000),
    }
}

#[track_caller]
fn assert_over(answer: &Answer, whose: &str, left: &str) {
    let said = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert_eq!((answer.status, answer.code().as_str()), (402, "budget_exhausted"), "{said}");
    assert_eq!(answer.charged().as_deref(), Some("no"));
    assert_eq!(answer.value("tollgate-cost"), None);
    assert!(
        said.starts_with("this costs $")
            && said.contains(whose)
            && said.contains(&format!("has {left} left")),
        "{said}"
    );
    let (_, renews) = said.split_once("it renews at ").expect("when it renews");
    let is_midnight = renews.ends_with("T00:00:00Z") || renews.ends_with("T00:00:00.000Z");
    assert!(renews.starts_with("20") && is_midnight, "{said}");
    assert_eq!(answer.json()["renews_at"], renews);
}

#[test]
fn budget_covers_exactly_its_share_of_200_concurrent_purchases() {
    const AT_ONCE: usize = 200;
    for store in STORES {
        let upstream = Upstream::start(honest);
        let settings = format!("{store}\nbudget.total = {{ day = \"20.00\" }}");
        let gate = Gate::start(&upstream, &settings);
        let answers: Vec<_> = thread::scope(|scope| {
            let calls: Vec<_> = (0..AT_ONCE)
                .map(|call| {
                    let gate = &gate;
                    let key = format!("call-{call}");
                    scope.spawn(move || {
                        gate.ask("POST", "/api/v1/video", &[("idempotency-key", &key)], DEAR)
                    })
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let (bought, refused): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.status == 200);
        assert_eq!((bought.len(), refused.len()), (4, AT_ONCE - 4), "{store}");
        assert!(bought.iter().all(|answer| answer.cost() == Some(5_000_000)));
        for answer in refused {
            assert_over(answer, "the budget of all callers, $20.00 a day, ", "$0.00");
        }
        assert_eq!(upstream.charges(), [5_000_000; 4], "{store}");
        assert_eq!(upstream.purchases(), 4, "{store}");
        // What is cheap is over the budget as well, and what is free is not.
        assert_over(&gate.chat(), "the budget of all callers", "$0.00");
        assert_eq!((gate.get("/").status, gate.get("/bff/catalog").status), (200, 200));
    }
}

#[test]
fn budget_is_spent_to_its_last_mill() {
    let upstream = Upstream::start(honest);
    let gate = Gate::start(&upstream, "budget.total = { day = \"0.014\", month = \"5.00\" }");
    assert_eq!((gate.chat().status, gate.chat().status), (200, 200));
    assert_over(&gate.chat(), "the budget of all callers, $0.014 a day, ", "$0.002");
    assert_eq!(upstream.charges(), [6_000, 6_000]);
}

#[test]
fn caller_budget_applies_below_the_total() {
    for store in STORES {
        let upstream = Upstream::start(honest);
        let settings = format!(
            "{store}\nserver.trusted_proxies = [\"127.0.0.0/8\"]\n\
             budget.total = {{ month = \"9.00\" }}\nbudget.caller = {{ day = \"3.50\" }}"
        );
        let gate = Gate::start(&upstream, &settings);
        let buy = |from: &str, key: &str| {
            let headers = [("x-forwarded-for", from), ("idempotency-key", key)];
            gate.ask("POST", "/api/v1/video", &headers, VIDEO)
        };
        let (ann, bob, cid, dan) = ("192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.4");
        assert_eq!(buy(ann, "1").status, 200);
        assert_over(&buy(ann, "2"), "your budget, $3.50 a day, ", "$0.50");
        assert_eq!(buy(bob, "3").status, 200);
        assert_eq!(buy(cid, "4").status, 200);
        // Another address of the same network is the same caller.
        assert_over(
            &buy("2001:db8::2", "5"),
            "the budget of all callers, $9.00 a month, ",
            "$0.00",
        );
        assert_over(&buy(dan, "6"), "the budget of all callers, $9.00 a month, ", "$0.00");
        assert_eq!(upstream.purchases(), 3, "{store}");
    }
}

#[tokio::test(start_paused = true)]
async fn uncharged_hold_is_released() {
    for store in STORES {
        let upstream = PausedUpstream::start(|received| match received.number {
            0 => Reply::error(422),
            1 => Reply::error(403),
            2 => Reply::error(429).header("retry-after", "1"),
            _ => honest(received),
        });
        let settings = format!(
            "{store}\ngateway.max_wait = \"0s\"\nbudget.total = {{ day = \"3.00\" }}\n\
             budget.caller = {{ day = \"3.00\" }}"
        );
        let gate = PausedGate::start(&upstream, &settings).await;
        upstream.set_reachable(false);
        assert_eq!(gate.video().await.code(), "gateway_unreachable");
        upstream.set_reachable(true);
        assert_eq!(gate.video().await.status, 422);
        assert_eq!(gate.video().await.status, 403);
        let full = gate.video().await;
        assert_eq!((full.code().as_str(), full.value("retry-after")), ("gateway_busy", Some("1")));
        gate.advance(Duration::from_secs(1)).await;
        assert_eq!(gate.video().await.status, 200, "{store}");
        assert_over(&gate.video().await, "the budget of all callers", "$0.00");
        assert_eq!(upstream.charges(), [3_000_000]);
    }
}

#[test]
fn possibly_charged_hold_is_kept() {
    for store in STORES {
        for lost in [Reply::error(500), Reply::chat("hi").cut(30, Ending::Reset)] {
            let upstream = Upstream::start(move |_| lost.clone());
            let settings = format!("{store}\nbudget.total = {{ day = \"0.006\" }}");
            let mut gate = Gate::start(&upstream, &settings);
            assert_eq!(gate.chat().status, 424);
            assert_over(&gate.chat(), "the budget of all callers", "$0.00");
            if store.contains("sqlite") {
                gate.restart();
                assert_over(&gate.chat(), "the budget of all callers", "$0.00");
            }
            assert_eq!(upstream.requests(), 1);
        }
    }
}

#[test]
fn cost_reported_by_the_gateway_counts() {
    let upstream = Upstream::start(|_| accepted(4));
    let gate = Gate::start(&upstream, "budget.total = { day = \"8.00\" }");
    // By the price list it is three dollars.
    for _ in 0..2 {
        assert_eq!(gate.video().cost(), Some(4_000_000));
    }
    assert_over(&gate.video(), "the budget of all callers", "$0.00");
    assert_eq!(upstream.charges(), [4_000_000; 2]);
}

#[test]
fn replays_and_local_refusals_spend_nothing() {
    let upstream = Upstream::start(honest);
    let gate = Gate::start(&upstream, "budget.total = { day = \"0.006\" }");
    let ask = |body: &str| gate.ask("POST", "/api/v1/chat", &[("idempotency-key", "k")], body);
    assert_eq!(ask(r#"{"model":"alpha-sonnet-4.5","messages":[]}"#).status, 422);
    for _ in 0..3 {
        assert_eq!((ask(CHAT).status, ask(CHAT).cost()), (200, Some(6_000)));
    }
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn purchase_dated_ahead_blocks_no_budget_and_is_logged_once() {
    let upstream = Upstream::start(honest);
    let settings =
        "store.url = \"sqlite:ledger.db\"\nbudget.total = { day = \"0.010\", month = \"0.010\" }";
    let gate = Gate::binary_in(&upstream, settings, |folder| {
        let ahead = clock::wall() + Duration::from_secs(3_650 * 86_400);
        let ledger = Store::serve(&folder.join("ledger.db"), Arc::new(move || ahead)).unwrap();
        let reservation = Reservation {
            id: PurchaseId::generate(),
            caller: "127.0.0.1".into(),
            service: Service::Chat,
            model: "alpha-sonnet-4.5".into(),
            price: Usd::mills(6),
            dedupe_key: DedupeKey::IdempotencyKey { key: [1; 32], payload: [1; 32] },
            group: None,
            token: None,
            budgets: Budgets::default(),
            attempt: 0,
            replay_only: false,
            requires: Default::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(ledger.reserve(&reservation)).unwrap();
    });
    assert_eq!(gate.chat().status, 200);
    let refused = gate.chat();
    assert_over(&refused, "the budget of all callers, $0.01 a month,", "$0.004");
    let said = refused.json()["detail"].as_str().unwrap().to_owned();
    let me = gate.get("/bff/me").json();
    let month = me["budgets"].as_array().unwrap().iter().find(|row| row["period"] == "month");
    let renews = month.unwrap()["renews_at"].as_str().unwrap();
    assert!(said.ends_with(&format!("it renews at {renews}")), "{said} {renews}");
    let next = clock::Date::at(clock::wall()).next_month().start();
    assert_eq!(renews, clock::iso8601(next));
    let warning = "ledger day is ahead of the clock; ignored";
    until("it is logged", || gate.printed().contains(warning));
    assert_eq!(gate.printed().matches(warning).count(), 1);
}
