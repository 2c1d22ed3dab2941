//! What a server counts about the ledger that it shares with others.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

use super::{Durations, Histogram, Labels};

/// Clones share their counts.
#[derive(Clone, Debug, Default)]
pub struct SharedLedgerMetrics {
    pub charges_of_released: Counter,
    pub charges_of_lost: Counter,
    pub instances_buried: Counter,
    purchases_buried: Family<Labels<1>, Counter>,
    pub rewinds: Counter,
    pub clock_jumps: Counter,
    pub rules_differ: Counter,
    pub settings_differ: Gauge,
    pub lease_seconds: Gauge,
    flush_seconds: FlushSeconds,
    flush_steps: Family<Labels<1>, Counter>,
}

/// The times of transactions, by connection.
#[derive(Clone, Debug)]
struct FlushSeconds(Durations);

impl Default for FlushSeconds {
    fn default() -> Self {
        Self(Durations::new_with_constructor(Histogram::of_commits))
    }
}

impl SharedLedgerMetrics {
    /// Counts a transaction that was committed.
    pub fn count_flush(&self, lane: &'static str, steps: usize, took: Duration) {
        let labels = [("lane", lane)];
        self.flush_seconds.0.get_or_create(&labels).observe(took);
        self.flush_steps.get_or_create(&labels).inc_by(steps as u64);
    }

    /// Counts what a dead instance had left open.
    pub fn count_buried_purchases(&self, released: u64, unknown: u64) {
        for (state, count) in [("released", released), ("unknown", unknown)] {
            self.purchases_buried.get_or_create(&[("state", state)]).inc_by(count);
        }
    }

    pub(super) fn register(&self, r: &mut Registry) {
        let Self {
            charges_of_released,
            charges_of_lost,
            instances_buried,
            purchases_buried,
            rewinds,
            clock_jumps,
            rules_differ,
            settings_differ,
            lease_seconds,
            flush_seconds,
            flush_steps,
        } = self;
        let help = "Charged purchases that had been released, so that no budget counts them";
        add(r, "charges_of_released", help, charges_of_released);
        let help = "Sent purchases that the ledger has lost, so that no budget counts them";
        add(r, "charges_of_lost", help, charges_of_lost);
        add(r, "instances_buried", "Servers that this one has declared dead", instances_buried);
        let help = "Open purchases that dead servers left, by their new state";
        add(r, "purchases_buried", help, purchases_buried);
        add(r, "ledger_rewinds", "Times that the database had lost commits", rewinds);
        add(r, "ledger_clock_jumps", "Jumps ahead of the database's clock", clock_jumps);
        let help = "Verdicts of the database that this server does not share";
        add(r, "ledger_rules_differ", help, rules_differ);
        let help = "Other servers whose budgets, rate limit or retention differ";
        add(r, "settings_differ", help, settings_differ);
        let help = "How long this server may send without another heartbeat";
        add(r, "lease_seconds", help, lease_seconds);
        let help = "Time of a transaction of the shared ledger, by connection";
        add(r, "ledger_flush_seconds", help, &flush_seconds.0);
        add(r, "ledger_flush_steps", "Requests that these transactions held", flush_steps);
    }
}

fn add(registry: &mut Registry, name: &str, help: &str, metric: &(impl Metric + Clone)) {
    registry.register(name, help, metric.clone());
}
