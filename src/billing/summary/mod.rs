//! The gateway's billing summary: fetched once for everybody who waits for it, and never in the way of a
//! purchase.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};
use tracing::{info, warn};

use crate::clock::{self, Instant};
use crate::config::Key;
use crate::contract::money::Usd;
use crate::contract::wire::KEY_PREFIX;
use crate::problem::{INTERNAL, Problem};
use crate::store::{AccountLimit, Store};
use crate::sync::lock;
use crate::upstream::billing::{self, ApiKey, ApiKeysResponse, GatewayBilling};
use crate::upstream::rate_limit::RateLimit;
use crate::upstream::{Error, GatewayCall, GatewayReply, GatewayRequest};

const MAX_AGE: Duration = Duration::from_secs(60);
/// How often it is fetched while there are purchases.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// How often operators' questions go out at most: each takes a slot from those who buy.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(2);
/// How long anybody waits for a question of somebody else.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// What the gateway said, and when, and when it was asked: wall-clock times since the Unix epoch.
#[derive(Clone, Debug)]
pub struct SummaryReading {
    pub listing: Arc<ApiKeysResponse>,
    pub as_of: Duration,
    pub asked_at: Duration,
    /// Which gateway said so: how many with other keys or another address there were before.
    pub generation: u64,
}

#[derive(Clone, Debug, Default)]
pub struct SummaryStatus {
    pub known: Option<SummaryReading>,
    /// Whether the latest answer could be read; `None` before the first.
    pub is_readable: Option<bool>,
}

/// The summary as a running server gives it to a command; it holds only the public parts of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillingReport {
    pub process: u32,
    pub keys: Vec<ApiKey>,
    pub billing: GatewayBilling,
}

/// The billing summary. Clones share it; it outlives a change of settings, which costs no question.
#[derive(Clone)]
pub struct BillingSummary(Arc<Shared>);

#[derive(Clone)]
struct GatewaySource {
    gateway: BoxCloneSyncService<GatewayRequest, GatewayReply, Error>,
    keys: Arc<[Key]>,
    generation: u64,
    /// Cancelled when another account may answer.
    replaced: CancellationToken,
}

struct Shared {
    source: Mutex<GatewaySource>,
    fetching: tokio::sync::Mutex<()>,
    /// Held by the operator whose question is next.
    operator: tokio::sync::Mutex<()>,
    last: Mutex<Option<(Instant, Result<SummaryReading, Problem>)>>,
    latest: watch::Sender<SummaryStatus>,
    limit: Mutex<Option<AccountLimit>>,
    revoked: Mutex<HashSet<String>>,
    ledger: Store,
    window: Arc<RateLimit>,
}

/// A service that asks the gateway.
pub trait BillingClient:
    Service<GatewayRequest, Response = GatewayReply, Error = Error, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> BillingClient for S where
    S: Service<GatewayRequest, Response = GatewayReply, Error = Error, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

impl BillingSummary {
    /// Asks through `gateway` with `keys`. `ledger` learns the balance, and `window` the rate limit.
    pub fn new(
        gateway: impl BillingClient,
        keys: &[Key],
        ledger: Store,
        window: Arc<RateLimit>,
    ) -> Self {
        let source = GatewaySource {
            gateway: BoxCloneSyncService::new(gateway),
            keys: keys.into(),
            generation: 0,
            replaced: CancellationToken::new(),
        };
        Self(Arc::new(Shared {
            source: Mutex::new(source),
            fetching: tokio::sync::Mutex::default(),
            operator: tokio::sync::Mutex::default(),
            last: Mutex::default(),
            latest: watch::Sender::default(),
            limit: Mutex::default(),
            revoked: Mutex::default(),
            ledger,
            window,
        }))
    }

    /// Asks through another gateway from now on. If its keys or address changed (`is_another`), the account may
    /// have, too: the old one's limit and answers are dropped, and the new one is asked at once.
    pub fn replace_gateway(&self, gateway: impl BillingClient, keys: &[Key], is_another: bool) {
        let mut source = lock(&self.0.source);
        source.gateway = BoxCloneSyncService::new(gateway);
        source.keys = keys.into();
        if is_another {
            source.generation += 1;
            *lock(&self.0.last) = None;
            *lock(&self.0.limit) = None;
            self.0.window.forget_limit();
            std::mem::take(&mut source.replaced).cancel();
        }
    }

    pub fn subscribe(&self) -> watch::Receiver<SummaryStatus> {
        self.0.latest.subscribe()
    }

    /// Whether the gateway did not answer when it was asked last.
    pub fn is_stale(&self) -> bool {
        lock(&self.0.last).as_ref().is_some_and(|(_, said)| said.is_err())
    }

    pub fn reading(&self) -> Option<SummaryReading> {
        self.0.latest.borrow().known.clone()
    }

    /// Returns once the summary is at most a minute old, or after a second.
    pub async fn refresh(&self) {
        let shared = Arc::clone(&self.0);
        let asking = spawn_fetch(async move { shared.at_most(MAX_AGE).await });
        timeout(MAX_WAIT, asking).await.ok();
    }

    /// Asks the gateway anew, for an operator; concurrent calls share an answer.
    pub async fn fetch_now(&self) -> Result<SummaryReading, Problem> {
        let shared = Arc::clone(&self.0);
        spawn_fetch(async move { shared.fetch_now().await }).await
    }

    /// Asks at once, then every few minutes while there are purchases, until nobody else holds the summary.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        // What was asked before the ledger was open was held back.
        *lock(&self.0.last) = None;
        let summary = Arc::downgrade(&self.0);
        async move {
            while let Some(shared) = summary.upgrade() {
                let replaced = lock(&shared.source).replaced.clone();
                let is_read = shared.at_most(MAX_AGE).await.is_ok();
                drop(shared);
                let pause = if is_read { REFRESH_INTERVAL } else { MAX_AGE };
                replaced.run_until_cancelled(wait_until_used(&summary, pause)).await;
            }
        }
    }
}

async fn wait_until_used(summary: &Weak<Shared>, pause: Duration) {
    sleep(pause).await;
    while summary.upgrade().is_some_and(|shared| !shared.ledger.take_credit_used()) {
        sleep(MAX_AGE).await;
    }
}

/// In a task of its own: if a client hangs up, others still get the answer and the pace is kept.
async fn spawn_fetch(
    asking: impl Future<Output = Result<SummaryReading, Problem>> + Send + 'static,
) -> Result<SummaryReading, Problem> {
    tokio::spawn(asking).await.unwrap_or_else(|_stopped| Err(Problem::new(&INTERNAL)))
}

impl Shared {
    /// The summary, at most `age` old. A question waits for its turn however long that takes.
    async fn at_most(&self, age: Duration) -> Result<SummaryReading, Problem> {
        let since = clock::now().checked_sub(age);
        if let Some(said) = self.answer_since(since) {
            return said;
        }
        let _turn = self.fetching.lock().await;
        match self.answer_since(since) {
            Some(said) => said,
            None => self.fetch(GatewayRequest::free(GatewayCall::Billing).patient()).await,
        }
    }

    /// Asks after this call. The question waits for `gateway.max_wait` at most, as an operator is waiting.
    async fn fetch_now(&self) -> Result<SummaryReading, Problem> {
        let since = Some(clock::now());
        let _operator = self.operator.lock().await;
        if let Some(said) = self.answer_since(since) {
            return said;
        }
        let asked = lock(&self.last).as_ref().map(|(asked, _)| *asked);
        if let Some(asked) = asked {
            sleep_until(asked + MIN_FETCH_INTERVAL).await;
        }
        // A patient question may take minutes: this one does not wait for it.
        let _turn = timeout(MAX_WAIT, self.fetching.lock()).await.ok();
        match self.answer_since(since) {
            Some(said) => said,
            None => self.fetch(GatewayRequest::free(GatewayCall::Billing)).await,
        }
    }

    /// What was said to a question that went out after this moment.
    fn answer_since(&self, since: Option<Instant>) -> Option<Result<SummaryReading, Problem>> {
        let last = lock(&self.last);
        let (asked, said) = last.as_ref()?;
        since.is_none_or(|since| *asked >= since).then(|| said.clone())
    }

    /// Asks, and hands on what was said. If another account may answer meanwhile, that one is asked.
    async fn fetch(&self, ask: GatewayRequest) -> Result<SummaryReading, Problem> {
        loop {
            let GatewaySource { gateway, replaced, generation, .. } = lock(&self.source).clone();
            let mark = self.ledger.credit_watermark().await;
            let (sent, asked) = (clock::now(), self.ledger.now());
            let reply = replaced.run_until_cancelled(gateway.oneshot(ask.clone())).await;
            // Held until the reply has taken effect: the gateway is not replaced in between.
            let source = lock(&self.source);
            let Some(reply) = reply.filter(|_| source.generation == generation) else { continue };
            let was_held_back =
                matches!(reply, Err(Error::Aborted(_) | Error::NoSlot { .. } | Error::Draining));
            let said = reply.and_then(|reply| billing::parse(&reply)).map(|listing| {
                if let Ok(mark) = mark {
                    self.ledger.record_balance(mark, usd_from_cents(listing.billing.balance_cents));
                }
                self.warn_revoked_keys(&listing.keys, &source.keys);
                // A limit of the settings holds all the same: the window sees to that.
                let limit = listing.billing.rate_limit;
                if lock(&self.limit).replace(limit) != Some(limit) {
                    self.window.set_limit(limit);
                }
                let (listing, as_of) = (Arc::new(listing), self.ledger.now());
                SummaryReading { listing, as_of, asked_at: asked, generation }
            });
            // A question that was not sent says nothing of the gateway.
            if !was_held_back {
                self.publish(said.as_ref().ok());
            }
            let said = said.map_err(|error| error.read_problem().detail(error.to_string()));
            *lock(&self.last) = Some((sent, said.clone()));
            return said;
        }
    }

    fn publish(&self, known: Option<&SummaryReading>) {
        if known.is_none() {
            info!("the account's books cannot be read; selling goes on");
            if lock(&self.limit).is_none() {
                self.window.assume_default();
            }
        }
        self.latest.send_modify(|latest| {
            latest.is_readable = Some(known.is_some());
            latest.known = known.cloned().or_else(|| latest.known.take());
        });
    }

    /// Logs each revoked key of the ring once. A prefix that a working key has, too, says nothing.
    fn warn_revoked_keys(&self, listed: &[ApiKey], ring: &[Key]) {
        let is_ours = |prefix: &str| ring.iter().any(|key| key.expose().starts_with(prefix));
        for key in listed.iter().filter(|key| key.revoked_at.is_some()) {
            let prefix = visible_prefix(&key.key_prefix);
            if prefix.len() <= KEY_PREFIX.len()
                || is_active_prefix(prefix, listed)
                || !is_ours(prefix)
            {
                continue;
            }
            if lock(&self.revoked).insert(prefix.to_owned()) {
                let name = key.name.escape_debug();
                warn!(%name, prefix, "a key of the ring is revoked; take it out of GATEWAY_API_KEY");
            }
        }
    }
}

/// Returns a listed prefix without what stands for the rest of the key.
pub fn visible_prefix(prefix: &str) -> &str {
    prefix.trim_end_matches(['.', '…', '*'])
}

/// Whether a key that works is listed with this prefix.
pub fn is_active_prefix(prefix: &str, listed: &[ApiKey]) -> bool {
    listed.iter().any(|key| key.revoked_at.is_none() && visible_prefix(&key.key_prefix) == prefix)
}

/// Returns a number of cents as an amount, at most the largest that there is.
pub fn usd_from_cents(cents: u64) -> Usd {
    Usd::cents(cents).unwrap_or(Usd::micros(u64::MAX))
}

#[cfg(test)]
mod tests;
