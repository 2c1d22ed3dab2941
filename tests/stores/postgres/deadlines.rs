//! Servers that die, or stand still, leave purchases that others end.

use std::time::Duration;

use tollgate::ledger::{AccountStatus, BudgetScope, Deadlines, Settlement};

use super::{ann, hasty, state};
use crate::fixture::*;

#[tokio::test]
async fn purchases_of_a_server_that_is_gone_end_after_their_deadlines() {
    let fixture = Fixture::on_postgres().await;
    let gone = hasty(&fixture).await;
    let (held, sent) = (ann("held"), ann("sent"));
    for purchase in [&held, &sent] {
        bounded(gone.reserve(purchase)).await.expect("held");
    }
    bounded(gone.mark_sent(sent.id, AccountStatus::Confirmed)).await.expect("marked");
    assert!(gone.may_send(sent.id) && !gone.may_send(held.id));
    let states = || (state(&fixture, &held), state(&fixture, &sent));
    let are = |held: &str, sent: &str| (held.to_owned(), sent.to_owned());
    fixture.pass(10 * SECOND);
    fixture.total().await;
    assert_eq!(states(), are("held", "sent"));
    fixture.pass(SECOND);
    // Any transaction of another server ends it, and its key is free.
    assert_eq!(fixture.of("marked-ann").await.day, PRICE);
    assert_eq!(states(), are("released", "sent"));
    fixture.pass(10 * SECOND);
    fixture.total().await;
    assert_eq!(states(), are("released", "unknown"));
    // Its owner only stood still: nothing may be sent, and a late outcome still counts.
    let late = bounded(gone.mark_sent(held.id, AccountStatus::Confirmed)).await;
    assert!(late.is_err(), "it was given up");
    bounded(gone.settle(sent.id, charged(times(2), "late"))).await.expect("settled");
    assert_eq!(fixture.of("marked-ann").await.day, times(2));
    assert_eq!(fixture.replayed(&ann("sent")).await, Some(reply("late")));
    bounded(fixture.store.reserve(&ann("held"))).await.expect("its key is free");
}

#[tokio::test]
async fn changed_deadlines_apply_to_later_purchases_if_they_are_longer() {
    let fixture = Fixture::on_postgres().await;
    let store = hasty(&fixture).await;
    for (held, sent) in [(30 * SECOND, 60 * SECOND), (SECOND, SECOND)] {
        store.set_deadlines(Deadlines { held, sent }, None);
        let (holds, sends) = (ann("holds"), ann("sends"));
        for purchase in [&holds, &sends] {
            bounded(store.reserve(purchase)).await.expect("held");
        }
        bounded(store.mark_sent(sends.id, AccountStatus::Confirmed)).await.expect("marked");
        for (time, states) in [(30, ("held", "sent")), (1, ("released", "sent"))] {
            fixture.pass(time * SECOND);
            fixture.total().await;
            let found = (state(&fixture, &holds), state(&fixture, &sends));
            assert_eq!((&*found.0, &*found.1), states, "{held:?} after {time}");
        }
        fixture.pass(30 * SECOND);
        fixture.total().await;
        assert_eq!(state(&fixture, &sends), "unknown");
        bounded(store.settle(sends.id, Settlement::Released)).await.expect("settled");
    }
}

/// Others may end it at any moment, so nothing is sent for it.
#[tokio::test]
async fn hold_past_its_deadline_is_not_sent_although_nobody_has_ended_it() {
    let fixture = Fixture::on_postgres().await;
    let slow = hasty(&fixture).await;
    let held = ann("held");
    bounded(slow.reserve(&held)).await.expect("held");
    fixture.pass(10 * SECOND);
    // It looks for what is overdue once a second, and has just done so.
    bounded(slow.current_spend(BudgetScope::Total)).await.expect("counted");
    fixture.pass(Duration::from_millis(500));
    let late = bounded(slow.mark_sent(held.id, AccountStatus::Confirmed)).await;
    assert!(late.is_err(), "its deadline is over");
    assert_eq!(state(&fixture, &held), "held");
}
