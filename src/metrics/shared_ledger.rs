//! What a server counts about the ledger that it shares with others.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Clones share their counts.
#[derive(Clone, Debug, Default)]
pub struct SharedLedgerMetrics {
    pub charges_of_released: Counter,
}

impl SharedLedgerMetrics {
    pub(super) fn register(&self, r: &mut Registry) {
        let Self { charges_of_released } = self;
        counter(
            r,
            "charges_of_released",
            "Charged purchases that had been released, so that no budget counts them",
            charges_of_released,
        );
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str, counter: &Counter) {
    registry.register(name, help, counter.clone());
}
