//! What `/metrics` reads at each scrape.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::{App, SharedState};
use crate::account::summary::BillingSummary;
use crate::config::Target;
use crate::gateway::KeyRing;
use crate::gateway::contract::money::Usd;
use crate::ledger::{
    BudgetScope, Budgets, Cause, InstanceCounts, KeyId, LedgerTotals, Unavailable,
};
use crate::metrics::{
    BalanceReading, BudgetReading, InstanceReading, LedgerReading, Readings, SlotReading,
};
use crate::sync::lock;

/// A ledger that hangs must not hang the scrape.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The readings' sources that a reload replaces.
pub struct Watched {
    mode: &'static str,
    pub(super) budgets: Budgets,
    pub(super) keys: Arc<Mutex<KeyRing>>,
    pub(super) key_ids: Arc<[KeyId]>,
    /// The balance below which `balance.low` is reported.
    pub(super) balance_alert: Usd,
}

impl App {
    pub(super) fn watched(&self) -> Watched {
        Watched {
            mode: match self.settings.gateway.target {
                Target::Sandbox => "sandbox",
                Target::Live { .. } => "live",
            },
            budgets: self.context.terms.limits,
            keys: Arc::clone(&self.gateway.ring),
            key_ids: Arc::clone(&self.context.keys),
            balance_alert: self.settings.alerts.balance,
        }
    }

    /// Returns the source of [`Readings`], which also follows later reloads.
    pub fn readings(&self) -> impl Fn() -> BoxFuture<'static, Readings> + Send + Sync + 'static {
        let (shared, summary) = (self.shared.clone(), self.summary.clone());
        move || {
            let (shared, summary) = (shared.clone(), summary.clone());
            Box::pin(async move { read(&shared, &summary).await })
        }
    }
}

async fn read(shared: &SharedState, summary: &BillingSummary) -> Readings {
    let SharedState { store, rate_limit, .. } = shared;
    let watched = shared.watched.load_full();
    let watched = watched.as_deref();
    let balance = summary.reading().map(|reading| BalanceReading {
        micros: reading.listing.billing.balance().as_micros(),
        age: store.now().saturating_sub(reading.as_of),
    });
    let budgets = match watched {
        Some(watched) => budgets(shared, &watched.budgets).await,
        None => Vec::new(),
    };
    let totals = timeout(LEDGER_TIMEOUT, store.totals()).await;
    let mut ledger_state = None;
    if !store.is_starting() {
        let usable = timeout(LEDGER_TIMEOUT, store.ensure_usable()).await;
        let cause = |why: Unavailable| why.0.cause.code();
        ledger_state =
            Some(usable.map_or(Err(Cause::Other.code()), |usable| usable.map_err(cause)));
    }
    let instances = timeout(LEDGER_TIMEOUT, store.instance_counts()).await.ok().flatten();
    let instances = instances.map(|InstanceCounts { alive, late }| InstanceReading { alive, late });
    Readings {
        mode: watched.map(|watched| watched.mode),
        rate_limit: Some(SlotReading {
            free: rate_limit.free_slots(),
            waiting: rate_limit.waiting_count(),
        }),
        balance,
        budgets,
        ledger: totals.ok().and_then(Result::ok).map(|totals| reading(&totals, store.now())),
        ledger_state,
        ledger_commits: Some(store.commit_durations()),
        certificate_expires: shared.tls.as_ref().and_then(|tls| Some(tls.certificate()?.expires())),
        instances,
        shared_ledger: store.shared_metrics(),
        keys: watched.map(|watched| lock(&watched.keys).are_usable()).unwrap_or_default(),
    }
}

fn reading(totals: &LedgerTotals, now: Duration) -> LedgerReading {
    LedgerReading {
        unknown: totals.unknown,
        unknown_micros: totals.unknown_price.as_micros(),
        open_jobs: totals.open_jobs,
        oldest_job: totals.oldest_job_at.map_or(Duration::ZERO, |at| now.saturating_sub(at)),
        bytes: totals.bytes,
    }
}

async fn budgets(shared: &SharedState, budgets: &Budgets) -> Vec<BudgetReading> {
    if budgets.total.is_none() {
        return Vec::new();
    }
    let spent = timeout(LEDGER_TIMEOUT, shared.store.current_spend(BudgetScope::Total)).await;
    let Ok(Ok(spent)) = spent else { return Vec::new() };
    let readings = budgets.total.rows().map(|(period, limit)| BudgetReading {
        period: period.name(),
        limit_micros: limit.as_micros(),
        spent_micros: spent.get(period).as_micros(),
    });
    readings.collect()
}
