//! Counters of a ledger that several servers share.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

use super::Labels;

/// Clones share their counts.
#[derive(Clone, Debug, Default)]
pub struct SharedLedgerMetrics {
    pub charges_of_released: Counter,
    pub charges_of_lost: Counter,
    purchases_recovered: Family<Labels<1>, Counter>,
    pub rewinds: Counter,
    pub clock_jumps: Counter,
    pub settings_differ: Gauge,
}

impl SharedLedgerMetrics {
    /// Counts a purchase that this server has ended because its own one is gone.
    pub fn count_recovered(&self, state: &'static str) {
        self.purchases_recovered.get_or_create(&[("state", state)]).inc();
    }

    pub(super) fn register(&self, r: &mut Registry) {
        let Self {
            charges_of_released,
            charges_of_lost,
            purchases_recovered,
            rewinds,
            clock_jumps,
            settings_differ,
        } = self;
        // Counters that begin with their first event would show no increase.
        for state in ["released", "unknown"] {
            drop(purchases_recovered.get_or_create(&[("state", state)]));
        }
        let help = "Charged purchases that had been released, so that no budget counts them";
        add(r, "charges_of_released", help, charges_of_released);
        let help = "Sent purchases that the ledger has lost, so that no budget counts them";
        add(r, "charges_of_lost", help, charges_of_lost);
        for state in ["released", "unknown"] {
            // Prometheus sees no increase to the first value of a series.
            drop(purchases_recovered.get_or_create(&[("state", state)]));
        }
        let help = "Open purchases that dead servers left, by their new state";
        add(r, "purchases_recovered", help, purchases_recovered);
        add(
            r,
            "ledger_rewinds",
            "Times that the ledger was renamed because it may lack purchases",
            rewinds,
        );
        add(r, "ledger_clock_jumps", "Jumps ahead of the database's clock", clock_jumps);
        let help = "Other servers whose budgets, rate limit or retention differ";
        add(r, "settings_differ", help, settings_differ);
    }
}

fn add(registry: &mut Registry, name: &str, help: &str, metric: &(impl Metric + Clone)) {
    registry.register(name, help, metric.clone());
}
