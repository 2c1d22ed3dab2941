//! What was sent to the gateway is remembered for a day, also by the next server.

use std::time::Duration;

use tollgate::ledger::{AccountLimit, SlotId, Store};

use crate::fixture::*;

const REPLY: Duration = Duration::from_millis(300);

async fn took(fixture: &Fixture) -> SlotId {
    let place = SlotId::generate();
    bounded(fixture.store.take_slot(place)).await.expect("taken");
    place
}

/// When the replies came that came since then.
async fn since(fixture: &Fixture, since: Duration) -> Vec<Duration> {
    let within = fixture.now() - since;
    let ages = bounded(fixture.store.recent_replies(within)).await.expect("replies");
    ages.into_iter().map(|ago| fixture.now() - ago).collect()
}

async fn slot_records_the_time_of_its_reply(fixture: Fixture) {
    let first = took(&fixture).await;
    fixture.pass(SECOND);
    let second = took(&fixture).await;
    fixture.pass(REPLY);
    fixture.store.slot_replied(second);
    fixture.set(START + 5 * SECOND);
    fixture.store.slot_replied(first);
    fixture.pass(HOUR);
    let (first, second) = (START + 5 * SECOND, START + SECOND + REPLY);
    assert_eq!(since(&fixture, START).await, [first, second]);
    // What counts is the reply: a place is free one window after it.
    assert_eq!(since(&fixture, START + 2 * SECOND).await, [first]);
    assert_eq!(since(&fixture, START + HOUR).await, [Duration::ZERO; 0]);
}

async fn slot_in_flight_counts_as_answered_now(fixture: Fixture) {
    took(&fixture).await;
    fixture.pass(HOUR);
    assert_eq!(since(&fixture, START + HOUR).await, [START + HOUR]);
}

async fn reply_is_never_earlier_than_its_request(fixture: Fixture) {
    let place = took(&fixture).await;
    fixture.set(START - DAY);
    fixture.store.slot_replied(place);
    // What seems to come from the future counts from now.
    assert_eq!(since(&fixture, fixture.now()).await, [fixture.now()]);
    fixture.set(START + HOUR);
    assert_eq!(since(&fixture, START).await, [START]);
}

async fn unsent_slot_is_removed(fixture: Fixture) {
    let place = took(&fixture).await;
    fixture.store.release_slot(place);
    fixture.pass(SECOND);
    fixture.store.slot_replied(place);
    assert_eq!(since(&fixture, Duration::ZERO).await, [Duration::ZERO; 0]);
}

async fn slots_older_than_a_day_are_dropped(fixture: Fixture) {
    for _ in 0..50 {
        let place = took(&fixture).await;
        fixture.store.slot_replied(place);
    }
    fixture.pass(DAY + SECOND);
    // Not every one looks for old ones.
    for _ in 0..1_000 {
        took(&fixture).await;
    }
    assert_eq!(since(&fixture, Duration::ZERO).await.len(), 1_000);
}

async fn slot_in_flight_is_kept_after_a_clock_jump(fixture: Fixture) {
    let place = took(&fixture).await;
    fixture.pass(DAY + SECOND);
    let now = fixture.now();
    for _ in 0..200 {
        let other = took(&fixture).await;
        fixture.store.release_slot(other);
    }
    assert_eq!(since(&fixture, START).await, [now]);
    fixture.store.slot_replied(place);
    fixture.pass(HOUR);
    assert_eq!(since(&fixture, START).await, [now]);
}

async fn latest_recorded_rate_limit_is_known(fixture: Fixture) {
    let noted = || bounded(fixture.store.recorded_rate_limit());
    assert_eq!(noted().await.expect("read"), None);
    for (requests, window_seconds) in [(60, 60), (1_000, 3_600), (5, 86_400)] {
        let limit = AccountLimit { requests, window_seconds };
        fixture.store.record_rate_limit(limit);
        assert_eq!(noted().await.expect("read"), Some(limit));
    }
}

on_every_backend!(
    latest_recorded_rate_limit_is_known,
    slot_records_the_time_of_its_reply,
    slot_in_flight_counts_as_answered_now,
    reply_is_never_earlier_than_its_request,
    unsent_slot_is_removed,
    slots_older_than_a_day_are_dropped,
    slot_in_flight_is_kept_after_a_clock_jump,
);

#[tokio::test]
async fn next_server_restores_slots_and_counts_cut_off_ones_as_answered_now() {
    let mut fixture = Fixture::on_disk(Default::default());
    let answered = took(&fixture).await;
    fixture.pass(REPLY);
    fixture.store.slot_replied(answered);
    fixture.set(START + SECOND);
    took(&fixture).await;
    fixture.pass(SECOND);
    fixture.restart();
    fixture.pass(HOUR);
    let (answered, cut_off) = (START + REPLY, START + 2 * SECOND);
    assert_eq!(since(&fixture, START).await, [answered, cut_off]);
    fixture.restart();
    assert_eq!(since(&fixture, START).await, [answered, cut_off]);
    fixture.pass(DAY);
    fixture.restart();
    assert_eq!(since(&fixture, Duration::ZERO).await, [Duration::ZERO; 0]);
}

#[tokio::test]
async fn next_server_knows_the_last_reported_rate_limit() {
    let mut fixture = Fixture::on_disk(Default::default());
    let limit = AccountLimit { requests: u64::MAX, window_seconds: 60 };
    fixture.store.record_rate_limit(limit);
    fixture.restart();
    let noted = bounded(fixture.store.recorded_rate_limit()).await.expect("read").expect("noted");
    assert!(noted.requests > 1 << 62 && noted.window_seconds == 60, "{noted:?}");
}

#[tokio::test]
async fn clock_set_ahead_forgets_no_recent_slot() {
    let mut fixture = Fixture::on_disk(Default::default());
    let place = took(&fixture).await;
    fixture.pass(DAY + SECOND);
    let now = fixture.now();
    fixture.store.slot_replied(place);
    fixture.restart();
    assert_eq!(since(&fixture, START).await, [now]);
}

/// Within one boot, the time of day does not decide how old a slot is.
#[tokio::test]
async fn restart_after_the_clock_was_set_ahead_forgets_no_slot() {
    async fn restart(fixture: &mut Fixture) {
        fixture.stop();
        let begun = bounded(start_serving(&fixture.path(), fixture.clock())).await;
        let (store, mut opening) = begun.expect("it begins");
        bounded(opening.wait()).await.expect("it opens");
        opening.serve();
        fixture.take(store);
    }
    let mut fixture = Fixture::on_disk(Default::default());
    restart(&mut fixture).await;
    for jump in [HOUR, 2 * DAY] {
        let answered = took(&fixture).await;
        fixture.store.slot_replied(answered);
        took(&fixture).await;
        fixture.pass(jump);
        for _ in 0..200 {
            let other = took(&fixture).await;
            fixture.store.release_slot(other);
        }
        restart(&mut fixture).await;
    }
    let recent = async |fixture: &Fixture| {
        bounded(fixture.store.recent_replies(HOUR / 2)).await.expect("replies").len()
    };
    assert_eq!(recent(&fixture).await, 4);

    // The time since another boot means nothing.
    fixture.pass(HOUR);
    fixture.stop();
    let file = rusqlite::Connection::open(fixture.path()).unwrap();
    file.execute_batch("UPDATE identity SET boot = 'an earlier one'").unwrap();
    drop(file);
    restart(&mut fixture).await;
    assert_eq!(recent(&fixture).await, 0);
}

#[tokio::test]
async fn slots_dated_far_ahead_count_as_answered_at_the_start() {
    let mut fixture = Fixture::on_disk(Default::default());
    fixture.set(START + 365 * DAY);
    took(&fixture).await;
    fixture.set(START);
    took(&fixture).await;
    fixture.restart();
    // Either may have been sent a moment ago. One period later, both are free.
    assert_eq!(since(&fixture, Duration::ZERO).await, [START, START]);
    fixture.set(START + DAY / 2);
    fixture.restart();
    assert_eq!(since(&fixture, Duration::ZERO).await, [START, START]);
    assert!(since(&fixture, START + DAY / 4).await.is_empty());
}

#[tokio::test]
async fn broken_store_sends_nothing() {
    let broken = Store::unusable("no disk");
    bounded(broken.take_slot(SlotId::generate())).await.expect_err("not recorded");
    bounded(broken.recent_replies(DAY)).await.expect_err("not known");
    bounded(broken.recorded_rate_limit()).await.expect_err("not known");
}
