//! Measures what a purchase costs the ledger: `cargo bench --bench ledger`.
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{
    AccountStatus, Budgets, DedupeKey, DuplicateCheck, KeptReply, Period, PurchaseId, Reservation,
    Service, Settlement, SlotId, SlotLimit, SlotRate, SpendLimit, Store, WantedSlot,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("ledger.db");
    let disk = Store::serve(&path, Arc::new(clock::wall))?;
    let memory = Store::in_memory(Arc::new(clock::wall));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (cheap, dear) = (Usd::mills(6), Usd::dollars(3));
    runtime.block_on(async {
        measure("memory, cheap, one after another", &memory, cheap, 20_000, 1).await?;
        measure("disk, cheap, one after another", &disk, cheap, 5_000, 1).await?;
        measure("disk, cheap, 64 at once", &disk, cheap, 20_000, 64).await?;
        measure("disk, dear, one after another", &disk, dear, 100, 1).await?;
        measure("disk, dear, 64 at once", &disk, dear, 1_000, 64).await
    })?;
    drop(disk);
    let start = clock::now();
    drop(Store::serve(&path, Arc::new(clock::wall))?);
    println!("{:<40} {:>9} µs for 26,100 purchases", "disk, opened", start.elapsed().as_micros());
    Ok(())
}

/// Each of so many buys its share, one purchase after another: held and sent, charged, delivered.
async fn measure(name: &str, ledger: &Store, price: Usd, times: u32, at_once: u32) -> Outcome {
    let start = clock::now();
    let tasks = tokio::task::LocalSet::new();
    for _ in 0..at_once {
        let ledger = ledger.clone();
        tasks.spawn_local(async move {
            for _ in 0..times / at_once {
                if let Err(error) = buy(&ledger, price).await {
                    println!("{error}");
                }
            }
        });
    }
    tasks.await;
    println!("{name:<40} {:>9} µs a purchase", (start.elapsed() / times).as_micros());
    Ok(())
}

async fn buy(ledger: &Store, price: Usd) -> Outcome {
    let id = PurchaseId::generate();
    let mut fingerprint = [0; 32];
    fingerprint[..16].copy_from_slice(id.0.as_bytes());
    let limits = Budgets {
        total: SpendLimit::of(Period::Month, Usd::dollars(1_000_000)),
        ..Budgets::default()
    };
    let claim = DedupeKey::Fingerprint(DuplicateCheck {
        fingerprint,
        within: Duration::ZERO,
        refused_as: None,
        separate_from: Vec::new(),
    });
    let (caller, model) = ("192.0.2.7".into(), "alpha".into());
    let service = Service::Chat;
    let only_repeats = false;
    let asked = Reservation {
        id,
        attempt: 0,
        caller,
        group: None,
        token: None,
        service,
        model,
        price,
        dedupe_key: claim,
        budgets: limits,
        replay_only: only_repeats,
        requires: Default::default(),
    };
    let slot = SlotId::generate();
    let rate = SlotRate { requests: 1_000_000, period: Duration::from_secs(1) };
    let wanted = WantedSlot { id: slot, limit: SlotLimit { fixed: Some(rate), assumed: rate } };
    ledger.reserve_and_send(&asked, wanted, AccountStatus::Confirmed).await?;
    let reply = KeptReply { status: 200, is_json: true, body: vec![b'x'; 2_000].into() };
    let keep = Duration::from_secs(86_400);
    ledger.slot_replied(slot);
    ledger
        .settle(id, Settlement::Charged { cost: price, reply: Some(reply), keep, job: None })
        .await?;
    ledger.mark_delivered(id);
    Ok(())
}
