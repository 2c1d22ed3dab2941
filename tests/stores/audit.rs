//! Checkpoints, evidence and the account's keys are kept alike on every backend.

use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountCheck, AccountLimit, AccountStatus, Checkpoint, Evidence, Job, JobState, MissingSpend,
    PurchaseId, PurchaseState, Reservation, Service, Settlement, Snapshot, StatusUpdate,
};

use crate::fixture::*;
use crate::jobs::job;

const MINUTE: Duration = Duration::from_secs(60);

on_every_backend!(
    checkpoint_numbers_purchases_that_had_begun_and_settled,
    snapshots_come_newest_first,
    evidence_is_what_the_counters_may_hold,
    charge_without_a_reply_is_assumed,
    unrecognized_account_stays_with_its_purchase,
    purchase_is_found_by_its_id,
    one_common_key_means_the_same_account,
    adopted_account_uses_no_earlier_checkpoint,
    checkpoint_before_a_new_account_is_not_used,
    listing_of_another_account_writes_nothing,
    missing_spend_counts_today_and_takes_nothing_from_the_balance,
);

fn snapshot(chats: u64, at: Duration) -> Snapshot {
    Snapshot { at, balance_cents: -1_000, chats, chat_cents: 2, spent_cents: 3 }
}

async fn missing_spend_counts_today_and_takes_nothing_from_the_balance(fixture: Fixture) {
    fixture.buy(&reservation("ann", PRICE), "hello").await;
    let mark = bounded(fixture.store.credit_watermark()).await.expect("a mark");
    fixture.store.record_balance(mark, Usd::dollars(2));
    let missing = |amount| MissingSpend {
        id: PurchaseId::generate(),
        caller: "restore",
        model: "since-backup",
        amount,
    };
    let three = missing(Usd::dollars(3));
    bounded(fixture.store.record_missing_spend(&three)).await.expect("recorded");
    let left = bounded(fixture.store.remaining_credit()).await.expect("read").expect("known");
    assert_eq!(left.amount, Usd::dollars(2));
    assert_eq!(fixture.total().await.day, PRICE.checked_add(Usd::dollars(3)).unwrap());
    let evidence = fixture.evidence(1, Duration::MAX).await;
    let [recorded] = &evidence[..] else { panic!("{evidence:?}") };
    assert_eq!((recorded.purchase.id, recorded.purchase.price), (three.id, Usd::dollars(3)));
    assert_eq!(recorded.purchase.state, PurchaseState::Charged);
    assert!(recorded.is_assumed);
    let too_large = missing(Usd::micros(u64::MAX));
    bounded(fixture.store.record_missing_spend(&too_large)).await.unwrap_err();
    assert_eq!(fixture.evidence(1, Duration::MAX).await.len(), 1);
}

fn video() -> Reservation {
    Reservation { service: Service::Video, ..reservation("ann", Usd::dollars(3)) }
}

impl Fixture {
    async fn check(&self, chats: u64) {
        bounded(self.store.record_checkpoint(snapshot(chats, self.now()))).await.expect("noted");
    }

    async fn last_check(&self) -> Option<Checkpoint> {
        bounded(self.store.latest_checkpoint()).await.expect("read")
    }

    async fn evidence(&self, settled: u64, refundable: Duration) -> Vec<Evidence> {
        bounded(self.store.evidence(settled, refundable)).await.expect("read")
    }

    async fn recognise(&self, keys: &[&str], how: AccountCheck) -> bool {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        bounded(self.store.check_account(keys, how)).await.expect("compared")
    }

    /// Buys a video whose job is heard of later in this state.
    async fn order(&self, name: &str, state: Option<JobState>) -> PurchaseId {
        let id = self.send(&video()).await;
        let job = Job { purchase: Some(id), ..job(name, "ann") };
        let Settlement::Charged { cost, reply, keep, .. } = charged(Usd::dollars(3), "{}") else {
            panic!("it is charged");
        };
        self.settle(id, Settlement::Charged { cost, reply, keep, job: Some(Box::new(job)) }).await;
        if let Some(state) = state {
            let word = StatusUpdate { at: self.now() + MINUTE, body: "{}".into(), state };
            bounded(self.store.update_job(name.into(), word)).await.expect("noted");
        }
        id
    }
}

async fn checkpoint_numbers_purchases_that_had_begun_and_settled(fixture: Fixture) {
    assert_eq!(fixture.last_check().await, None);
    fixture.check(0).await;
    let numbers = async || {
        let check = fixture.last_check().await.expect("noted");
        (check.snapshot.chats, check.settled_through, check.last_number)
    };
    assert_eq!(numbers().await, (0, 0, 0));
    fixture.buy(&reservation("ann", PRICE), "").await;
    fixture.check(1).await;
    assert_eq!(numbers().await, (1, 0, 1), "it ended just now");
    fixture.pass(5 * MINUTE);
    let running = fixture.send(&reservation("ann", PRICE)).await;
    fixture.buy(&reservation("ann", PRICE), "").await;
    fixture.check(2).await;
    assert_eq!(numbers().await, (2, 1, 3));
    fixture.pass(5 * MINUTE);
    fixture.check(3).await;
    assert_eq!(numbers().await, (3, 1, 3), "one is still under way");
    fixture.settle(running, Settlement::Unknown).await;
    fixture.pass(5 * MINUTE);
    fixture.check(4).await;
    assert_eq!(numbers().await, (4, 3, 3));
    assert_eq!(bounded(fixture.store.unknown_after(1)).await.unwrap(), 1);
    assert_eq!(bounded(fixture.store.unknown_after(2)).await.unwrap(), 0);
    // A clock that was ahead settles nothing.
    fixture.buy(&reservation("ann", PRICE), "").await;
    fixture.set(START);
    fixture.check(5).await;
    assert_eq!(numbers().await, (5, 3, 4));
}

async fn snapshots_come_newest_first(fixture: Fixture) {
    let chats = async |most| {
        let checks = bounded(fixture.store.latest_snapshots(most)).await.expect("looked up");
        checks.iter().map(|check| check.chats).collect::<Vec<_>>()
    };
    assert!(chats(9).await.is_empty());
    for turn in 1..=3 {
        fixture.check(turn).await;
    }
    assert_eq!(chats(9).await, [3, 2, 1]);
    assert_eq!(chats(2).await, [3, 2]);
    assert_eq!(fixture.last_check().await.unwrap().snapshot, snapshot(3, START));
}

async fn evidence_is_what_the_counters_may_hold(fixture: Fixture) {
    let finished = fixture.order("a", Some(JobState::Finished)).await;
    let failed = fixture.order("b", Some(JobState::Failed)).await;
    let open = fixture.order("c", None).await;
    let lost = fixture.send(&reservation("ann", PRICE)).await;
    fixture.settle(lost, Settlement::Unknown).await;
    let chat = fixture.buy(&reservation("ann", PRICE), "").await;
    let free = fixture.send(&reservation("ann", PRICE)).await;
    fixture.settle(free, Settlement::Released).await;
    let running = fixture.send(&reservation("ann", PRICE)).await;
    let ids = async |settled, refundable| {
        let found = fixture.evidence(settled, refundable).await;
        found.iter().map(|entry| (entry.number, entry.purchase.id)).collect::<Vec<_>>()
    };
    let all = [finished, failed, open, lost, chat, free, running];
    assert_eq!(ids(0, Duration::MAX).await, (1..).zip(all).collect::<Vec<_>>());
    assert_eq!(ids(5, Duration::MAX).await, [(4, lost), (6, free), (7, running)]);
    assert_eq!(ids(u64::MAX, Duration::MAX).await, [(4, lost)]);
    // What may still be refunded: by its end, or by when its failure was heard of. A finished job may
    // still turn out to have failed.
    assert_eq!(ids(9, START).await, [(2, failed), (4, lost)]);
    let earlier = START - SECOND;
    assert_eq!(ids(9, earlier).await, [(1, finished), (2, failed), (3, open), (4, lost)]);
    assert_eq!(ids(9, START + MINUTE).await, [(4, lost)]);
    let jobs: Vec<_> = fixture.evidence(0, START).await.iter().map(|entry| entry.job).collect();
    let states = [JobState::Finished, JobState::Failed, JobState::Open].map(Some);
    assert_eq!((&jobs[..3], &jobs[3..]), (&states[..], &[None; 4][..]));
}

async fn unrecognized_account_stays_with_its_purchase(fixture: Fixture) {
    let (listed, unlisted) =
        (fixture.send(&reservation("ann", PRICE)).await, reservation("ann", PRICE));
    fixture.reserve(&unlisted).await.expect("set aside");
    let sent =
        async |account| bounded(fixture.store.mark_sent(unlisted.id, account)).await.unwrap();
    sent(AccountStatus::Unconfirmed).await;
    sent(AccountStatus::Confirmed).await;
    fixture.settle(unlisted.id, Settlement::Unknown).await;
    let found = fixture.evidence(0, Duration::MAX).await;
    let found: Vec<_> =
        found.iter().map(|entry| (entry.purchase.id, entry.is_account_confirmed)).collect();
    assert_eq!(found, [(listed, true), (unlisted.id, false)]);
}

async fn charge_without_a_reply_is_assumed(fixture: Fixture) {
    let read = fixture.buy(&reservation("ann", PRICE), "").await;
    let lost = fixture.send(&reservation("ann", PRICE)).await;
    fixture.settle(lost, Settlement::Unknown).await;
    let inferred = Settlement::Charged { cost: PRICE, reply: None, keep: HOUR, job: None };
    fixture.settle(lost, inferred).await;
    let found = fixture.evidence(0, Duration::MAX).await;
    let assumed: Vec<_> = found.iter().map(|entry| (entry.purchase.id, entry.is_assumed)).collect();
    assert_eq!(assumed, [(read, false), (lost, true)]);
}

async fn purchase_is_found_by_its_id(fixture: Fixture) {
    let id = fixture.buy(&reservation("ann", PRICE), "").await;
    let found = bounded(fixture.store.purchase(id)).await.unwrap().expect("it is there");
    assert_eq!((found.id, found.state), (id, PurchaseState::Charged));
    assert_eq!(bounded(fixture.store.purchase(PurchaseId::generate())).await.unwrap(), None);
}

async fn one_common_key_means_the_same_account(fixture: Fixture) {
    use AccountCheck::{Compare, Record};
    assert!(fixture.recognise(&["a"], Compare).await, "none is noted");
    assert!(fixture.recognise(&["b"], Record).await);
    assert!(!fixture.recognise(&["a"], Compare).await);
    assert!(!fixture.recognise(&["a", "c"], Record).await);
    assert!(fixture.recognise(&["b", "a"], Compare).await);
    assert!(!fixture.recognise(&["a"], Compare).await, "a look notes nothing");
    assert!(fixture.recognise(&["b", "a"], Record).await);
    assert!(fixture.recognise(&["a", "c"], Record).await);
    assert!(fixture.recognise(&["b"], Compare).await, "an old key is still the account's");
}

async fn adopted_account_uses_no_earlier_checkpoint(fixture: Fixture) {
    use AccountCheck::{Adopt, Compare, Record};
    assert!(fixture.recognise(&["a", "b"], Record).await);
    fixture.check(7).await;
    assert!(fixture.recognise(&["b", "c"], Adopt).await, "the same account");
    assert!(fixture.last_check().await.is_some());
    assert!(fixture.recognise(&["x", "y"], Adopt).await);
    assert_eq!(fixture.last_check().await, None);
    assert_eq!(
        bounded(fixture.store.latest_snapshots(9)).await.unwrap(),
        [snapshot(7, START)],
        "history"
    );
    assert!(fixture.recognise(&["y"], Compare).await && !fixture.recognise(&["a"], Compare).await);
    fixture.check(8).await;
    assert_eq!(fixture.last_check().await.unwrap().snapshot.chats, 8);
    // And back: a key that was noted once is noted again.
    assert!(fixture.recognise(&["a"], Adopt).await);
    assert!(fixture.recognise(&["a"], Compare).await && !fixture.recognise(&["y"], Compare).await);
}

async fn listing_of_another_account_writes_nothing(fixture: Fixture) {
    use AccountCheck::{Compare, Record};
    let limit = AccountLimit { requests: 1_000, window_seconds: 60 };
    assert!(fixture.recognise(&["a"], Record).await);
    fixture.store.record_rate_limit(limit);
    fixture.check(7).await;
    for how in [Compare, Record] {
        assert!(!fixture.recognise(&["x"], how).await);
        let left = bounded(fixture.store.recorded_rate_limit()).await.expect("read");
        assert_eq!(left, Some(limit), "{how:?}");
        assert_eq!(fixture.last_check().await.unwrap().snapshot.chats, 7, "{how:?}");
    }
    assert!(!fixture.recognise(&["x"], Compare).await, "its key was not recorded");
}

async fn checkpoint_before_a_new_account_is_not_used(fixture: Fixture) {
    use AccountCheck::{Adopt, Record};
    assert!(fixture.recognise(&["a"], Record).await);
    fixture.check(7).await;
    assert!(fixture.recognise(&["x"], Adopt).await);
    assert_eq!(fixture.last_check().await, None);
    assert_eq!(
        bounded(fixture.store.latest_snapshots(9)).await.unwrap(),
        [snapshot(7, START)],
        "history"
    );
    fixture.check(8).await;
    assert_eq!(fixture.last_check().await.unwrap().snapshot.chats, 8);
}
