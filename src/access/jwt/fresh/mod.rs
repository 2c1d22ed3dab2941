//! Keeps a login service's keys fresh: asks for them from time to time, and when a token names one
//! that is not known yet, but never often.

use std::error::Error;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::mem;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info, warn};

use super::key_set::{KeySet, MAX_DOCUMENT};
use crate::clock::{self, Instant};
use crate::config::Jwks;
use crate::sync::lock;
use crate::upstream::fetch;

const DEADLINE: Duration = Duration::from_secs(5);
/// How often an address is asked that does not say how long its answer holds.
const USUAL: Duration = Duration::from_secs(600);
/// The shortest and the longest that an address may ask for.
const SOONEST: Duration = Duration::from_secs(60);
const LATEST: Duration = Duration::from_secs(900);
const FILE_AGAIN: Duration = Duration::from_secs(10);
pub(super) const MAX_STALE: Duration = Duration::from_secs(24 * 3_600);
/// Whoever names unknown keys makes us ask at most once in this time; after a failure we ask as often.
pub(super) const PAUSE: Duration = Duration::from_secs(30);
pub(super) const PAUSE_WITHOUT: Duration = Duration::from_secs(5);
/// How long a token waits for keys; a bit longer than asking may take.
const WAIT: Duration = Duration::from_secs(DEADLINE.as_secs() + 1);

struct Held {
    set: Arc<KeySet>,
    since: Instant,
}

pub(super) struct Keys {
    source: Source,
    held: ArcSwapOption<Held>,
    asking: Mutex<Asking>,
    wake: Arc<Notify>,
    asked: watch::Sender<()>,
}

#[derive(Default)]
struct Asking {
    is_on: bool,
    last: Option<Instant>,
    fails: bool,
}

impl Keys {
    /// None yet: nothing is asked before [`Keys::keep`] runs.
    pub(super) fn new(source: Source) -> Self {
        Self {
            held: ArcSwapOption::empty(),
            source,
            asking: Mutex::default(),
            wake: Arc::default(),
            asked: watch::Sender::new(()),
        }
    }

    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        let held = self.held.load();
        let held = held.as_ref()?;
        let is_fresh = clock::now().duration_since(held.since) < MAX_STALE;
        is_fresh.then(|| Arc::clone(&held.set))
    }

    /// `None` if keys were fetched a short while ago, or if nothing came in time.
    pub(super) async fn newer(&self, than: Option<&Arc<KeySet>>) -> Option<Arc<KeySet>> {
        let mut asked = self.asked.subscribe();
        if !self.ask(clock::now()) {
            // They may have come since these were looked at.
            let is_newer = |set: &Arc<KeySet>| than.is_none_or(|than| !Arc::ptr_eq(set, than));
            return self.current().filter(is_newer);
        }
        timeout(WAIT, asked.changed()).await.ok()?.ok()?;
        self.current()
    }

    /// Asks soon, however short a while ago that was done: an operator wants it.
    pub(super) fn look_again(&self) {
        self.wake.notify_one();
    }

    /// Asks when it is time to, until nobody holds these keys any more.
    pub(super) fn keep(self: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let (keys, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
        async move {
            let mut due = clock::now();
            loop {
                timeout_at(due, wake.notified()).await.ok();
                let Some(keys) = keys.upgrade() else { return };
                let pause = keys.refresh().await;
                due = clock::now() + sooner(pause);
            }
        }
    }

    pub(super) fn take(&self, document: &[u8]) -> Result<(), Fault> {
        let same = self.held.load_full().filter(|held| held.set.print == blake3::hash(document));
        let set = match same {
            Some(held) => Arc::clone(&held.set),
            None => Arc::new(logged(KeySet::read(document)?)),
        };
        self.held.store(Some(Arc::new(Held { set, since: clock::now() })));
        Ok(())
    }

    fn ask(&self, now: Instant) -> bool {
        let mut asking = lock(&self.asking);
        if !asking.is_on && asking.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return false;
        }
        if !mem::replace(&mut asking.is_on, true) {
            self.wake.notify_one();
        }
        true
    }

    /// Asks now, and says how long to wait until it is asked again.
    async fn refresh(&self) -> Duration {
        {
            let mut asking = lock(&self.asking);
            (asking.is_on, asking.last) = (true, Some(clock::now()));
            // Whoever has asked until now is answered by this.
            self.wake.notified().now_or_never();
        }
        let fetched = (self.source)().await;
        let again = fetched.and_then(|Fetched { body, again }| self.take(&body).map(|()| again));
        let mut asking = lock(&self.asking);
        asking.is_on = false;
        let had_failed = mem::replace(&mut asking.fails, again.is_err());
        drop(asking);
        let pause = match again {
            Ok(again) => {
                if had_failed {
                    info!("the login service's keys are there again");
                }
                again
            }
            Err(fault) => {
                let known = self.current().is_some();
                // Once is enough for a log; the rest is for whoever looks closer.
                if had_failed {
                    debug!(%fault, known, "no newer keys of the login service");
                } else {
                    warn!(%fault, known, "no newer keys of the login service");
                }
                if known { PAUSE } else { PAUSE_WITHOUT }
            }
        };
        self.asked.send_replace(());
        pause
    }
}

/// Whoever keeps them need not wait any longer.
impl Drop for Keys {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Up to a tenth sooner, so that several instances do not ask at the same moment.
fn sooner(pause: Duration) -> Duration {
    let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    let spread = RandomState::new().hash_one(millis) % (millis / 10 + 1);
    pause - Duration::from_millis(spread)
}

fn logged(set: KeySet) -> KeySet {
    let (usable, left_out) = (set.usable(), set.left_out);
    if usable == 0 {
        warn!(left_out, "the login service shows no key that can be used: every token is refused");
    } else {
        info!(usable, left_out, "the login service's keys are read");
    }
    set
}

pub(in crate::access) struct Fetched {
    pub(super) body: Bytes,
    pub(super) again: Duration,
}

/// Why there are no new keys. It says nothing of the document.
pub(super) type Fault = Box<dyn Error + Send + Sync>;
pub(super) type Fetching = Pin<Box<dyn Future<Output = Result<Fetched, Fault>> + Send>>;
pub(super) type Source = Box<dyn Fn() -> Fetching + Send + Sync>;

pub(super) fn source(jwks: &Jwks) -> Source {
    let jwks = jwks.clone();
    Box::new(move || Box::pin(fetched(jwks.clone())))
}

async fn fetched(jwks: Jwks) -> Result<Fetched, Fault> {
    match jwks {
        Jwks::Address(address) => {
            let document = fetch::document(&address, MAX_DOCUMENT, DEADLINE).await?;
            let again = document.fresh_for.unwrap_or(USUAL).clamp(SOONEST, LATEST);
            Ok(Fetched { body: document.body, again })
        }
        Jwks::File(path) => {
            let body = spawn_blocking(move || read_file(&path)).await??;
            Ok(Fetched { body: body.into(), again: FILE_AGAIN })
        }
    }
}

/// The file as it is now; one byte more than is taken, at most.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let mut body = Vec::new();
    file.take(MAX_DOCUMENT as u64 + 1).read_to_end(&mut body)?;
    Ok(body)
}

#[cfg(test)]
mod tests;
