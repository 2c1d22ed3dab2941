//! A damaged file is refused, or it opens with all that it had: money is never guessed.
//!
//! What is asserted: a file without its log opens only if it is whole; a log that was cut takes with
//! it only the latest steps, never one that comes before one that is still there; a flipped bit is
//! refused, or it is where no purchase's name, state, caller's sum or cost is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    BudgetScope, Cause, Clock, OpenError, PurchaseId, PurchaseState, Settlement, Store,
};

use crate::fixture::*;

type Purchases = Vec<(PurchaseId, PurchaseState, Usd)>;

/// What each purchase cost or holds. A released one cost nothing, so no sum vouches for its price.
fn costs(purchases: Purchases) -> Purchases {
    let cost = |(id, state, price)| match state {
        PurchaseState::Released => (id, state, Usd::ZERO),
        PurchaseState::Held
        | PurchaseState::Sent
        | PurchaseState::Charged
        | PurchaseState::Unknown => (id, state, price),
    };
    purchases.into_iter().map(cost).collect()
}

#[tokio::test]
async fn truncated_ledger_is_refused() {
    let (fixture, copy) = sold().await;
    let whole = fs::read(&copy).unwrap();
    let cuts = (0..whole.len()).step_by(1_021).chain((0..whole.len()).step_by(4_096));
    for cut in cuts.chain([1, 99, 100, whole.len() - 1]) {
        fs::write(&copy, &whole[..cut]).unwrap();
        let opened = Store::serve(&copy, fixture.clock());
        assert!(matches!(opened, Err(OpenError::Unusable(_))), "{cut}: {opened:?}");
    }
    fs::write(&copy, &whole).unwrap();
    assert_eq!(purchases(&copy, fixture.clock()).await.unwrap().len(), 40);
}

#[tokio::test]
async fn flipped_bit_is_refused_or_harmless() {
    let (fixture, copy) = sold().await;
    let whole = fs::read(&copy).unwrap();
    let before = costs(purchases(&copy, fixture.clock()).await.unwrap());
    let whole_again = fs::read(&copy).unwrap();
    assert_eq!(whole.len(), whole_again.len());
    let (mut refused, mut opened) = (0, 0);
    let places = (0..100).step_by(3).chain((100..whole.len()).step_by(709));
    for (turn, place) in places.enumerate() {
        let mut bent = whole.clone();
        bent[place] ^= 1 << (turn % 8);
        fs::write(&copy, &bent).unwrap();
        match purchases(&copy, fixture.clock()).await {
            Ok(after) => {
                assert_eq!(costs(after), before, "bit {} of byte {place}", turn % 8);
                opened += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 20 && opened > 20, "{refused} refused, {opened} opened");
}

#[tokio::test]
async fn ledger_whose_counters_do_not_add_up_is_refused() {
    let (fixture, copied) = sold().await;
    let whole = fs::read(&copied).unwrap();
    for change in [
        "UPDATE spent SET micros = micros + 1 WHERE scope = 'total' AND unit = 'month'",
        "UPDATE spent SET micros = micros - 1 WHERE scope = 'caller ann' AND unit = 'day'",
        "DELETE FROM spent WHERE scope = 'caller bob'",
        "UPDATE purchases SET cost_micros = cost_micros + 1 WHERE number = 1",
        "UPDATE purchases SET price_micros = 7 WHERE state = 'unknown'",
        "UPDATE purchases SET caller = 'mallory' WHERE number = 2",
        "UPDATE purchases SET day = day - 1 WHERE number = 3",
        "DELETE FROM purchases WHERE state = 'unknown'",
    ] {
        fs::write(&copied, &whole).unwrap();
        rusqlite::Connection::open(&copied).unwrap().execute_batch(change).unwrap();
        let Err(OpenError::Unusable(why)) = purchases(&copied, fixture.clock()).await else {
            panic!("{change}")
        };
        assert!(why.text.contains("sum"), "{change}: {why}");
        assert_eq!(why.cause, Cause::Damaged, "{change}");
    }
}

#[tokio::test]
async fn truncated_wal_loses_only_its_latest_commits() {
    let (mut fixture, old) = sold().await;
    let before = purchases(&old, fixture.clock()).await.unwrap();
    fixture.restart();
    for turn in 0..10 {
        fixture.buy(&reservation("bob", Usd::mills(3 + turn)), "later").await;
    }
    let history = read(&fixture.store).await;
    let (copied, place) = (fixture.path().with_file_name("cut.db"), fixture.path());
    copy(&place, &copied);
    let (file, log) = (fs::read(&copied).unwrap(), beside(&copied, "-wal"));
    let whole = fs::read(&log).unwrap();
    assert!(whole.len() > 40_000, "the latest purchases are in the log");

    let mut fewest = usize::MAX;
    for cut in (0..=whole.len()).step_by(4_099).chain([whole.len()]) {
        for bend in [false, true] {
            let mut bent = whole[..cut].to_vec();
            if let (true, Some(last)) = (bend, bent.last_mut()) {
                *last ^= 0x10;
            }
            fs::write(&copied, &file).unwrap();
            fs::write(&log, &bent).unwrap();
            let found = purchases(&copied, fixture.clock()).await.unwrap();
            is_the_beginning(&found, &history, cut == whole.len() && !bend);
            assert!(found.len() >= before.len(), "what was in the file stays");
            fewest = fewest.min(found.len());
        }
    }
    assert_eq!(fewest, before.len());
}

/// All but the last of the purchases found are as they were in the end; the last may be anywhere on
/// its way.
fn is_the_beginning(found: &Purchases, history: &Purchases, is_whole: bool) {
    let Some(last) = found.len().checked_sub(1) else { return };
    assert_eq!(found[..last], history[..last]);
    assert_eq!(found[last].0, history[last].0);
    assert!(!is_whole || found == history);
}

/// A ledger that has sold, and a copy of its file, which is complete without the log.
async fn sold() -> (Fixture, PathBuf) {
    let mut fixture = Fixture::on_disk(Default::default());
    for turn in 0..40_u64 {
        let caller = ["ann", "bob", "eve"][turn as usize % 3];
        let key = format!("key {turn}");
        let reservation = match turn % 2 {
            0 => reservation(caller, Usd::mills(3 + turn)),
            _ => keyed(&key, "p"),
        };
        let id = fixture.send(&reservation).await;
        let ending = match turn % 8 {
            6 => Settlement::Released,
            7 => Settlement::Unknown,
            _ => charged(reservation.price, "a reply that is kept"),
        };
        fixture.settle(id, ending).await;
        fixture.pass(HOUR);
    }
    fixture.stop();
    assert!(!beside(&fixture.path(), "-wal").exists(), "the log was copied into the file");
    let copied = fixture.path().with_file_name("copy.db");
    copy(&fixture.path(), &copied);
    (fixture, copied)
}

/// What a damaged ledger holds, if it opens; its counters then are the sum of that.
async fn purchases(path: &Path, clock: Clock) -> Result<Purchases, OpenError> {
    // The index of a log that was another one.
    let _ = fs::remove_file(beside(path, "-shm"));
    let ledger = Store::serve(path, clock)?;
    let found = read(&ledger).await;
    let month = bounded(ledger.current_spend(BudgetScope::Total)).await.expect("counted").month;
    let sum = found.iter().filter(|(_, state, _)| *state != PurchaseState::Released);
    assert_eq!(month.as_micros(), sum.map(|(_, _, price)| price.as_micros()).sum::<u64>());
    Ok(found)
}

async fn read(ledger: &Store) -> Purchases {
    let rows = bounded(ledger.purchases_since(Duration::ZERO)).await.expect("rows");
    rows.into_iter().map(|row| (row.id, row.state, row.price)).collect()
}
