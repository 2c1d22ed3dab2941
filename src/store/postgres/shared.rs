//! What the lanes, the pulse and the callers of a store share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::PostgresTarget;
use super::clock::LedgerClock;
use super::clock_jumps::LastReading;
use super::lease::Lease;
use super::own_slots::OwnSlots;
use crate::clock::Instant;
use crate::contract::money::Usd;
use crate::metrics::{Histogram, SharedLedgerMetrics};
use crate::store::{AccountLimit, Digest, PurchaseId, Reason, Unavailable};
use crate::sync::lock;

pub(super) struct Shared {
    pub(super) target: PostgresTarget,
    pub(super) clock: Arc<LedgerClock>,
    /// The clock of leases, which a simulation replaces.
    pub(super) since_boot: fn() -> Duration,
    /// The ledger's public name.
    pub(super) name: Mutex<Arc<str>>,
    /// The number of this instance, which changes after it was declared dead.
    pub(super) instance: AtomicI64,
    /// Notified when a transaction was refused because this instance was declared dead.
    pub(super) buried: Notify,
    pub(super) last_beat: Mutex<LastBeat>,
    pub(super) lease: Lease,
    /// The fingerprint of the budgets and limits that this server goes by.
    pub(super) rules: Mutex<Option<Digest>>,
    pub(super) running: Mutex<OwnPurchases>,
    /// Notified when purchases of this instance have ended.
    pub(super) ends: Notify,
    pub(super) credit_used: AtomicBool,
    pub(super) slots: OwnSlots,
    pub(super) last_reading: LastReading,
    pub(super) latest_rate_limit: Arc<Mutex<Option<AccountLimit>>>,
    pub(super) is_retry_queue_full: AtomicBool,
    pub(super) commits: Histogram,
    pub(super) metrics: SharedLedgerMetrics,
    /// Why the database is not reached; `None` while it is.
    outage: Mutex<Option<Reason>>,
}

/// The last heartbeat that the database has acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct LastBeat {
    pub(super) number: i64,
    /// The ledger's name then. If a later beat finds another one, any loss since is noticed already.
    pub(super) ledger: Arc<str>,
}

/// The purchases that this instance answers for.
#[derive(Default)]
pub(super) struct OwnPurchases {
    pub(super) purchases: HashMap<PurchaseId, RunningPurchase>,
    /// It is unknown whether these were held, since these times. They were certainly not sent.
    pub(super) doubtful: HashMap<PurchaseId, Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RunningPurchase {
    /// The number of this instance when it began. After a burial, the purchase is no longer its own.
    pub(super) owner: i64,
    pub(super) price: Usd,
    /// Whether the database has answered.
    pub(super) is_held: bool,
}

impl Shared {
    pub(super) fn new(
        target: PostgresTarget,
        clock: LedgerClock,
        since_boot: fn() -> Duration,
    ) -> Self {
        Self {
            target,
            clock: Arc::new(clock),
            since_boot,
            name: Mutex::new("".into()),
            instance: AtomicI64::new(0),
            buried: Notify::new(),
            last_beat: Mutex::default(),
            lease: Lease::default(),
            rules: Mutex::default(),
            running: Mutex::default(),
            ends: Notify::new(),
            credit_used: AtomicBool::new(false),
            slots: OwnSlots::default(),
            last_reading: LastReading::default(),
            latest_rate_limit: Arc::default(),
            is_retry_queue_full: AtomicBool::new(false),
            commits: Histogram::of_commits(),
            metrics: SharedLedgerMetrics::default(),
            outage: Mutex::new(None),
        }
    }

    /// Returns the present number of this instance.
    pub(super) fn number(&self) -> i64 {
        self.instance.load(Ordering::Relaxed)
    }

    /// Notes an outage, or its end, and logs the first note of each.
    pub(super) fn note_outage(&self, outage: Option<&Reason>) {
        let mut known = lock(&self.outage);
        match (&*known, outage) {
            (None, Some(reason)) => {
                let cause = reason.cause.code();
                tracing::error!(cause, error = %reason, "ledger database unreachable");
            }
            (Some(_), None) => tracing::info!("ledger database reached again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        *known = outage.cloned();
    }

    /// Notes the ledger's name, as this instance finds it when it joins.
    pub(super) fn join_ledger(&self, name: Arc<str>) {
        *lock(&self.last_beat) = LastBeat { number: 0, ledger: Arc::clone(&name) };
        *lock(&self.name) = name;
    }

    pub(super) fn check_reached(&self) -> Result<(), Unavailable> {
        lock(&self.outage).clone().map_or(Ok(()), |reason| Err(Unavailable(reason)))
    }

    pub(super) fn begin(&self, id: PurchaseId, owner: i64, price: Usd) {
        let purchase = RunningPurchase { owner, price, is_held: false };
        lock(&self.running).purchases.insert(id, purchase);
    }

    /// Returns whether this instance still answers for a running purchase.
    pub(super) fn may_send(&self, id: PurchaseId) -> bool {
        let owner = lock(&self.running).purchases.get(&id).map(|purchase| purchase.owner);
        owner.is_some_and(|owner| self.lease.holds(owner, (self.since_boot)()))
    }

    pub(super) fn held(&self, id: PurchaseId) {
        if let Some(purchase) = lock(&self.running).purchases.get_mut(&id) {
            purchase.is_held = true;
        }
    }

    pub(super) fn end(&self, id: PurchaseId) {
        lock(&self.running).purchases.remove(&id);
        self.ends.notify_waiters();
    }

    /// Returns the price of a running purchase of this instance.
    pub(super) fn price(&self, id: PurchaseId) -> Option<Usd> {
        lock(&self.running).purchases.get(&id).map(|purchase| purchase.price)
    }

    /// Returns the price that the database has held for a running purchase of this instance.
    pub(super) fn held_price(&self, id: PurchaseId) -> Option<Usd> {
        let running = lock(&self.running);
        running.purchases.get(&id).filter(|purchase| purchase.is_held).map(|held| held.price)
    }
}
