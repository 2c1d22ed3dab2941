//! A ledger whose file was changed is refused, or what it holds adds up.
//!
//! The input is a whole file, or changes to a sound one, of four bytes each: what is done (`=` sets a
//! byte, `^` flips bits of it, `<` cuts the file there, anything else nothing), where (two bytes), and
//! the value.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountStatus, BudgetScope, Budgets, Clock, DedupeKey, KeptReply, PurchaseId, PurchaseState,
    Reservation, Service, Settlement, Store,
};
use uuid::Uuid;

pub(super) const WORDS: &[&str] = &[
    "<\u{8}\0\0",
    "=\0\0\0",
    "^\0\u{10}\u{1}",
    "^\0\u{12}\u{1}",
    "^\0\u{13}\u{1}",
    "^\0\u{1c}\u{7f}",
    "^\0\u{3c}\u{1}",
    "=\0\u{64}\u{5}",
    "=\0\u{67}\0",
    "^\u{10}\0\u{1}",
    "^\u{20}\u{8}\u{2}",
    "=\u{3f}\u{7f}\u{41}",
];

const MAGIC: &[u8] = b"SQLite format 3\0";
/// 2025-11-20, noon.
const NOON: Duration = Duration::from_secs(1_763_640_000);

pub(super) fn ledger(data: &[u8]) -> bool {
    let folder = folder();
    let path = folder.path().join("ledger.db");
    let file = match data.starts_with(MAGIC) {
        true => data.to_vec(),
        false => changed(sound(), data),
    };
    fs::write(&path, file).expect("written");
    let Ok(ledger) = Store::serve(&path, clock()) else { return false };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (rows, spent) = runtime.block_on(async {
        (
            ledger.purchases_since(Duration::ZERO).await,
            ledger.current_spend(BudgetScope::Total).await,
        )
    });
    // What SQLite finds out only now is an error, never a sum.
    if let (Ok(rows), Ok(spent)) = (rows, spent) {
        let counted = rows.iter().filter(|row| row.state != PurchaseState::Released);
        let sum: u64 = counted.map(|row| row.price.as_micros()).sum();
        assert!(spent.month.as_micros() <= sum, "{spent:?} of {sum}");
        assert!(spent.day <= spent.month, "{spent:?}");
        let own = |row: &&tollgate::ledger::PurchaseRecord| row.state == PurchaseState::Held;
        assert_eq!(rows.iter().find(own).map(|row| row.id), None, "left under way");
    }
    true
}

fn changed(sound: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut file = sound.to_vec();
    for change in changes.chunks_exact(4) {
        // Two bytes reach every page of a file of some twenty.
        let place = (usize::from(u16::from_be_bytes([change[1], change[2]])) * sound.len()) >> 16;
        let first_page = usize::from(change[2]);
        // The header decides what all the rest means.
        let place = if change[1] == 0 { first_page } else { place };
        match (change[0], file.get_mut(place)) {
            (b'=', Some(byte)) => *byte = change[3],
            (b'^', Some(byte)) => *byte ^= change[3],
            (b'<', Some(_)) => file.truncate(place),
            _ => {}
        }
    }
    file
}

/// The file of a ledger that has sold; the same bytes each time.
fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let folder = folder();
        let path = folder.path().join("ledger.db");
        let ledger = Store::serve(&path, clock()).expect("a new ledger");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for turn in 0..16 {
                sell(&ledger, turn).await;
            }
        });
        drop(ledger);
        fs::read(&path).expect("its file")
    })
}

async fn sell(ledger: &Store, turn: u8) {
    let id = PurchaseId(Uuid::from_bytes([turn + 1; 16]));
    let reservation = Reservation {
        id,
        caller: ["ann", "bob", "eve"][usize::from(turn) % 3].into(),
        service: Service::Chat,
        model: "eta-5-mini".into(),
        price: Usd::mills(3 + u64::from(turn)),
        dedupe_key: DedupeKey::IdempotencyKey { key: [turn; 32], payload: [turn; 32] },
        group: None,
        token: None,
        budgets: Budgets::default(),
        attempt: 0,
        replay_only: false,
        requires: Default::default(),
    };
    let body = b"a reply that is kept".as_slice();
    let reply = KeptReply { status: 200, is_json: true, body: body.into() };
    let ending = match turn % 8 {
        6 => Settlement::Released,
        7 => Settlement::Unknown,
        _ => Settlement::Charged {
            cost: reservation.price,
            reply: Some(reply),
            keep: NOON,
            job: None,
        },
    };
    ledger.reserve(&reservation).await.expect("set aside");
    ledger.mark_sent(id, AccountStatus::Confirmed).await.expect("marked");
    ledger.settle(id, ending).await.expect("settled");
}

fn clock() -> Clock {
    Arc::new(|| NOON)
}

/// Where a commit waits for memory alone, if there is such a place.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a folder")
}
