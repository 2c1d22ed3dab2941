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
use crate::upstream::billing::{self, Billing, KeyRow, Listing};
use crate::upstream::window::Window;
use crate::upstream::{Ask, Error, Reply, What};

const PAGE_AGE: Duration = Duration::from_secs(60);
/// How often it is fetched while there are purchases.
const WHILE_USED: Duration = Duration::from_secs(300);
/// How often operators' questions go out at most: each takes a slot from those who buy.
const OPERATORS_EVERY: Duration = Duration::from_secs(2);
/// How long anybody waits for a question of somebody else.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the gateway said, and when, and when it was asked: wall-clock times since the Unix epoch.
#[derive(Clone, Debug)]
pub struct Known {
    pub listing: Arc<Listing>,
    pub as_of: Duration,
    pub asked: Duration,
    /// Which gateway said so: how many with other keys or another address there were before.
    pub generation: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Latest {
    pub known: Option<Known>,
    /// Whether the latest answer could be read; `None` before the first.
    pub is_read: Option<bool>,
}

/// The summary as a running server gives it to a command; it holds only the public parts of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    pub process: u32,
    pub keys: Vec<KeyRow>,
    pub billing: Billing,
}

/// The billing summary. Clones share it; it outlives a change of settings, which costs no question.
#[derive(Clone)]
pub struct Summary(Arc<Shared>);

#[derive(Clone)]
struct Source {
    gateway: BoxCloneSyncService<Ask, Reply, Error>,
    keys: Arc<[Key]>,
    generation: u64,
    /// Cancelled when another account may answer.
    replaced: CancellationToken,
}

struct Shared {
    source: Mutex<Source>,
    turn: tokio::sync::Mutex<()>,
    /// Held by the operator whose question is next.
    operators: tokio::sync::Mutex<()>,
    last: Mutex<Option<(Instant, Result<Known, Problem>)>>,
    latest: watch::Sender<Latest>,
    limit: Mutex<Option<AccountLimit>>,
    revoked: Mutex<HashSet<String>>,
    ledger: Store,
    window: Arc<Window>,
}

/// A service that asks the gateway.
pub trait Asks:
    Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + Send + Sync + 'static
{
}

impl<S> Asks for S where
    S: Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + Send + Sync + 'static
{
}

impl Summary {
    /// Asks through `gateway` with `keys`. `ledger` learns the balance, and `window` the rate limit.
    pub fn new(gateway: impl Asks, keys: &[Key], ledger: Store, window: Arc<Window>) -> Self {
        let source = Source {
            gateway: BoxCloneSyncService::new(gateway),
            keys: keys.into(),
            generation: 0,
            replaced: CancellationToken::new(),
        };
        Self(Arc::new(Shared {
            source: Mutex::new(source),
            turn: tokio::sync::Mutex::default(),
            operators: tokio::sync::Mutex::default(),
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
    pub fn ask_through(&self, gateway: impl Asks, keys: &[Key], is_another: bool) {
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

    pub fn latest(&self) -> watch::Receiver<Latest> {
        self.0.latest.subscribe()
    }

    /// Whether the gateway did not answer when it was asked last.
    pub fn is_stale(&self) -> bool {
        lock(&self.0.last).as_ref().is_some_and(|(_, said)| said.is_err())
    }

    pub fn known(&self) -> Option<Known> {
        self.0.latest.borrow().known.clone()
    }

    /// Returns once the summary is at most a minute old, or after a second.
    pub async fn refresh(&self) {
        let shared = Arc::clone(&self.0);
        let asking = in_task(async move { shared.at_most(PAGE_AGE).await });
        timeout(PATIENCE, asking).await.ok();
    }

    /// Asks the gateway anew, for an operator; concurrent calls share an answer.
    pub async fn now(&self) -> Result<Known, Problem> {
        let shared = Arc::clone(&self.0);
        in_task(async move { shared.now().await }).await
    }

    /// Asks at once, then every few minutes while there are purchases, until nobody else holds the summary.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        // What was asked before the ledger was open was held back.
        *lock(&self.0.last) = None;
        let summary = Arc::downgrade(&self.0);
        async move {
            while let Some(shared) = summary.upgrade() {
                let replaced = lock(&shared.source).replaced.clone();
                let is_read = shared.at_most(PAGE_AGE).await.is_ok();
                drop(shared);
                let pause = if is_read { WHILE_USED } else { PAGE_AGE };
                replaced.run_until_cancelled(until_used(&summary, pause)).await;
            }
        }
    }
}

async fn until_used(summary: &Weak<Shared>, pause: Duration) {
    sleep(pause).await;
    while summary.upgrade().is_some_and(|shared| !shared.ledger.was_used()) {
        sleep(PAGE_AGE).await;
    }
}

/// In a task of its own: if a client hangs up, others still get the answer and the pace is kept.
async fn in_task(
    asking: impl Future<Output = Result<Known, Problem>> + Send + 'static,
) -> Result<Known, Problem> {
    tokio::spawn(asking).await.unwrap_or_else(|_stopped| Err(Problem::new(&INTERNAL)))
}

impl Shared {
    /// The summary, at most `age` old. A question waits for its turn however long that takes.
    async fn at_most(&self, age: Duration) -> Result<Known, Problem> {
        let since = clock::now().checked_sub(age);
        if let Some(said) = self.said_after(since) {
            return said;
        }
        let _turn = self.turn.lock().await;
        match self.said_after(since) {
            Some(said) => said,
            None => self.ask(Ask::free(What::Billing).patient()).await,
        }
    }

    /// Asks after this call. The question waits for `gateway.max_wait` at most, as an operator is waiting.
    async fn now(&self) -> Result<Known, Problem> {
        let since = Some(clock::now());
        let _operator = self.operators.lock().await;
        if let Some(said) = self.said_after(since) {
            return said;
        }
        let asked = lock(&self.last).as_ref().map(|(asked, _)| *asked);
        if let Some(asked) = asked {
            sleep_until(asked + OPERATORS_EVERY).await;
        }
        // A patient question may take minutes: this one does not wait for it.
        let _turn = timeout(PATIENCE, self.turn.lock()).await.ok();
        match self.said_after(since) {
            Some(said) => said,
            None => self.ask(Ask::free(What::Billing)).await,
        }
    }

    /// What was said to a question that went out after this moment.
    fn said_after(&self, since: Option<Instant>) -> Option<Result<Known, Problem>> {
        let last = lock(&self.last);
        let (asked, said) = last.as_ref()?;
        since.is_none_or(|since| *asked >= since).then(|| said.clone())
    }

    /// Asks, and hands on what was said. If another account may answer meanwhile, that one is asked.
    async fn ask(&self, ask: Ask) -> Result<Known, Problem> {
        loop {
            let Source { gateway, replaced, generation, .. } = lock(&self.source).clone();
            let mark = self.ledger.credit_mark().await;
            let (sent, asked) = (clock::now(), self.ledger.now());
            let reply = replaced.run_until_cancelled(gateway.oneshot(ask.clone())).await;
            // Held until the reply has taken effect: the gateway is not replaced in between.
            let source = lock(&self.source);
            let Some(reply) = reply.filter(|_| source.generation == generation) else { continue };
            let was_held_back = matches!(
                reply,
                Err(Error::Aborted(_) | Error::WindowFull { .. } | Error::Draining)
            );
            let said = reply.and_then(|reply| billing::read(&reply)).map(|listing| {
                if let Ok(mark) = mark {
                    self.ledger.learnt(mark, cents(listing.billing.balance_cents));
                }
                self.warn_of_revoked(&listing.keys, &source.keys);
                // A limit of the settings holds all the same: the window sees to that.
                let limit = listing.billing.rate_limit;
                if lock(&self.limit).replace(limit) != Some(limit) {
                    self.window.set_limit(limit);
                }
                let (listing, as_of) = (Arc::new(listing), self.ledger.now());
                Known { listing, as_of, asked, generation }
            });
            // A question that was not sent says nothing of the gateway.
            if !was_held_back {
                self.publish(said.as_ref().ok());
            }
            let said = said.map_err(|error| error.of_read().detail(error.to_string()));
            *lock(&self.last) = Some((sent, said.clone()));
            return said;
        }
    }

    fn publish(&self, known: Option<&Known>) {
        if known.is_none() {
            info!("the account's books cannot be read; selling goes on");
            if lock(&self.limit).is_none() {
                self.window.assume();
            }
        }
        self.latest.send_modify(|latest| {
            latest.is_read = Some(known.is_some());
            latest.known = known.cloned().or_else(|| latest.known.take());
        });
    }

    /// Logs each revoked key of the ring once. A prefix that a working key has, too, says nothing.
    fn warn_of_revoked(&self, listed: &[KeyRow], ring: &[Key]) {
        let is_ours = |prefix: &str| ring.iter().any(|key| key.expose().starts_with(prefix));
        for key in listed.iter().filter(|key| key.revoked_at.is_some()) {
            let prefix = shown(&key.key_prefix);
            if prefix.len() <= KEY_PREFIX.len() || works(prefix, listed) || !is_ours(prefix) {
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
pub fn shown(prefix: &str) -> &str {
    prefix.trim_end_matches(['.', '…', '*'])
}

/// Whether a key that works is listed with this prefix.
pub fn works(prefix: &str, listed: &[KeyRow]) -> bool {
    listed.iter().any(|key| key.revoked_at.is_none() && shown(&key.key_prefix) == prefix)
}

/// Returns a number of cents as an amount, at most the largest that there is.
pub fn cents(cents: u64) -> Usd {
    Usd::cents(cents).unwrap_or(Usd::micros(u64::MAX))
}

#[cfg(test)]
mod tests;
