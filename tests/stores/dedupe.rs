//! The same purchase is found again, and nothing else is.

use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountStatus, DedupeKey, EarlierReply, Precondition, PurchaseId, PurchaseState, Reservation,
    ReserveError, Settlement, StoreCapacity,
};

use crate::fixture::*;

on_every_backend!(
    key_is_known_from_hold_to_reply,
    key_with_another_payload_is_refused,
    quote_finds_a_purchase_with_any_of_its_keys,
    released_purchase_frees_its_key,
    challenge_pays_for_one_purchase_until_it_is_released,
    unknown_purchase_keeps_its_key_until_settled,
    key_outlives_its_reply_by_a_year,
    evicted_reply_leaves_its_key_taken,
    keys_separate_purchases_and_never_match_fingerprints,
    duplicate_joins_a_running_purchase,
    duplicate_joins_an_undelivered_reply_within_the_window,
    duplicate_of_a_delivered_purchase_is_new_unless_marked_a_retry,
    delivered_reply_is_joined_only_if_later_than_the_last_refusal,
    purchase_that_ended_in_the_future_counts_as_just_ended,
    late_attempt_holds_nothing,
    notes_of_a_caller_are_few_and_evict_no_others,
    duplicate_joins_an_unknown_purchase_even_if_delivered,
    separate_purchase_matches_others_and_an_unknown_one,
    running_purchase_is_found_behind_any_number_of_later_ones,
    released_purchase_has_no_duplicate,
    purchase_id_is_accepted_once,
    clock_jump_frees_no_key_of_a_sent_purchase,
);

async fn key_is_known_from_hold_to_reply(fixture: Fixture) {
    let first = keyed("k", "p");
    fixture.reserve(&first).await.unwrap();
    assert_eq!(fixture.known(&keyed("k", "p")).await.state, PurchaseState::Held);
    fixture.store.mark_sent(first.id, AccountStatus::Confirmed).await.unwrap();
    assert_eq!(fixture.known(&keyed("k", "p")).await.state, PurchaseState::Sent);
    fixture.settle(first.id, charged(PRICE, "hello")).await;
    fixture.store.mark_delivered(first.id);

    let earlier = fixture.known(&keyed("k", "p")).await;
    assert_eq!(
        (earlier.id, earlier.state, earlier.cost),
        (first.id, PurchaseState::Charged, PRICE)
    );
    assert_eq!(fixture.replayed(&keyed("k", "p")).await, Some(reply("hello")));
    assert_eq!(fixture.total().await.day, PRICE);
}

async fn quote_finds_a_purchase_with_any_of_its_keys(fixture: Fixture) {
    let quoted = |own: &str, others: &[&str], payload: &str| Reservation {
        dedupe_key: DedupeKey::Quote {
            key: identity(own),
            others: others.iter().map(|key| identity(key)).collect(),
            payload: identity(payload),
        },
        ..reservation("ann", PRICE)
    };
    let first = quoted("b", &["a", "c"], "x");
    fixture.reserve(&first).await.unwrap();
    for (own, others) in [("b", &[][..]), ("c", &["b"]), ("d", &["e", "b"])] {
        let again = fixture.reserve(&quoted(own, others, "x")).await;
        assert!(matches!(again, Err(ReserveError::Duplicate(found)) if found.id == first.id));
        let other = fixture.reserve(&quoted(own, others, "y")).await;
        assert!(matches!(other, Err(ReserveError::KeyReused)), "{other:?}");
    }
    let second = quoted("c", &["a"], "y");
    fixture.reserve(&second).await.expect("it names no key that was used");

    // If two keys were used, the first of them in the quote's order decides.
    let near = fixture.reserve(&quoted("d", &["c", "b"], "y")).await;
    assert!(matches!(near, Err(ReserveError::Duplicate(found)) if found.id == second.id));
    let far = fixture.reserve(&quoted("d", &["b", "c"], "y")).await;
    assert!(matches!(far, Err(ReserveError::KeyReused)), "{far:?}");
}

async fn key_with_another_payload_is_refused(fixture: Fixture) {
    fixture.reserve(&keyed("k", "p")).await.unwrap();
    let other = fixture.reserve(&keyed("k", "q")).await;
    assert!(matches!(other, Err(ReserveError::KeyReused)), "{other:?}");
    assert_eq!(fixture.total().await.day, PRICE);
}

async fn released_purchase_frees_its_key(fixture: Fixture) {
    let id = fixture.send(&keyed("k", "p")).await;
    fixture.settle(id, Settlement::Released).await;
    fixture.reserve(&keyed("k", "q")).await.unwrap();
    assert_eq!(fixture.states().await, [PurchaseState::Released, PurchaseState::Held]);
}

async fn challenge_pays_for_one_purchase_until_it_is_released(fixture: Fixture) {
    let paid = |challenge: &str, key: &str, payload: &str| Reservation {
        requires: Precondition { challenge: Some(identity(challenge)), ..Precondition::default() },
        ..keyed(key, payload)
    };
    let first = paid("c", "k", "p");
    fixture.reserve(&first).await.unwrap();
    assert_eq!(fixture.known(&paid("c", "l", "p")).await.id, first.id, "another key");
    let other_model = Reservation { model: "beta".into(), ..paid("c", "l", "p") };
    for other in [paid("c", "k", "q"), paid("c", "l", "q"), other_model] {
        let other = fixture.reserve(&other).await;
        assert!(matches!(other, Err(ReserveError::KeyReused)), "{other:?}");
    }
    let replay = Reservation { replay_only: true, ..paid("d", "m", "p") };
    let nothing = fixture.reserve(&replay).await;
    assert!(matches!(nothing, Err(ReserveError::NothingToReplay)), "{nothing:?}");
    assert_eq!(fixture.total().await.day, PRICE);

    fixture.store.mark_sent(first.id, AccountStatus::Confirmed).await.unwrap();
    fixture.settle(first.id, Settlement::Released).await;
    fixture.buy(&paid("c", "l", "q"), "hello").await;
    assert_eq!(fixture.known(&paid("c", "n", "q")).await.state, PurchaseState::Charged);
}

async fn unknown_purchase_keeps_its_key_until_settled(fixture: Fixture) {
    let id = fixture.send(&keyed("k", "p")).await;
    fixture.settle(id, Settlement::Unknown).await;
    fixture.pass(400 * DAY);
    assert_eq!(fixture.known(&keyed("k", "p")).await.state, PurchaseState::Unknown);
    fixture.settle(id, Settlement::Released).await;
    fixture.reserve(&keyed("k", "p")).await.unwrap();
}

async fn key_outlives_its_reply_by_a_year(fixture: Fixture) {
    fixture.buy(&keyed("k", "p"), "hello").await;
    fixture.pass(24 * HOUR - Duration::from_nanos(1));
    assert_ne!(fixture.known(&keyed("k", "p")).await.reply, EarlierReply::NotKept);
    for time in [Duration::from_nanos(1), 365 * DAY - Duration::from_nanos(1)] {
        fixture.pass(time);
        let earlier = fixture.known(&keyed("k", "p")).await;
        assert_eq!((earlier.state, earlier.reply), (PurchaseState::Charged, EarlierReply::NotKept));
        let other = fixture.reserve(&keyed("k", "q")).await;
        assert!(matches!(other, Err(ReserveError::KeyReused)), "{other:?}");
        bounded(fixture.store.purge_expired()).await.unwrap();
    }
    fixture.pass(Duration::from_nanos(1));
    fixture.buy(&keyed("k", "q"), "later").await;
    assert_eq!(fixture.replayed(&keyed("k", "q")).await, Some(reply("later")));
    assert_eq!(fixture.states().await, [PurchaseState::Charged, PurchaseState::Charged]);
}

async fn clock_jump_frees_no_key_of_a_sent_purchase(fixture: Fixture) {
    let start = fixture.now();
    let id = fixture.send(&keyed("k", "p")).await;
    for time in [start - DAY, start + DAY, start - 30 * DAY, start + 400 * DAY] {
        fixture.set(time);
        assert_eq!(fixture.known(&keyed("k", "p")).await.state, PurchaseState::Sent);
        let other = fixture.reserve(&keyed("k", "q")).await;
        assert!(matches!(other, Err(ReserveError::KeyReused)), "{other:?}");
    }
    fixture.set(start);
    fixture.settle(id, charged(PRICE, "hello")).await;
    for time in [start - DAY, start - 30 * DAY, start + HOUR] {
        fixture.set(time);
        assert_eq!(fixture.replayed(&keyed("k", "p")).await, Some(reply("hello")));
    }
}

async fn evicted_reply_leaves_its_key_taken(fixture: Fixture) {
    let id = fixture.send(&keyed("k", "p")).await;
    fixture
        .settle(id, Settlement::Charged { cost: PRICE, reply: None, keep: 24 * HOUR, job: None })
        .await;
    fixture.store.purge_expired().await.unwrap();
    let earlier = fixture.known(&keyed("k", "p")).await;
    assert_eq!((earlier.state, earlier.reply), (PurchaseState::Charged, EarlierReply::NotKept));
    assert_eq!(bounded(fixture.store.reply(id)).await.unwrap(), None);
}

async fn keys_separate_purchases_and_never_match_fingerprints(fixture: Fixture) {
    fixture.reserve(&keyed("k", "p")).await.unwrap();
    fixture.reserve(&keyed("l", "p")).await.unwrap();
    fixture.reserve(&fixture.duplicate("p", START, true)).await.unwrap();
    fixture.reserve(&fixture.duplicate("k", START, true)).await.unwrap();
    assert_eq!(fixture.states().await.len(), 4);
}

async fn duplicate_joins_a_running_purchase(fixture: Fixture) {
    let first = fixture.duplicate("p", START, false);
    fixture.reserve(&first).await.unwrap();
    fixture.pass(2 * HOUR);
    assert_eq!(fixture.known(&fixture.duplicate("p", fixture.now(), false)).await.id, first.id);
    fixture.store.mark_sent(first.id, AccountStatus::Confirmed).await.unwrap();
    assert_eq!(
        fixture.known(&fixture.duplicate("p", fixture.now(), false)).await.state,
        PurchaseState::Sent
    );
}

async fn duplicate_joins_an_undelivered_reply_within_the_window(fixture: Fixture) {
    fixture.buy(&fixture.duplicate("p", START, false), "hello").await;
    let ended = fixture.now();
    fixture.pass(30 * SECOND);
    assert_eq!(fixture.replayed(&fixture.duplicate("p", ended, false)).await, Some(reply("hello")));
    fixture.reserve(&fixture.duplicate("p", ended + Duration::from_nanos(1), false)).await.unwrap();
}

async fn duplicate_of_a_delivered_purchase_is_new_unless_marked_a_retry(fixture: Fixture) {
    let first = fixture.buy(&fixture.duplicate("p", START, false), "hello").await;
    fixture.store.mark_delivered(first);
    assert_eq!(fixture.known(&fixture.duplicate("p", START, true)).await.id, first);
    fixture.reserve(&fixture.duplicate("p", START, false)).await.unwrap();
}

async fn delivered_reply_is_joined_only_if_later_than_the_last_refusal(fixture: Fixture) {
    let refuse = || fixture.store.note_refusal("ann".into(), identity("p"));
    let retry = || fixture.duplicate("p", START, true);
    let first = fixture.buy(&retry(), "hello").await;
    fixture.pass(SECOND);
    refuse();
    // One that was not delivered is whoever's reply was lost.
    assert_eq!(fixture.known(&retry()).await.id, first);
    fixture.store.mark_delivered(first);
    let second = fixture.buy(&retry(), "again").await;
    fixture.store.mark_delivered(second);
    // The latest of those that may be joined.
    assert_eq!(fixture.known(&retry()).await.id, second);
    fixture.store.note_refusal("ann".into(), identity("other"));
    fixture.pass(SECOND);
    assert_eq!(fixture.known(&retry()).await.id, second);
    refuse();
    fixture.reserve(&retry()).await.unwrap();
}

/// Bought while the clock was ahead, before the last start: its end lies in the future.
async fn purchase_that_ended_in_the_future_counts_as_just_ended(fixture: Fixture) {
    for (fingerprint, ending) in [("p", Settlement::Unknown), ("q", charged(PRICE, ""))] {
        fixture.set(START + 4_000 * DAY);
        let ahead = fixture.send(&fixture.duplicate(fingerprint, START, false)).await;
        fixture.settle(ahead, ending).await;
        fixture.set(START);
        let again = || fixture.duplicate(fingerprint, fixture.now() - 30 * SECOND, false);
        for _ in 0..2 {
            assert_eq!(fixture.known(&again()).await.id, ahead);
            fixture.pass(30 * SECOND);
        }
        fixture.pass(Duration::from_nanos(1));
        fixture.reserve(&again()).await.unwrap();
    }
}

async fn late_attempt_holds_nothing(fixture: Fixture) {
    let attempt = |attempt, key| Reservation { attempt, ..keyed(key, "p") };
    let look_up = || Reservation { replay_only: true, ..attempt(1, "k") };
    let refused = fixture.reserve(&look_up()).await;
    assert!(matches!(refused, Err(ReserveError::NothingToReplay)), "{refused:?}");
    fixture.pass(14 * MINUTE);
    let late = fixture.reserve(&attempt(0, "k")).await;
    assert!(matches!(late, Err(ReserveError::Superseded)), "{late:?}");
    let bought = fixture.buy(&attempt(2, "k"), "hello").await;
    assert_eq!(fixture.known(&attempt(0, "k")).await.id, bought, "it is replayed");
    // After a quarter of an hour, none is late.
    fixture.reserve(&look_up()).await.unwrap_err();
    fixture.reserve(&Reservation { replay_only: true, ..attempt(1, "l") }).await.unwrap_err();
    fixture.pass(15 * MINUTE);
    fixture.reserve(&attempt(0, "l")).await.unwrap();
}

async fn notes_of_a_caller_are_few_and_evict_no_others(fixture: Fixture) {
    let look_up = |caller: &str, key: &str| Reservation {
        attempt: 1,
        replay_only: true,
        caller: caller.into(),
        ..keyed(key, "p")
    };
    fixture.reserve(&look_up("bob", "b")).await.unwrap_err();
    for number in 0..300 {
        fixture.pass(Duration::from_nanos(1));
        fixture.reserve(&look_up("ann", &format!("a{number}"))).await.unwrap_err();
    }
    for (key, is_noted) in [("b", true), ("a299", true), ("a44", true), ("a43", false)] {
        let late = fixture.reserve(&keyed(key, "p")).await;
        assert_eq!(matches!(late, Err(ReserveError::Superseded)), is_noted, "{key}");
    }
    fixture.pass(DAY);
    bounded(fixture.store.purge_expired()).await.unwrap();
}

async fn duplicate_joins_an_unknown_purchase_even_if_delivered(fixture: Fixture) {
    let first = fixture.send(&fixture.duplicate("p", START, false)).await;
    fixture.settle(first, Settlement::Unknown).await;
    fixture.store.mark_delivered(first);
    assert_eq!(
        fixture.known(&fixture.duplicate("p", START, false)).await.state,
        PurchaseState::Unknown
    );
}

async fn separate_purchase_matches_others_and_an_unknown_one(fixture: Fixture) {
    let separate = |from: &[PurchaseId]| {
        let mut reservation = fixture.duplicate("p", START, true);
        if let DedupeKey::Fingerprint(duplicate) = &mut reservation.dedupe_key {
            duplicate.separate_from = from.to_vec();
        }
        reservation
    };
    let first = fixture.send(&fixture.duplicate("p", START, false)).await;
    let second = fixture.send(&separate(&[first])).await;
    assert_eq!(fixture.known(&separate(&[first])).await.id, second);
    assert_eq!(fixture.known(&separate(&[second])).await.id, first);
    fixture.settle(first, charged(PRICE, "hello")).await;
    assert_eq!(fixture.known(&separate(&[second])).await.id, first);
    let third = fixture.send(&separate(&[first, second])).await;
    fixture.settle(second, Settlement::Unknown).await;
    let all = [first, second, third];
    assert_eq!(fixture.known(&separate(&all)).await.id, second);
    assert_eq!(fixture.known(&fixture.duplicate("p", START, false)).await.id, third);
}

async fn running_purchase_is_found_behind_any_number_of_later_ones(fixture: Fixture) {
    let separate = |from: PurchaseId| {
        let mut reservation = fixture.duplicate("p", START, false);
        if let DedupeKey::Fingerprint(duplicate) = &mut reservation.dedupe_key {
            duplicate.separate_from = vec![from];
        }
        reservation
    };
    let slow = fixture.send(&fixture.duplicate("p", START, false)).await;
    for _ in 0..40 {
        let quick = fixture.send(&separate(slow)).await;
        fixture.settle(quick, charged(PRICE, "hello")).await;
        fixture.store.mark_delivered(quick);
    }
    fixture.set(START + 100 * SECOND);
    let again = || fixture.duplicate("p", START + 90 * SECOND, false);
    assert_eq!(fixture.known(&again()).await.id, slow);
    fixture.settle(slow, charged(PRICE, "late")).await;
    assert_eq!(fixture.known(&again()).await.id, slow, "it has just ended");
}

async fn released_purchase_has_no_duplicate(fixture: Fixture) {
    let first = fixture.send(&fixture.duplicate("p", START, false)).await;
    fixture.settle(first, Settlement::Released).await;
    fixture.reserve(&fixture.duplicate("p", START, true)).await.unwrap();
}

async fn purchase_id_is_accepted_once(fixture: Fixture) {
    let first = reservation("ann", PRICE);
    fixture.reserve(&first).await.unwrap();
    let again = Reservation { id: first.id, ..reservation("ann", PRICE) };
    assert!(matches!(fixture.reserve(&again).await, Err(ReserveError::Unavailable(_))));
    assert_eq!(fixture.total().await.day, PRICE);
}

/// Three replies, or ten bytes of them.
const LITTLE: StoreCapacity =
    StoreCapacity { replies: 3, reply_bytes: 10, ended_purchases: 250_000, pages: None };

#[tokio::test]
async fn oldest_replies_are_evicted_first_and_keep_their_keys() {
    for fixture in [Fixture::in_memory(LITTLE), Fixture::on_disk(LITTLE)] {
        for key in ["a", "b", "c", "d"] {
            fixture.buy(&keyed(key, "p"), key).await;
        }
        let kept = async |key| fixture.replayed(&keyed(key, "p")).await.is_some();
        assert!(!kept("a").await && kept("b").await && kept("d").await);
        fixture.buy(&keyed("e", "p"), "9 bytes..").await;
        assert!(!kept("c").await && kept("d").await && kept("e").await);
        fixture.buy(&keyed("f", "p"), "eleven byte").await;
        assert!(kept("d").await && kept("e").await && !kept("f").await);
        fixture.pass(24 * HOUR);
        fixture.store.purge_expired().await.unwrap();
        fixture.buy(&keyed("g", "p"), "10 bytes..").await;
        assert!(kept("g").await);
    }
}

#[tokio::test]
async fn memory_store_bounds_remembered_purchases() {
    let fixture =
        Fixture::in_memory(StoreCapacity { ended_purchases: 2, ..StoreCapacity::default() });
    for key in ["a", "b", "c"] {
        fixture.buy(&keyed(key, "p"), key).await;
    }
    fixture.reserve(&keyed("a", "p")).await.unwrap();
    fixture.known(&keyed("b", "p")).await;
    assert_eq!(fixture.states().await.len(), 3);
    assert_eq!(fixture.total().await.day, Usd::mills(24));
}

#[tokio::test]
async fn video_replies_outlive_chat_replies() {
    for fixture in [Fixture::in_memory(LITTLE), Fixture::on_disk(LITTLE)] {
        let video = fixture.send(&keyed("video", "p")).await;
        let reply = Some(reply("v"));
        fixture
            .settle(video, Settlement::Charged { cost: PRICE, reply, keep: 7 * DAY, job: None })
            .await;
        for chat in ["a", "b", "c", "d", "e"] {
            fixture.pass(SECOND);
            fixture.buy(&keyed(chat, "p"), chat).await;
        }
        let kept = async |key| fixture.replayed(&keyed(key, "p")).await.is_some();
        assert!(kept("video").await && kept("d").await && kept("e").await);
        assert!(!kept("a").await && !kept("c").await);
        fixture.pass(24 * HOUR);
        fixture.store.purge_expired().await.unwrap();
        assert!(kept("video").await);
        // There is capacity for two again.
        fixture.buy(&keyed("f", "p"), "f").await;
        fixture.buy(&keyed("g", "p"), "g").await;
        assert!(kept("video").await && kept("f").await && kept("g").await);
    }
}

#[test]
fn default_capacity_holds_a_week_of_replies() {
    assert!(StoreCapacity::default().replies >= 7 * 24 * 60 * 60);
}
