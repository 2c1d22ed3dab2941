//! What was sent to the gateway is remembered for a day, also by the next server.

use std::time::Duration;

use tollgate::store::{AccountLimit, SlotId, Store};

use crate::fixture::*;

const REPLY: Duration = Duration::from_millis(300);

async fn took(desk: &Desk) -> SlotId {
    let place = SlotId::generate();
    bounded(desk.store.take_slot(place)).await.expect("taken");
    place
}

/// When the replies came that came since then.
async fn since(desk: &Desk, since: Duration) -> Vec<Duration> {
    let within = desk.now() - since;
    let ages = bounded(desk.store.recent_replies(within)).await.expect("replies");
    ages.into_iter().map(|ago| desk.now() - ago).collect()
}

async fn slot_records_the_time_of_its_reply(desk: Desk) {
    let first = took(&desk).await;
    desk.pass(SECOND);
    let second = took(&desk).await;
    desk.pass(REPLY);
    desk.store.slot_replied(second);
    desk.set(START + 5 * SECOND);
    desk.store.slot_replied(first);
    desk.pass(HOUR);
    let (first, second) = (START + 5 * SECOND, START + SECOND + REPLY);
    assert_eq!(since(&desk, START).await, [first, second]);
    // What counts is the reply: a place is free one window after it.
    assert_eq!(since(&desk, START + 2 * SECOND).await, [first]);
    assert_eq!(since(&desk, START + HOUR).await, []);
}

async fn slot_in_flight_counts_as_answered_now(desk: Desk) {
    took(&desk).await;
    desk.pass(HOUR);
    assert_eq!(since(&desk, START + HOUR).await, [START + HOUR]);
}

async fn reply_is_never_earlier_than_its_request(desk: Desk) {
    let place = took(&desk).await;
    desk.set(START - DAY);
    desk.store.slot_replied(place);
    // What seems to come from the future counts from now.
    assert_eq!(since(&desk, desk.now()).await, [desk.now()]);
    desk.set(START + HOUR);
    assert_eq!(since(&desk, START).await, [START]);
}

async fn unsent_slot_is_removed(desk: Desk) {
    let place = took(&desk).await;
    desk.store.release_slot(place);
    desk.pass(SECOND);
    desk.store.slot_replied(place);
    assert_eq!(since(&desk, Duration::ZERO).await, []);
}

async fn slots_older_than_a_day_are_dropped(desk: Desk) {
    for _ in 0..50 {
        let place = took(&desk).await;
        desk.store.slot_replied(place);
    }
    desk.pass(DAY + SECOND);
    // Not every one looks for old ones.
    for _ in 0..1_000 {
        took(&desk).await;
    }
    assert_eq!(since(&desk, Duration::ZERO).await.len(), 1_000);
}

async fn slot_in_flight_is_kept_after_a_clock_jump(desk: Desk) {
    let place = took(&desk).await;
    desk.pass(DAY + SECOND);
    let now = desk.now();
    for _ in 0..200 {
        let other = took(&desk).await;
        desk.store.release_slot(other);
    }
    assert_eq!(since(&desk, START).await, [now]);
    desk.store.slot_replied(place);
    desk.pass(HOUR);
    assert_eq!(since(&desk, START).await, [now]);
}

async fn latest_recorded_rate_limit_is_known(desk: Desk) {
    let noted = || bounded(desk.store.recorded_rate_limit());
    assert_eq!(noted().await.expect("read"), None);
    for (requests, window_seconds) in [(60, 60), (1_000, 3_600), (5, 86_400)] {
        let limit = AccountLimit { requests, window_seconds };
        desk.store.record_rate_limit(limit);
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
    let mut desk = Desk::on_disk(Default::default());
    let answered = took(&desk).await;
    desk.pass(REPLY);
    desk.store.slot_replied(answered);
    desk.set(START + SECOND);
    took(&desk).await;
    desk.pass(SECOND);
    desk.restart();
    desk.pass(HOUR);
    let (answered, cut_off) = (START + REPLY, START + 2 * SECOND);
    assert_eq!(since(&desk, START).await, [answered, cut_off]);
    desk.restart();
    assert_eq!(since(&desk, START).await, [answered, cut_off]);
    desk.pass(DAY);
    desk.restart();
    assert_eq!(since(&desk, Duration::ZERO).await, []);
}

#[tokio::test]
async fn next_server_knows_the_last_reported_rate_limit() {
    let mut desk = Desk::on_disk(Default::default());
    let limit = AccountLimit { requests: u64::MAX, window_seconds: 60 };
    desk.store.record_rate_limit(limit);
    desk.restart();
    let noted = bounded(desk.store.recorded_rate_limit()).await.expect("read").expect("noted");
    assert!(noted.requests > 1 << 62 && noted.window_seconds == 60, "{noted:?}");
}

#[tokio::test]
async fn clock_set_ahead_forgets_no_recent_slot() {
    let mut desk = Desk::on_disk(Default::default());
    let place = took(&desk).await;
    desk.pass(DAY + SECOND);
    let now = desk.now();
    desk.store.slot_replied(place);
    desk.restart();
    assert_eq!(since(&desk, START).await, [now]);
}

#[tokio::test]
async fn slots_dated_far_ahead_do_not_block_the_rate_limit() {
    let mut desk = Desk::on_disk(Default::default());
    desk.set(START + 365 * DAY);
    took(&desk).await;
    desk.set(START);
    took(&desk).await;
    desk.restart();
    assert_eq!(since(&desk, Duration::ZERO).await, [START]);
}

#[tokio::test]
async fn broken_store_sends_nothing() {
    let broken = Store::unusable("no disk");
    bounded(broken.take_slot(SlotId::generate())).await.expect_err("not recorded");
    bounded(broken.recent_replies(DAY)).await.expect_err("not known");
    bounded(broken.recorded_rate_limit()).await.expect_err("not known");
}
