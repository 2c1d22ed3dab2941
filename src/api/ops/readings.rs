//! The values that `/metrics` reads at each scrape.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::account::alerts::InstanceSources;
use crate::gateway::rate_limit::RateLimit;
use crate::ledger::{
    BudgetScope, Budgets, Cause, InstanceCounts, LedgerTotals, Store, Unavailable,
};
use crate::metrics::{
    BalanceReading, BudgetReading, InstanceReading, LedgerReading, Readings, SlotReading,
};
use crate::sync::lock;

/// A ledger that hangs must not hang the scrape.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the source of [`Readings`], which also follows later reloads.
pub fn readings(
    instance: InstanceSources,
    rate_limit: Arc<RateLimit>,
) -> impl Fn() -> BoxFuture<'static, Readings> + Send + Sync + 'static {
    move || {
        let (instance, rate_limit) = (instance.clone(), Arc::clone(&rate_limit));
        Box::pin(async move { read(&instance, &rate_limit).await })
    }
}

async fn read(instance: &InstanceSources, rate_limit: &RateLimit) -> Readings {
    let InstanceSources { store, summary, tls, .. } = instance;
    let watched = instance.watched.load_full();
    let watched = watched.as_deref();
    let balance = summary.reading().map(|reading| BalanceReading {
        micros: reading.listing.billing.balance().as_micros(),
        age: store.now().saturating_sub(reading.as_of),
    });
    let budgets = match watched {
        Some(watched) => budgets(store, &watched.budgets).await,
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
        certificate_expires: tls.as_ref().and_then(|tls| Some(tls.certificate()?.expires())),
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

async fn budgets(store: &Store, budgets: &Budgets) -> Vec<BudgetReading> {
    if budgets.total.is_none() {
        return Vec::new();
    }
    let spent = timeout(LEDGER_TIMEOUT, store.current_spend(BudgetScope::Total)).await;
    let Ok(Ok(spent)) = spent else { return Vec::new() };
    let readings = budgets.total.rows().map(|(period, limit)| BudgetReading {
        period: period.name(),
        limit_micros: limit.as_micros(),
        spent_micros: spent.get(period).as_micros(),
    });
    readings.collect()
}
