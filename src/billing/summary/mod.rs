//! The account's books as the gateway tells them: asked for once for all who want to know, at most once
//! a minute, and never in the way of a sale.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use moka::future::Cache;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};
use tracing::{info, warn};

use crate::clock;
use crate::contract::wire::KEY_PREFIX;
use crate::upstream::billing::{self, Billing, KeyRow, Listing, RateLimit};
use crate::upstream::{Ask, Error, Reply, What};

/// The gateway is asked at most this often.
const AT_MOST_EVERY: Duration = Duration::from_secs(60);
/// So often it is asked anew while there are sales.
const WHILE_USED: Duration = Duration::from_secs(300);
/// Longer than this, nobody waits for the answer: what was known before is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Called when a question goes out; what it returns is called with the answer.
type Ears = Box<dyn Fn() -> Box<dyn FnOnce(&Billing) + Send> + Send + Sync>;
type IsOurs = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// What the gateway says of its rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// This.
    Limit(RateLimit),
    /// It was asked, and did not answer.
    Nothing,
}

/// What the gateway said last.
#[derive(Clone, Debug)]
pub struct Known {
    /// All of it.
    pub listing: Arc<Listing>,
    /// When: wall-clock time since the Unix epoch.
    pub as_of: Duration,
    /// When it was asked, likewise.
    pub asked: Duration,
    /// Which gateway said so: how many with other keys or another address there were before.
    pub generation: u64,
}

/// What came of the latest question.
#[derive(Clone, Debug)]
pub enum Heard {
    /// None was asked yet.
    NotYet,
    /// No answer that can be read.
    Nothing,
    /// This.
    Listing(Known),
}

/// The account's books. Clones are the same ones. They outlive a change of settings, so that it costs no
/// question.
#[derive(Clone)]
pub struct Books(Arc<Shared>);

type Gateway = BoxCloneSyncService<Ask, Reply, Error>;

/// The gateway that is asked now.
#[derive(Clone)]
struct Current {
    gateway: Gateway,
    /// How many gateways with other keys or another address there were before.
    generation: u64,
}

struct Shared {
    current: Mutex<Current>,
    /// Another account may answer: what was asked before says nothing.
    moved: Arc<Notify>,
    /// Holds whether the latest question was answered.
    asked: Cache<(), bool>,
    is_stale: AtomicBool,
    latest: Mutex<Option<Known>>,
    limit: watch::Sender<Option<Told>>,
    heard: watch::Sender<Heard>,
    ears: Ears,
    is_ours: Mutex<IsOurs>,
    told: Mutex<HashSet<String>>,
}

impl Books {
    /// Asks through `gateway`. `ears` is called when a question goes out, and what it returns with the
    /// answer; `is_ours` says whether a key of the ring begins so.
    pub fn new<S, E>(
        gateway: S,
        ears: impl Fn() -> E + Send + Sync + 'static,
        is_ours: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self
    where
        S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
        S::Future: Send,
        E: FnOnce(&Billing) + Send + 'static,
    {
        let gateway = BoxCloneSyncService::new(gateway);
        Self(Arc::new(Shared {
            current: Mutex::new(Current { gateway, generation: 0 }),
            moved: Arc::default(),
            asked: Cache::builder().max_capacity(1).time_to_live(AT_MOST_EVERY).build(),
            is_stale: AtomicBool::new(false),
            latest: Mutex::default(),
            limit: watch::Sender::new(None),
            heard: watch::Sender::new(Heard::NotYet),
            ears: Box::new(move || Box::new(ears())),
            is_ours: Mutex::new(Box::new(is_ours)),
            told: Mutex::default(),
        }))
    }

    /// Asks through another gateway from now on. Where its keys or its address are others
    /// (`is_another`), it is asked at once, however lately the former one was; later answers of the former
    /// one are ignored, and whatever limit the new one tells is news.
    pub fn ask_through<S>(
        &self,
        gateway: S,
        is_ours: impl Fn(&str) -> bool + Send + Sync + 'static,
        is_another: bool,
    ) where
        S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        let mut current = lock(&self.0.current);
        current.gateway = BoxCloneSyncService::new(gateway);
        current.generation += u64::from(is_another);
        *lock(&self.0.is_ours) = Box::new(is_ours);
        drop(current);
        if is_another {
            self.0.limit.send_replace(None);
            self.0.moved.notify_one();
        }
    }

    /// The account's rate limit (2.3), as soon as it is known and whenever it changes.
    pub fn limit(&self) -> watch::Receiver<Option<Told>> {
        self.0.limit.subscribe()
    }

    /// What comes of each question.
    pub fn heard(&self) -> watch::Receiver<Heard> {
        self.0.heard.subscribe()
    }

    /// Whether the gateway did not answer when it was asked last.
    pub fn is_stale(&self) -> bool {
        self.0.is_stale.load(Ordering::Relaxed)
    }

    /// What the gateway said last; nothing before it said anything.
    pub fn known(&self) -> Option<Known> {
        lock(&self.0.latest).clone()
    }

    /// Sees to it that what is known is at most a minute old, if the gateway answers soon.
    pub async fn refresh(&self) {
        let shared = Arc::clone(&self.0);
        // In a task of its own: whoever asks first may hang up, and the others still wait for it.
        let asking = tokio::spawn(async move { shared.look().await });
        timeout(PATIENCE, asking).await.ok();
    }

    /// The gateway itself, however lately it was asked: what it answers is heard here, too.
    pub fn gateway(
        &self,
    ) -> impl Service<Ask, Response = Reply, Error = Error, Future: Send> + Clone + use<> {
        let shared = Arc::clone(&self.0);
        tower::service_fn(move |asked: Ask| {
            let shared = Arc::clone(&shared);
            async move {
                let (mut asked, mut reply) = (Some(asked), None);
                shared.asked.invalidate(&()).await;
                {
                    let has_begun = AtomicBool::new(false);
                    // Who wants to know meanwhile waits for this answer instead of asking again.
                    let asking = async {
                        has_begun.store(true, Ordering::Relaxed);
                        let asked = asked.take().unwrap_or_else(question);
                        let (given, is_read) = shared.ask(asked).await;
                        reply = Some(given);
                        is_read
                    };
                    let mut answered = pin!(shared.asked.get_with((), asking));
                    // Somebody else's question may wait for as long as it takes; this one may not.
                    let is_late = timeout(PATIENCE, &mut answered).await.is_err();
                    if is_late && has_begun.load(Ordering::Relaxed) {
                        answered.await;
                    }
                }
                match reply {
                    Some(reply) => reply,
                    // Somebody was asking already, from before this.
                    None => shared.ask(asked.unwrap_or_else(question)).await.0,
                }
            }
        })
    }

    /// Asks at once, and then every few minutes while `was_used` says that there are sales; sooner
    /// while the gateway does not answer. It ends when nobody else holds the books.
    pub fn follow(
        &self,
        was_used: impl Fn() -> bool + Send + Sync + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let books: Weak<Shared> = Arc::downgrade(&self.0);
        let moved = Arc::clone(&self.0.moved);
        async move {
            // What was asked before the ledger was open was held back.
            if let Some(shared) = books.upgrade() {
                shared.asked.invalidate(&()).await;
            }
            let mut is_another = false;
            loop {
                let Some(shared) = books.upgrade() else { return };
                let look = async move {
                    match is_another {
                        true => shared.look_again().await,
                        false => shared.look().await,
                    }
                };
                let is_read = tokio::select! {
                    is_read = look => is_read,
                    () = moved.notified() => {
                        is_another = true;
                        continue;
                    }
                };
                let pause = async {
                    sleep(if is_read { WHILE_USED } else { AT_MOST_EVERY }).await;
                    while !was_used() && books.strong_count() > 0 {
                        sleep(AT_MOST_EVERY).await;
                    }
                };
                is_another = tokio::select! {
                    () = pause => false,
                    () = moved.notified() => true,
                };
            }
        }
    }
}

/// Nobody waits for it whom a refusal would help: it takes its turn however long that takes.
fn question() -> Ask {
    Ask::free(What::Billing).patient()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Whether the gateway has answered within the last minute.
    async fn look(&self) -> bool {
        self.asked.get_with((), async { self.ask(question()).await.1 }).await
    }

    /// The same, however lately it answered.
    async fn look_again(&self) -> bool {
        let is_read = self.ask(question()).await.1;
        self.asked.insert((), is_read).await;
        is_read
    }

    /// The gateway's reply, and whether it could be read. If the gateway was exchanged for another one
    /// meanwhile, its reply counts as none.
    async fn ask(&self, asked: Ask) -> (Result<Reply, Error>, bool) {
        let heard = (self.ears)();
        let asked_at = clock::wall();
        let Current { gateway, generation } = lock(&self.current).clone();
        let reply = gateway.oneshot(asked).await;
        // Held until the reply has taken effect: the gateway is not exchanged in between.
        let current = lock(&self.current);
        if current.generation != generation {
            return (reply, false);
        }
        if matches!(reply, Err(Error::Aborted(_) | Error::WindowFull { .. } | Error::Draining)) {
            // The gateway was not asked, so it does not refuse to tell.
            self.is_stale.store(true, Ordering::Relaxed);
            return (reply, false);
        }
        let listing = reply.as_ref().ok().map(billing::read);
        let is_read = matches!(listing, Some(Ok(_)));
        if let Some(Ok(listing)) = listing {
            heard(&listing.billing);
            self.hand_on(listing.billing.rate_limit);
            self.tell_revoked(&listing.keys);
            let (listing, as_of) = (Arc::new(listing), clock::wall());
            let known = Known { listing, as_of, asked: asked_at, generation };
            self.heard.send_replace(Heard::Listing(known.clone()));
            *lock(&self.latest) = Some(known);
        } else {
            info!("the account's books cannot be read; selling goes on");
            self.heard.send_replace(Heard::Nothing);
            self.limit.send_if_modified(|known| {
                known.is_none() && known.replace(Told::Nothing).is_none()
            });
        }
        self.is_stale.store(!is_read, Ordering::Relaxed);
        drop(current);
        (reply, is_read)
    }

    fn hand_on(&self, limit: RateLimit) {
        let told = Told::Limit(limit);
        self.limit.send_if_modified(|known| known.replace(told) != Some(told));
    }

    /// Names keys of the ring that the gateway lists as revoked, once each. A prefix that a working
    /// key has, too, says nothing.
    fn tell_revoked(&self, keys: &[KeyRow]) {
        let works = |prefix: &str| {
            keys.iter().any(|key| key.revoked_at.is_none() && shown(&key.key_prefix) == prefix)
        };
        for key in keys.iter().filter(|key| key.revoked_at.is_some()) {
            let prefix = shown(&key.key_prefix);
            if prefix.len() <= KEY_PREFIX.len() || works(prefix) || !lock(&self.is_ours)(prefix) {
                continue;
            }
            if lock(&self.told).insert(prefix.to_owned()) {
                let name = key.name.escape_debug();
                warn!(%name, prefix, "a key of the ring is revoked; take it out of GATEWAY_API_KEY");
            }
        }
    }
}

/// The prefix without what stands for the rest.
pub fn shown(prefix: &str) -> &str {
    prefix.trim_end_matches(['.', '…', '*'])
}

#[cfg(test)]
mod tests;
