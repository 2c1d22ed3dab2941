//! Prometheus metrics. Label values come from fixed lists only.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_micros: Family<Labels<1>, Counter<u64, AtomicU64>>,
    refusals: Family<Labels<1>, Counter>,
    purchases: Family<Labels<2>, Counter>,
    prices: Family<Labels<2>, Counter>,
    pub redacted: Counter,
    pub credentials_failed: Counter,
    pub connections: Gauge,
    pub connections_refused: Counter,
    slots_free: Gauge,
    slot_waiters: Gauge,
    pub unknown_purchases: Gauge,
    pub unknown_micros: Gauge,
    rate_limit: OnceLock<Box<dyn Fn() -> (usize, usize) + Send + Sync>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: u16,
}

/// The names and values of `N` labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tollgate");
        let r = &mut registry;
        Self {
            requests: register(r, "requests", "Requests answered"),
            request_micros: register(r, "request_microseconds", "Summed time to response heads"),
            refusals: register(r, "refusals", "Refusals by problem code"),
            purchases: register(r, "purchases", "Purchases by outcome"),
            prices: register(r, "price_microdollars", "Prices of purchases, in micro-dollars"),
            redacted: register(r, "keys_redacted", "Gateway replies in which a key was redacted"),
            credentials_failed: register(r, "credentials_failed", "Invalid credentials received"),
            connections: register(r, "connections", "Open client connections"),
            connections_refused: register(
                r,
                "connections_refused",
                "Connections closed at the per-address limit",
            ),
            slots_free: register(r, "rate_limit_free", "Free rate limit slots; 0 after a 429"),
            slot_waiters: register(r, "rate_limit_waiting", "Requests waiting for a slot"),
            unknown_purchases: register(r, "unknown_purchases", "Purchases with unknown outcome"),
            unknown_micros: register(r, "unknown_microdollars", "Prices of unknown purchases"),
            rate_limit: OnceLock::new(),
            registry,
        }
    }
}

fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    pub fn request(&self, route: &'static str, status: u16, elapsed: Duration) {
        self.requests.get_or_create(&RequestLabels { route, status }).inc();
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.request_micros.get_or_create(&[("route", route)]).inc_by(micros);
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

    /// Sets the source of free slots and waiting requests. Later calls have no effect.
    pub fn watch_rate_limit(&self, look: impl Fn() -> (usize, usize) + Send + Sync + 'static) {
        let _ = self.rate_limit.set(Box::new(look));
    }

    pub fn encode(&self) -> String {
        if let Some(look) = self.rate_limit.get() {
            let (free, waiting) = look();
            let gauge = |count| i64::try_from(count).unwrap_or(i64::MAX);
            self.slots_free.set(gauge(free));
            self.slot_waiters.set(gauge(waiting));
        }
        let mut page = String::new();
        text::encode(&mut page, &self.registry).map_or_else(|_| String::new(), |()| page)
    }
}
