//! Prometheus metrics. Label values come from fixed lists only.

mod histogram;
mod process;
mod readings;
mod shared_ledger;

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

pub use histogram::Histogram;
pub use process::LOG_LINES_DROPPED;
pub use readings::{
    BalanceReading, BudgetReading, InstanceReading, LedgerReading, Readings, SlotReading,
};
pub use shared_ledger::SharedLedgerMetrics;

use crate::clock;

pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Durations,
    gateway_seconds: Durations,
    slot_wait_seconds: Durations,
    refusals: Family<Labels<1>, Counter>,
    purchases: Family<Labels<2>, Counter>,
    prices: Family<Labels<2>, Counter>,
    pub redacted: Counter,
    pub credentials_failed: Counter,
    pub connections: Gauge,
    pub connections_refused: Counter,
    pub tls_handshakes_failed: Counter,
    replays: Family<Labels<1>, Counter>,
    saved: Family<Labels<1>, Counter>,
    webhooks: Family<Labels<2>, Counter>,
    /// Wall-clock time since the Unix epoch.
    started: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    status: u16,
}

/// The names and values of `N` labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

type Durations = Family<Labels<1>, Histogram, fn() -> Histogram>;

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tollgate");
        let r = &mut registry;
        Self {
            requests: register(r, "requests", "Requests answered"),
            request_seconds: durations(r, "request_seconds", "Time to response heads"),
            gateway_seconds: durations(r, "gateway_seconds", "Time from slot to gateway reply"),
            slot_wait_seconds: durations(r, "slot_wait_seconds", "Wait for a rate limit slot"),
            refusals: register(r, "refusals", "Refusals by problem code"),
            purchases: register(r, "purchases", "Purchases by outcome"),
            prices: register(r, "price_microdollars", "Prices of purchases, in micro-dollars"),
            redacted: register(r, "keys_redacted", "Gateway replies in which a key was redacted"),
            credentials_failed: register(r, "credentials_failed", "Invalid credentials received"),
            connections: register(r, "connections", "Open client connections"),
            connections_refused: register(
                r,
                "connections_refused",
                "Connections closed and HTTP/2 requests refused at the per-address limit",
            ),
            tls_handshakes_failed: register(
                r,
                "tls_handshakes_failed",
                "Connections that ended before TLS was agreed",
            ),
            replays: register(r, "replays", "Duplicates answered without another purchase"),
            webhooks: register(r, "webhooks", "Attempts to deliver events to webhooks"),
            saved: register(r, "saved_microdollars", "Money that these would have cost again"),
            started: clock::wall(),
            registry,
        }
    }
}

fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn durations(registry: &mut Registry, name: &str, help: &str) -> Durations {
    let metric = Durations::new_with_constructor(Histogram::of_requests);
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    pub fn request(&self, endpoint: &'static str, status: u16, elapsed: Duration) {
        self.requests.get_or_create(&RequestLabels { endpoint, status }).inc();
        self.request_seconds.get_or_create(&[("endpoint", endpoint)]).observe(elapsed);
    }

    /// `code` is the code of a problem.
    pub fn refusal(&self, code: &'static str) {
        self.refusals.get_or_create(&[("code", code)]).inc();
    }

    /// `outcome` is `charged`, `refused` or `unknown`.
    pub fn purchase(&self, service: &'static str, outcome: &'static str, price_micros: u64) {
        let labels = [("service", service), ("outcome", outcome)];
        self.purchases.get_or_create(&labels).inc();
        self.prices.get_or_create(&labels).inc_by(price_micros);
    }

    /// `service` is the kind of call: `chat`, `video`, `other`, `status` or `billing`.
    pub fn gateway_call(&self, service: &'static str, elapsed: Duration) {
        self.gateway_seconds.get_or_create(&[("service", service)]).observe(elapsed);
    }

    /// Records a wait for a slot, also one that was given up. `service` is the kind of call.
    pub fn slot_wait(&self, service: &'static str, elapsed: Duration) {
        self.slot_wait_seconds.get_or_create(&[("service", service)]).observe(elapsed);
    }

    /// Counts a duplicate that got the reply of an earlier purchase. `how` is `joined`, `kept` or
    /// `deduped`.
    pub fn replay(&self, how: &'static str, saved_micros: u64) {
        self.replays.get_or_create(&[("how", how)]).inc();
        self.saved.get_or_create(&[("how", how)]).inc_by(saved_micros);
    }

    /// Counts an attempt. `outcome` is `delivered`, `failed` or `dropped`, after which no other
    /// attempt follows.
    pub fn webhook(&self, event: &'static str, outcome: &'static str) {
        self.webhooks.get_or_create(&[("event", event), ("outcome", outcome)]).inc();
    }

    /// Returns the page of a scrape.
    pub fn encode(&self, readings: Readings) -> String {
        let mut page = String::new();
        let registries = [&self.registry, &readings.registry(), &process::read(self.started)];
        let done = registries
            .into_iter()
            .try_for_each(|registry| text::encode_registry(&mut page, registry))
            .and_then(|()| text::encode_eof(&mut page));
        done.map_or_else(|_| String::new(), |()| page)
    }
}
