//! Watches the account, the keys, the certificate and the ledger, and raises alerts.
//!
//! The ledger knows which alerts were raised, so neither a restart nor another server repeats one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::account::summary::BillingSummary;
use crate::account::webhooks::Webhooks;
use crate::clock::{self, Date, iso8601};
use crate::config::{Settings, WebhookConfig};
use crate::edge::tls::{EXPIRES_SOON, Tls};
use crate::gateway::KeyRing;
use crate::gateway::contract::event::EventKind;
use crate::gateway::contract::money::{SignedUsd, Usd};
use crate::ledger::{Alert, Budgets, Cause, KeyId, Store, Thresholds};
use crate::metrics::Metrics;
use crate::sync::lock;

const INTERVAL: Duration = Duration::from_secs(1);
/// The ledger is probed at each of so many looks.
const LEDGER_INTERVAL: u64 = 10;
const LEDGER_TIMEOUT: Duration = Duration::from_secs(5);
/// One failed probe may be a hiccup.
const LEDGER_FAILURES: u32 = 2;

/// Returns the percentages of budgets to report. Without a webhook for them, purchases do no more.
pub fn thresholds(settings: &Settings) -> Thresholds {
    let is_wanted = |webhook: &WebhookConfig| webhook.events.contains(&EventKind::BudgetThreshold);
    if settings.webhooks.targets.iter().any(is_wanted) {
        settings.alerts.budget
    } else {
        Thresholds::NONE
    }
}

/// The thresholds that the latest settings name.
pub struct Watched {
    pub mode: &'static str,
    pub budgets: Budgets,
    pub keys: Arc<Mutex<KeyRing>>,
    pub key_ids: Arc<[KeyId]>,
    /// The balance below which `balance.low` is reported.
    pub balance_alert: Usd,
}

/// Where the state of this instance is read.
#[derive(Clone)]
pub struct InstanceSources {
    pub store: Store,
    pub summary: BillingSummary,
    /// `None` before the first settings apply.
    pub watched: Arc<ArcSwapOption<Watched>>,
    pub tls: Option<Tls>,
}

/// Delivers events to webhooks, and raises alerts, until the future is dropped.
pub async fn run(instance: InstanceSources, webhooks: Webhooks, metrics: Arc<Metrics>) {
    let watcher = AlertWatcher {
        instance,
        webhooks: webhooks.clone(),
        metrics,
        raised: HashMap::new(),
        redactions: 0,
        failures: 0,
        unrecorded: JoinSet::new(),
    };
    futures_util::join!(webhooks.run(), watcher.run());
}

struct AlertWatcher {
    instance: InstanceSources,
    webhooks: Webhooks,
    metrics: Arc<Metrics>,
    /// The alerts whose state was recorded, and whether they are raised.
    raised: HashMap<(EventKind, Arc<str>), bool>,
    /// How many redactions were there at the last look.
    redactions: u64,
    /// How many probes of the ledger have failed in a row.
    failures: u32,
    /// Events that the ledger cannot take.
    unrecorded: JoinSet<()>,
}

impl AlertWatcher {
    async fn run(mut self) {
        for look in 0_u64.. {
            self.webhooks.configured().await;
            if look % LEDGER_INTERVAL == 0 {
                self.look_at_ledger().await;
            }
            if self.failures == 0 && !self.instance.store.is_starting() {
                self.look_at_balance_and_keys().await;
                self.look_at_certificate().await;
            }
            sleep(INTERVAL).await;
        }
    }

    async fn look_at_balance_and_keys(&mut self) {
        let Some(watched) = self.instance.watched.load_full() else { return };
        if let Some(reading) = self.instance.summary.reading() {
            let balance = reading.listing.billing.balance();
            let threshold = watched.balance_alert;
            let is_low = balance < SignedUsd::ZERO || balance.or_zero() < threshold;
            let data = json!({
                "balance": balance,
                "balance_micros": balance.as_micros(),
                "threshold": threshold,
                "threshold_micros": threshold.as_micros(),
            });
            self.set(EventKind::BalanceLow, "account", (is_low, &data)).await;
        }
        let are_rejected = lock(&watched.keys).are_rejected();
        for (index, is_rejected) in are_rejected.into_iter().enumerate() {
            // A key that this server has not tried may still be rejected.
            let (Some(is_rejected), Some(key)) = (is_rejected, watched.key_ids.get(index)) else {
                continue;
            };
            let id = u64::from_le_bytes(key.0).to_string();
            let data = json!({"key": index + 1});
            self.set(EventKind::KeyRefused, &id, (is_rejected, &data)).await;
        }
        for prefix in self.instance.summary.revoked() {
            let data = json!({"prefix": prefix});
            self.set(EventKind::KeyRevoked, &prefix, (true, &data)).await;
        }
        // One alert a day is enough: each redaction is in the log.
        let redactions = self.metrics.redacted.get();
        if redactions > self.redactions {
            let day = Date::at(clock::wall()).days();
            self.raise_in(EventKind::KeyRedacted, "gateway", (day, &json!({}))).await;
            self.redactions = redactions;
        }
    }

    async fn look_at_certificate(&mut self) {
        let certificate = self.instance.tls.as_ref().and_then(|tls| tls.certificate());
        let Some(expires) = certificate.map(|certificate| certificate.expires()) else { return };
        if expires.saturating_sub(clock::wall()) < EXPIRES_SOON {
            let data = json!({"expires_at": iso8601(expires)});
            let period = (expires.as_secs(), &data);
            self.raise_in(EventKind::CertificateExpiring, "server.tls", period).await;
        }
    }

    /// An unusable ledger takes no event, so its alert is sent from memory.
    async fn look_at_ledger(&mut self) {
        let store = &self.instance.store;
        if store.is_starting() {
            return;
        }
        let probed = timeout(LEDGER_TIMEOUT, store.ensure_usable()).await;
        let cause = match probed {
            Ok(Ok(())) => {
                self.failures = 0;
                return;
            }
            Ok(Err(why)) => why.0.cause,
            Err(_elapsed) => Cause::Other,
        };
        self.failures = self.failures.saturating_add(1);
        if self.failures == LEDGER_FAILURES {
            let data = json!({"cause": cause.code()}).to_string();
            let webhooks = self.webhooks.clone();
            self.unrecorded.spawn(async move {
                webhooks.send_without_ledger(EventKind::LedgerUnusable, data).await;
            });
        }
    }

    /// Raises or ends an alert, if that was not recorded yet.
    async fn set(&mut self, kind: EventKind, whose: &str, (is_raised, data): (bool, &Value)) {
        let key = (kind, Arc::from(whose));
        if is_raised && !self.webhooks.wants(kind) {
            // A webhook that a reload adds hears of it.
            self.raised.remove(&key);
            return;
        }
        if self.raised.get(&key) == Some(&is_raised) {
            return;
        }
        let recorded = if is_raised {
            let (whose, data) = (Arc::clone(&key.1), data.to_string().into());
            self.instance.store.raise_alert(Alert { kind, whose, period: 0, data }).await
        } else {
            self.instance.store.end_alert(kind, Arc::clone(&key.1)).await
        };
        match recorded {
            Ok(()) => drop(self.raised.insert(key, is_raised)),
            Err(error) => info!(%error, event = kind.name(), "alert not recorded; will retry"),
        }
    }

    /// Raises an alert of a period, once.
    async fn raise_in(&mut self, kind: EventKind, whose: &str, (period, data): (u64, &Value)) {
        let key = (kind, Arc::from(format!("{whose} {period}")));
        if self.raised.contains_key(&key) || !self.webhooks.wants(kind) {
            return;
        }
        let alert = Alert { kind, whose: whose.into(), period, data: data.to_string().into() };
        if self.instance.store.raise_alert(alert).await.is_ok() {
            self.raised.insert(key, true);
        }
    }
}
