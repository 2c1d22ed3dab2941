//! The gateway's billing summary. Concurrent callers share one request, and purchases do not wait
//! for it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;
use tracing::{info, warn};

use crate::clock::{self, Instant};
use crate::config::Key;
use crate::gate::problem::{INTERNAL, Kind, Problem};
use crate::gateway::billing::{self, ApiKey, ApiKeysResponse, GatewayBilling};
use crate::gateway::contract::wire::KEY_PREFIX;
use crate::gateway::rate_limit::RateLimit;
use crate::gateway::{Error, GatewayCall, GatewayReply, GatewayRequest};
use crate::ledger::{AccountBinding, AccountLimit, Store};
use crate::sync::lock;

const MAX_AGE: Duration = Duration::from_secs(60);
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// The shortest time between operators' requests, because each takes a slot from a purchase.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(2);
/// The longest wait for another caller's request.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A billing summary. Times are wall-clock times since the Unix epoch.
#[derive(Clone, Debug)]
pub struct SummaryReading {
    pub listing: Arc<ApiKeysResponse>,
    pub as_of: Duration,
    pub asked_at: Duration,
    pub generation: u64,
}

#[derive(Clone, Debug, Default)]
pub struct SummaryStatus {
    pub known: Option<SummaryReading>,
    /// Whether the latest answer could be read; `None` before the first.
    pub is_readable: Option<bool>,
}

/// The summary as a server returns it to a command. It has only the public prefixes of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillingReport {
    pub process: u32,
    pub keys: Vec<ApiKey>,
    pub billing: GatewayBilling,
}

#[derive(Clone)]
pub struct BillingSummary(Arc<Shared>);

#[derive(Clone)]
struct GatewaySource {
    gateway: BillingClient,
    keys: Arc<[Key]>,
    generation: u64,
    /// Cancelled when another account may answer.
    replaced: CancellationToken,
}

struct Shared {
    source: Mutex<GatewaySource>,
    fetching: tokio::sync::Mutex<()>,
    operator: tokio::sync::Mutex<()>,
    last: Mutex<Option<(Instant, Result<SummaryReading, Problem>)>>,
    /// Why the gateway's latest reply could not be read.
    fault: Mutex<Option<&'static Kind>>,
    latest: watch::Sender<SummaryStatus>,
    limit: Mutex<Option<AccountLimit>>,
    revoked: Mutex<HashSet<String>>,
    /// The generation whose keys were logged.
    logged: Mutex<Option<u64>>,
    ledger: Store,
    binding: AccountBinding,
    rate_limit: Arc<RateLimit>,
}

/// Sends requests to the gateway.
pub type BillingClient = BoxCloneSyncService<GatewayRequest, GatewayReply, Error>;

impl BillingSummary {
    /// Sends requests through `gateway`. Passes the balance to `ledger`, and the limit to `rate_limit`, if
    /// the account is the ledger's.
    pub fn new(
        gateway: BillingClient,
        keys: &[Key],
        (ledger, binding): (Store, AccountBinding),
        rate_limit: Arc<RateLimit>,
    ) -> Self {
        let source = GatewaySource {
            gateway,
            keys: keys.into(),
            generation: 0,
            replaced: CancellationToken::new(),
        };
        Self(Arc::new(Shared {
            source: Mutex::new(source),
            fetching: tokio::sync::Mutex::default(),
            operator: tokio::sync::Mutex::default(),
            last: Mutex::default(),
            fault: Mutex::default(),
            latest: watch::Sender::default(),
            limit: Mutex::default(),
            revoked: Mutex::default(),
            logged: Mutex::default(),
            ledger,
            binding,
            rate_limit,
        }))
    }

    /// Replaces the gateway. If its keys or address changed (`is_another`), the account may have,
    /// too: the old limit and answers are dropped, and the new gateway is asked at once.
    pub fn replace_gateway(&self, gateway: BillingClient, keys: &[Key], is_another: bool) {
        let mut source = lock(&self.0.source);
        source.gateway = gateway;
        source.keys = keys.into();
        if is_another {
            source.generation += 1;
            *lock(&self.0.last) = None;
            *lock(&self.0.limit) = None;
            *lock(&self.0.fault) = None;
            self.0.rate_limit.forget_limit();
            std::mem::take(&mut source.replaced).cancel();
        }
    }

    pub fn subscribe(&self) -> watch::Receiver<SummaryStatus> {
        self.0.latest.subscribe()
    }

    pub fn is_stale(&self) -> bool {
        lock(&self.0.last).as_ref().is_some_and(|(_, answer)| answer.is_err())
    }

    /// Returns why the gateway's latest reply could not be read.
    pub fn fault(&self) -> Option<&'static Kind> {
        *lock(&self.0.fault)
    }

    pub fn reading(&self) -> Option<SummaryReading> {
        self.0.latest.borrow().known.clone()
    }

    /// Returns the public prefixes of the keys in use that the gateway lists as revoked.
    pub fn revoked(&self) -> Vec<String> {
        lock(&self.0.revoked).iter().cloned().collect()
    }

    /// Returns once the summary is at most a minute old, or after a second.
    pub async fn refresh(&self) {
        let shared = Arc::clone(&self.0);
        let fetch = spawn_fetch(async move { shared.at_most(MAX_AGE).await });
        timeout(MAX_WAIT, fetch).await.ok();
    }

    /// Fetches the summary for an operator. Concurrent calls share one request.
    pub async fn fetch_now(&self) -> Result<SummaryReading, Problem> {
        let shared = Arc::clone(&self.0);
        spawn_fetch(async move { shared.fetch_now().await }).await
    }

    /// Fetches the summary now, then every few minutes while there are purchases. Ends when the
    /// last other clone is dropped.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        // Earlier requests were held back, because the ledger was not open.
        *lock(&self.0.last) = None;
        let summary = Arc::downgrade(&self.0);
        async move {
            while let Some(shared) = summary.upgrade() {
                let replaced = lock(&shared.source).replaced.clone();
                let is_read = shared.at_most(MAX_AGE).await.is_ok();
                drop(shared);
                let wait = async {
                    if is_read {
                        wait_until_used(&summary).await;
                    } else {
                        sleep(MAX_AGE).await;
                    }
                };
                replaced.run_until_cancelled(wait).await;
            }
        }
    }
}

async fn wait_until_used(summary: &Weak<Shared>) {
    sleep(REFRESH_INTERVAL).await;
    while summary.upgrade().is_some_and(|shared| !shared.ledger.take_credit_used()) {
        sleep(MAX_AGE).await;
    }
}

/// Fetches in a task, so that a client that disconnects does not cancel it for the others.
async fn spawn_fetch(
    fetch: impl Future<Output = Result<SummaryReading, Problem>> + Send + 'static,
) -> Result<SummaryReading, Problem> {
    tokio::spawn(fetch).await.unwrap_or_else(|_stopped| Err(Problem::new(&INTERNAL)))
}

impl Shared {
    async fn at_most(&self, age: Duration) -> Result<SummaryReading, Problem> {
        let since = clock::now().checked_sub(age);
        if let Some(answer) = self.answer_since(since) {
            return answer;
        }
        let _turn = self.fetching.lock().await;
        match self.answer_since(since) {
            Some(answer) => answer,
            None => self.fetch(GatewayRequest::free(GatewayCall::Billing).patient()).await,
        }
    }

    /// Fetches after this call. The request waits for `gateway.max_wait` at most.
    async fn fetch_now(&self) -> Result<SummaryReading, Problem> {
        let since = Some(clock::now());
        let _operator = self.operator.lock().await;
        if let Some(answer) = self.answer_since(since) {
            return answer;
        }
        let asked = lock(&self.last).as_ref().map(|(asked, _)| *asked);
        if let Some(asked) = asked {
            sleep_until(asked + MIN_FETCH_INTERVAL).await;
        }
        // The other kind of request may wait for minutes, so this one does not wait for it.
        let _turn = timeout(MAX_WAIT, self.fetching.lock()).await.ok();
        match self.answer_since(since) {
            Some(answer) => answer,
            None => self.fetch(GatewayRequest::free(GatewayCall::Billing)).await,
        }
    }

    fn answer_since(&self, since: Option<Instant>) -> Option<Result<SummaryReading, Problem>> {
        let last = lock(&self.last);
        let (asked, answer) = last.as_ref()?;
        since.is_none_or(|since| *asked >= since).then(|| answer.clone())
    }

    /// Sends a request and publishes the answer. If the gateway is replaced meanwhile, asks the new
    /// one.
    async fn fetch(&self, request: GatewayRequest) -> Result<SummaryReading, Problem> {
        loop {
            let GatewaySource { gateway, replaced, generation, .. } = lock(&self.source).clone();
            let watermark = self.ledger.credit_watermark().await;
            let (sent_at, asked_at) = (clock::now(), self.ledger.now());
            let reply = replaced.run_until_cancelled(gateway.oneshot(request.clone())).await;
            let parsed = match reply {
                None => continue,
                Some(reply) => reply.and_then(|reply| billing::parse(&reply)),
            };
            // The key of another account must change nothing here.
            let is_ours = match &parsed {
                Ok(listing) => self.binding.may_record(&self.ledger, listing.key_ids()).await,
                Err(_) => false,
            };
            // Held until the reply has taken effect, so that the gateway is not replaced in
            // between.
            let source = lock(&self.source);
            if source.generation != generation {
                continue;
            }
            let was_held_back =
                matches!(parsed, Err(Error::Aborted(_) | Error::NoSlot { .. } | Error::Draining));
            let answer = parsed.map(|listing| {
                if let (Ok(watermark), true) = (watermark, is_ours) {
                    self.ledger.record_balance(watermark, listing.billing.balance().or_zero());
                }
                self.warn_revoked_keys(&listing.keys, &source.keys);
                self.log_keys(&listing.keys, &source.keys, generation);
                // A limit in the settings still applies.
                let limit = listing.billing.rate_limit;
                if is_ours && lock(&self.limit).replace(limit) != Some(limit) {
                    self.rate_limit.set_limit(limit);
                }
                let (listing, as_of) = (Arc::new(listing), self.ledger.now());
                SummaryReading { listing, as_of, asked_at, generation }
            });
            // A request that was not sent says nothing about the gateway.
            if !was_held_back {
                self.publish(answer.as_ref());
                *lock(&self.fault) = answer.as_ref().err().map(|error| error.read_problem().kind());
            }
            let answer = answer.map_err(|error| error.read_problem().detail(error.to_string()));
            *lock(&self.last) = Some((sent_at, answer.clone()));
            return answer;
        }
    }

    /// Logs once which keys are in use, after a start or a reload that changed them.
    fn log_keys(&self, listed: &[ApiKey], ring: &[Key], generation: u64) {
        if lock(&self.logged).replace(generation) == Some(generation) {
            return;
        }
        let prefix = |key| listed_prefix(key, listed).unwrap_or("not listed").escape_debug();
        let prefixes: Vec<_> = ring.iter().map(|key| prefix(key).to_string()).collect();
        info!(keys = ring.len(), prefixes = prefixes.join(", "), "gateway keys in use");
    }

    fn publish(&self, answer: Result<&SummaryReading, &Error>) {
        if let Err(error) = answer {
            info!(%error, "billing summary not readable; sales continue");
            if lock(&self.limit).is_none() {
                self.rate_limit.assume_default();
            }
        }
        self.latest.send_modify(|latest| {
            let known = answer.ok();
            latest.is_readable = Some(known.is_some());
            latest.known = known.cloned().or_else(|| latest.known.take());
        });
    }

    /// Logs each revoked key of the ring once, unless a working key has the same prefix.
    fn warn_revoked_keys(&self, listed: &[ApiKey], ring: &[Key]) {
        for key in listed.iter().filter(|key| key.revoked_at.is_some()) {
            let prefix = visible_prefix(&key.key_prefix);
            let is_ours = ring.iter().any(|key| key.expose().starts_with(prefix));
            let is_known = prefix.len() > KEY_PREFIX.len() && !is_active_prefix(prefix, listed);
            if is_ours && is_known && lock(&self.revoked).insert(prefix.to_owned()) {
                let name = key.name.escape_debug();
                warn!(%name, prefix, "gateway key is revoked; remove it from the settings");
            }
        }
    }
}

/// Returns a listed prefix without the characters that stand for the rest of the key.
pub fn visible_prefix(prefix: &str) -> &str {
    prefix.trim_end_matches(['.', '…', '*'])
}

/// Returns the longest listed prefix of this key that is not the whole key.
pub fn listed_prefix<'a>(key: &Key, listed: &'a [ApiKey]) -> Option<&'a str> {
    let prefixes = listed.iter().map(|row| visible_prefix(&row.key_prefix));
    let fits = prefixes.filter(|prefix| {
        prefix.len() > KEY_PREFIX.len()
            && prefix.len() < key.expose().len()
            && key.expose().starts_with(prefix)
    });
    fits.max_by_key(|prefix| prefix.len())
}

pub fn is_active_prefix(prefix: &str, listed: &[ApiKey]) -> bool {
    listed.iter().any(|key| key.revoked_at.is_none() && visible_prefix(&key.key_prefix) == prefix)
}

#[cfg(test)]
mod tests;
