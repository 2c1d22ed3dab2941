//! Gauges that a scrape reads from the ledger, the settings and the gateway client.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::{Histogram, Labels, SharedLedgerMetrics};

/// Positions of keys as label values: the settings take five at most.
const KEYS: [&str; 5] = ["1", "2", "3", "4", "5"];

/// A reading that is not known (yet) is left out: 0 would be a statement.
#[derive(Debug, Default)]
pub struct Readings {
    /// `live` or `sandbox`.
    pub mode: Option<&'static str>,
    pub rate_limit: Option<SlotReading>,
    pub balance: Option<BalanceReading>,
    pub budgets: Vec<BudgetReading>,
    pub ledger: Option<LedgerReading>,
    /// Why purchases cannot be recorded, if they cannot.
    pub ledger_state: Option<Result<(), &'static str>>,
    pub ledger_commits: Option<Histogram>,
    /// When the certificate of `server.tls` ends, since the Unix epoch.
    pub certificate_expires: Option<Duration>,
    /// The counters of a shared ledger.
    pub instances: Option<InstanceReading>,
    pub shared_ledger: Option<SharedLedgerMetrics>,
    /// Whether each key is usable, in the order of the settings.
    pub keys: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
pub struct SlotReading {
    pub free: usize,
    pub waiting: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct BalanceReading {
    pub micros: i64,
    pub age: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct BudgetReading {
    /// `day` or `month`.
    pub period: &'static str,
    pub limit_micros: u64,
    pub spent_micros: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct InstanceReading {
    pub alive: u64,
    pub late: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct LedgerReading {
    pub unknown: u64,
    pub unknown_micros: u64,
    pub open_jobs: u64,
    pub oldest_job: Duration,
    /// `None` for a ledger in memory.
    pub bytes: Option<u64>,
}

impl Readings {
    pub(super) fn registry(self) -> Registry {
        let mut registry = Registry::with_prefix("tollgate");
        let r = &mut registry;
        if let Some(mode) = self.mode {
            let info = [("version", env!("CARGO_PKG_VERSION")), ("mode", mode)];
            family(r, "build_info", "Version and mode; always 1", [(info, 1)]);
        }
        if let Some(SlotReading { free, waiting }) = self.rate_limit {
            gauge(r, "rate_limit_free", "Free rate limit slots; 0 after a 429", count(free));
            gauge(
                r,
                "rate_limit_waiting",
                "Requests waiting for a slot, without polls of videos",
                count(waiting),
            );
        }
        if let Some(BalanceReading { micros, age }) = self.balance {
            gauge(r, "balance_microdollars", "The gateway's latest balance", micros);
            gauge(r, "balance_age_seconds", "Time since that balance", age.as_secs());
        }
        let of_budgets = |micros: fn(&BudgetReading) -> u64| {
            let value = move |budget| ([("period", BudgetReading::period(budget))], micros(budget));
            self.budgets.iter().map(value).collect::<Vec<_>>()
        };
        let (limits, spent) =
            (of_budgets(|budget| budget.limit_micros), of_budgets(|budget| budget.spent_micros));
        family(r, "budget_limit_microdollars", "budget.total", limits);
        family(r, "budget_spent_microdollars", "Spent of budget.total in this period", spent);
        self.ledger.iter().for_each(|ledger| ledger.register(r));
        let help = "1 if purchases can be recorded; else 0, and the cause";
        match self.ledger_state {
            Some(Ok(())) => gauge(r, "ledger_usable", help, 1),
            Some(Err(cause)) => family(r, "ledger_usable", help, [([("cause", cause)], 0)]),
            None => {}
        }
        if let Some(commits) = self.ledger_commits {
            histogram(r, "ledger_commit_seconds", "Time of a commit to the ledger", commits);
        }
        if let Some(expires) = self.certificate_expires {
            let help = "End of the certificate of server.tls, in Unix time";
            gauge(r, "certificate_expires_seconds", help, expires.as_secs());
        }
        if let Some(InstanceReading { alive, late }) = self.instances {
            let states = [([("state", "alive")], alive), ([("state", "late")], late)];
            family(r, "instances", "Servers that share the ledger", states);
        }
        self.shared_ledger.iter().for_each(|ledger| ledger.register(r));
        let keys = KEYS.into_iter().zip(&self.keys);
        let keys = keys.map(|(position, is_usable)| ([("key", position)], u64::from(*is_usable)));
        family(r, "key_usable", "1, or 0 while the gateway rejects the key", keys);
        registry
    }
}

impl BudgetReading {
    fn period(&self) -> &'static str {
        self.period
    }
}

impl LedgerReading {
    fn register(&self, r: &mut Registry) {
        gauge(r, "unknown_purchases", "Purchases with unknown outcome", self.unknown);
        gauge(r, "unknown_microdollars", "Prices of unknown purchases", self.unknown_micros);
        gauge(r, "jobs_open", "Videos that are being made", self.open_jobs);
        gauge(r, "job_oldest_seconds", "Age of the oldest open video", self.oldest_job.as_secs());
        if let Some(bytes) = self.bytes {
            gauge(r, "ledger_bytes", "Size of the ledger with its write-ahead log", bytes);
        }
    }
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn signed(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

fn histogram(registry: &mut Registry, name: &str, help: &str, histogram: Histogram) {
    registry.register(name, help, histogram);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: impl TryInto<i64>) {
    registry.register(name, help, ConstGauge::new(signed(value)));
}

fn family<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels<N>, u64)>,
) {
    let gauges = Family::<Labels<N>, Gauge>::default();
    let mut is_known = false;
    for (labels, value) in values {
        gauges.get_or_create(&labels).set(signed(value));
        is_known = true;
    }
    if is_known {
        registry.register(name, help, gauges);
    }
}
