//! The same purchase is found again, and nothing else is.

use std::time::Duration;

use tollgate::contract::money::Usd;
use tollgate::store::{AccountStatus, PurchaseState, ReserveError, Settlement, StoreCapacity};

use crate::fixture::*;

on_every_backend!(
    key_is_known_from_hold_to_reply,
    key_with_another_payload_is_refused,
    released_purchase_frees_its_key,
    unknown_purchase_keeps_its_key_until_settled,
    key_is_free_after_its_keep_time,
    evicted_reply_leaves_its_key_taken,
    keys_separate_purchases_and_never_match_fingerprints,
    duplicate_joins_a_running_purchase,
    duplicate_joins_an_undelivered_reply_within_the_window,
    duplicate_of_a_delivered_purchase_is_new_unless_marked_a_retry,
    delivered_reply_is_joined_only_if_later_than_the_last_refusal,
    purchase_that_ended_in_the_future_has_no_duplicate,
    duplicate_joins_an_unknown_purchase_even_if_delivered,
    released_purchase_has_no_duplicate,
    purchase_id_is_accepted_once,
    clock_jump_frees_no_key_of_a_sent_purchase,
);

async fn key_is_known_from_hold_to_reply(desk: Desk) {
    let first = keyed("k", "p");
    desk.reserve(&first).await.unwrap();
    assert_eq!(desk.known(&keyed("k", "p")).await.state, PurchaseState::Held);
    desk.store.mark_sent(first.id, AccountStatus::Confirmed).await.unwrap();
    assert_eq!(desk.known(&keyed("k", "p")).await.state, PurchaseState::Sent);
    desk.settle(first.id, charged(PRICE, "hello")).await;
    desk.store.mark_delivered(first.id);

    let earlier = desk.known(&keyed("k", "p")).await;
    assert_eq!(
        (earlier.id, earlier.state, earlier.cost),
        (first.id, PurchaseState::Charged, PRICE)
    );
    assert_eq!(desk.replayed(&keyed("k", "p")).await, Some(reply("hello")));
    assert_eq!(desk.total().await.day, PRICE);
}

async fn key_with_another_payload_is_refused(desk: Desk) {
    desk.reserve(&keyed("k", "p")).await.unwrap();
    let other = desk.reserve(&keyed("k", "q")).await;
    assert!(matches!(other, Err(ReserveError::KeyReused)), "{other:?}");
    assert_eq!(desk.total().await.day, PRICE);
}

async fn released_purchase_frees_its_key(desk: Desk) {
    let id = desk.send(&keyed("k", "p")).await;
    desk.settle(id, Settlement::Released).await;
    desk.reserve(&keyed("k", "q")).await.unwrap();
    assert_eq!(desk.states().await, [PurchaseState::Released, PurchaseState::Held]);
}

async fn unknown_purchase_keeps_its_key_until_settled(desk: Desk) {
    let id = desk.send(&keyed("k", "p")).await;
    desk.settle(id, Settlement::Unknown).await;
    desk.pass(400 * DAY);
    assert_eq!(desk.known(&keyed("k", "p")).await.state, PurchaseState::Unknown);
    desk.settle(id, Settlement::Released).await;
    desk.reserve(&keyed("k", "p")).await.unwrap();
}

async fn key_is_free_after_its_keep_time(desk: Desk) {
    desk.buy(&keyed("k", "p"), "hello").await;
    desk.pass(24 * HOUR - Duration::from_nanos(1));
    desk.known(&keyed("k", "p")).await;
    desk.pass(Duration::from_nanos(1));
    desk.buy(&keyed("k", "q"), "later").await;
    assert_eq!(desk.replayed(&keyed("k", "q")).await, Some(reply("later")));
    assert_eq!(desk.states().await, [PurchaseState::Charged, PurchaseState::Charged]);
}

async fn clock_jump_frees_no_key_of_a_sent_purchase(desk: Desk) {
    let start = desk.now();
    let id = desk.send(&keyed("k", "p")).await;
    for time in [start - DAY, start + DAY, start - 30 * DAY, start + 400 * DAY] {
        desk.set(time);
        assert_eq!(desk.known(&keyed("k", "p")).await.state, PurchaseState::Sent);
        let other = desk.reserve(&keyed("k", "q")).await;
        assert!(matches!(other, Err(ReserveError::KeyReused)), "{other:?}");
    }
    desk.set(start);
    desk.settle(id, charged(PRICE, "hello")).await;
    for time in [start - DAY, start - 30 * DAY, start + HOUR] {
        desk.set(time);
        assert_eq!(desk.replayed(&keyed("k", "p")).await, Some(reply("hello")));
    }
}

async fn evicted_reply_leaves_its_key_taken(desk: Desk) {
    let id = desk.send(&keyed("k", "p")).await;
    desk.settle(id, Settlement::Charged { cost: PRICE, reply: None, keep: 24 * HOUR, job: None })
        .await;
    desk.store.purge_expired().await.unwrap();
    let earlier = desk.known(&keyed("k", "p")).await;
    assert_eq!((earlier.state, earlier.reply_bytes), (PurchaseState::Charged, None));
    assert_eq!(bounded(desk.store.reply(id)).await.unwrap(), None);
}

async fn keys_separate_purchases_and_never_match_fingerprints(desk: Desk) {
    desk.reserve(&keyed("k", "p")).await.unwrap();
    desk.reserve(&keyed("l", "p")).await.unwrap();
    desk.reserve(&desk.duplicate("p", START, true)).await.unwrap();
    desk.reserve(&desk.duplicate("k", START, true)).await.unwrap();
    assert_eq!(desk.states().await.len(), 4);
}

async fn duplicate_joins_a_running_purchase(desk: Desk) {
    let first = desk.duplicate("p", START, false);
    desk.reserve(&first).await.unwrap();
    desk.pass(2 * HOUR);
    assert_eq!(desk.known(&desk.duplicate("p", desk.now(), false)).await.id, first.id);
    desk.store.mark_sent(first.id, AccountStatus::Confirmed).await.unwrap();
    assert_eq!(
        desk.known(&desk.duplicate("p", desk.now(), false)).await.state,
        PurchaseState::Sent
    );
}

async fn duplicate_joins_an_undelivered_reply_within_the_window(desk: Desk) {
    desk.buy(&desk.duplicate("p", START, false), "hello").await;
    let ended = desk.now();
    desk.pass(30 * SECOND);
    assert_eq!(desk.replayed(&desk.duplicate("p", ended, false)).await, Some(reply("hello")));
    desk.reserve(&desk.duplicate("p", ended + Duration::from_nanos(1), false)).await.unwrap();
}

async fn duplicate_of_a_delivered_purchase_is_new_unless_marked_a_retry(desk: Desk) {
    let first = desk.buy(&desk.duplicate("p", START, false), "hello").await;
    desk.store.mark_delivered(first);
    assert_eq!(desk.known(&desk.duplicate("p", START, true)).await.id, first);
    desk.reserve(&desk.duplicate("p", START, false)).await.unwrap();
}

async fn delivered_reply_is_joined_only_if_later_than_the_last_refusal(desk: Desk) {
    let nano = Duration::from_nanos(1);
    let first = desk.buy(&desk.duplicate("p", START, false), "hello").await;
    let bounds = (START, START + HOUR);
    // One that was not delivered is whoever's reply was lost.
    let retry = desk.matched("p", bounds, Some(START + nano));
    assert_eq!(desk.known(&retry).await.id, first);
    desk.store.mark_delivered(first);
    assert_eq!(desk.known(&desk.matched("p", bounds, Some(START))).await.id, first);
    desk.pass(SECOND);
    let second = desk.buy(&desk.matched("p", bounds, Some(START + nano)), "again").await;
    desk.store.mark_delivered(second);
    // The latest of those that may be joined.
    assert_eq!(desk.known(&desk.matched("p", bounds, Some(START))).await.id, second);
    desk.reserve(&desk.matched("p", bounds, Some(START + SECOND + nano))).await.unwrap();
}

/// Bought while the clock was ahead: its end lies in the future.
async fn purchase_that_ended_in_the_future_has_no_duplicate(desk: Desk) {
    for (fingerprint, ending) in [("p", Settlement::Unknown), ("q", charged(PRICE, ""))] {
        desk.set(START + 4_000 * DAY);
        let ahead = desk.send(&desk.duplicate(fingerprint, START, false)).await;
        desk.settle(ahead, ending).await;
        desk.set(START);
        let again = || desk.matched(fingerprint, (START - 30 * SECOND, START + 30 * SECOND), None);
        let bought = desk.buy(&again(), "").await;
        assert_eq!(desk.known(&again()).await.id, bought);
    }
}

async fn duplicate_joins_an_unknown_purchase_even_if_delivered(desk: Desk) {
    let first = desk.send(&desk.duplicate("p", START, false)).await;
    desk.settle(first, Settlement::Unknown).await;
    desk.store.mark_delivered(first);
    assert_eq!(desk.known(&desk.duplicate("p", START, false)).await.state, PurchaseState::Unknown);
}

async fn released_purchase_has_no_duplicate(desk: Desk) {
    let first = desk.send(&desk.duplicate("p", START, false)).await;
    desk.settle(first, Settlement::Released).await;
    desk.reserve(&desk.duplicate("p", START, true)).await.unwrap();
}

async fn purchase_id_is_accepted_once(desk: Desk) {
    let first = asked("ann", PRICE);
    desk.reserve(&first).await.unwrap();
    let again = tollgate::store::Reservation { id: first.id, ..asked("ann", PRICE) };
    assert!(matches!(desk.reserve(&again).await, Err(ReserveError::Unavailable(_))));
    assert_eq!(desk.total().await.day, PRICE);
}

/// Three replies, or ten bytes of them.
const LITTLE: StoreCapacity =
    StoreCapacity { replies: 3, reply_bytes: 10, ended_purchases: 250_000, pages: None };

#[tokio::test]
async fn oldest_replies_are_evicted_first_and_keep_their_keys() {
    for desk in [Desk::in_memory(LITTLE), Desk::on_disk(LITTLE)] {
        for key in ["a", "b", "c", "d"] {
            desk.buy(&keyed(key, "p"), key).await;
        }
        let kept = async |key| desk.replayed(&keyed(key, "p")).await.is_some();
        assert!(!kept("a").await && kept("b").await && kept("d").await);
        desk.buy(&keyed("e", "p"), "9 bytes..").await;
        assert!(!kept("c").await && kept("d").await && kept("e").await);
        desk.buy(&keyed("f", "p"), "eleven byte").await;
        assert!(kept("d").await && kept("e").await && !kept("f").await);
        desk.pass(24 * HOUR);
        desk.store.purge_expired().await.unwrap();
        desk.buy(&keyed("g", "p"), "10 bytes..").await;
        assert!(kept("g").await);
    }
}

#[tokio::test]
async fn memory_store_bounds_remembered_purchases() {
    let desk = Desk::in_memory(StoreCapacity { ended_purchases: 2, ..StoreCapacity::default() });
    for key in ["a", "b", "c"] {
        desk.buy(&keyed(key, "p"), key).await;
    }
    desk.reserve(&keyed("a", "p")).await.unwrap();
    desk.known(&keyed("b", "p")).await;
    assert_eq!(desk.states().await.len(), 3);
    assert_eq!(desk.total().await.day, Usd::mills(24));
}

#[tokio::test]
async fn video_replies_outlive_chat_replies() {
    for desk in [Desk::in_memory(LITTLE), Desk::on_disk(LITTLE)] {
        let video = desk.send(&keyed("video", "p")).await;
        let reply = Some(reply("v"));
        desk.settle(video, Settlement::Charged { cost: PRICE, reply, keep: 7 * DAY, job: None })
            .await;
        for chat in ["a", "b", "c", "d", "e"] {
            desk.pass(SECOND);
            desk.buy(&keyed(chat, "p"), chat).await;
        }
        let kept = async |key| desk.replayed(&keyed(key, "p")).await.is_some();
        assert!(kept("video").await && kept("d").await && kept("e").await);
        assert!(!kept("a").await && !kept("c").await);
        desk.pass(24 * HOUR);
        desk.store.purge_expired().await.unwrap();
        assert!(kept("video").await);
        // There is room for two again.
        desk.buy(&keyed("f", "p"), "f").await;
        desk.buy(&keyed("g", "p"), "g").await;
        assert!(kept("video").await && kept("f").await && kept("g").await);
    }
}

#[test]
fn default_capacity_holds_a_week_of_replies() {
    assert!(StoreCapacity::default().replies >= 7 * 24 * 60 * 60);
}
