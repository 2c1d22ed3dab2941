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
use crate::config::JwksSource;
use crate::sync::lock;
use crate::upstream::fetch;

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an address is asked that does not say how long its answer holds.
const DEFAULT_REFETCH: Duration = Duration::from_secs(600);
/// The shortest and the longest that an address may ask for.
const MIN_REFETCH: Duration = Duration::from_secs(60);
const MAX_REFETCH: Duration = Duration::from_secs(900);
const FILE_REREAD: Duration = Duration::from_secs(10);
pub(super) const MAX_STALE: Duration = Duration::from_secs(24 * 3_600);
/// Whoever names unknown keys makes us ask at most once in this time; after a failure we ask as often.
pub(super) const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(30);
pub(super) const RETRY_WITHOUT_KEYS: Duration = Duration::from_secs(5);
/// How long a token waits for keys; a bit longer than asking may take.
const MAX_WAIT: Duration = Duration::from_secs(FETCH_TIMEOUT.as_secs() + 1);

struct CachedKeys {
    set: Arc<KeySet>,
    fetched_at: Instant,
}

pub(super) struct KeyCache {
    source: KeySource,
    cached: ArcSwapOption<CachedKeys>,
    state: Mutex<FetchState>,
    wake: Arc<Notify>,
    fetched: watch::Sender<()>,
}

#[derive(Default)]
struct FetchState {
    is_running: bool,
    last_at: Option<Instant>,
    last_failed: bool,
}

impl KeyCache {
    /// None yet: nothing is asked before [`KeyCache::run`] runs.
    pub(super) fn new(source: KeySource) -> Self {
        Self {
            cached: ArcSwapOption::empty(),
            source,
            state: Mutex::default(),
            wake: Arc::default(),
            fetched: watch::Sender::new(()),
        }
    }

    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        let held = self.cached.load();
        let held = held.as_ref()?;
        let is_fresh = clock::now().duration_since(held.fetched_at) < MAX_STALE;
        is_fresh.then(|| Arc::clone(&held.set))
    }

    /// `None` if keys were fetched a short while ago, or if nothing came in time.
    pub(super) async fn refetched(&self, than: Option<&Arc<KeySet>>) -> Option<Arc<KeySet>> {
        let mut asked = self.fetched.subscribe();
        if !self.request_fetch(clock::now()) {
            // They may have come since these were looked at.
            let is_newer = |set: &Arc<KeySet>| than.is_none_or(|than| !Arc::ptr_eq(set, than));
            return self.current().filter(is_newer);
        }
        timeout(MAX_WAIT, asked.changed()).await.ok()?.ok()?;
        self.current()
    }

    /// Asks soon, however short a while ago that was done: an operator wants it.
    pub(super) fn refetch(&self) {
        self.wake.notify_one();
    }

    /// Asks when it is time to, until nobody holds these keys any more.
    pub(super) fn run(self: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let (keys, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
        async move {
            let mut due = clock::now();
            loop {
                timeout_at(due, wake.notified()).await.ok();
                let Some(keys) = keys.upgrade() else { return };
                let pause = keys.refresh().await;
                due = clock::now() + with_jitter(pause);
            }
        }
    }

    pub(super) fn replace(&self, document: &[u8]) -> Result<(), FetchError> {
        let same =
            self.cached.load_full().filter(|held| held.set.fingerprint == blake3::hash(document));
        let set = match same {
            Some(held) => Arc::clone(&held.set),
            None => Arc::new(logged(KeySet::read(document)?)),
        };
        self.cached.store(Some(Arc::new(CachedKeys { set, fetched_at: clock::now() })));
        Ok(())
    }

    fn request_fetch(&self, now: Instant) -> bool {
        let mut asking = lock(&self.state);
        if !asking.is_running
            && asking.last_at.is_some_and(|last| now.duration_since(last) < MIN_FETCH_INTERVAL)
        {
            return false;
        }
        if !mem::replace(&mut asking.is_running, true) {
            self.wake.notify_one();
        }
        true
    }

    /// Asks now, and says how long to wait until it is asked again.
    async fn refresh(&self) -> Duration {
        {
            let mut asking = lock(&self.state);
            (asking.is_running, asking.last_at) = (true, Some(clock::now()));
            // Whoever has asked until now is answered by this.
            self.wake.notified().now_or_never();
        }
        let fetched = (self.source)().await;
        let again = fetched
            .and_then(|Fetched { body, refetch_in: again }| self.replace(&body).map(|()| again));
        let mut asking = lock(&self.state);
        asking.is_running = false;
        let had_failed = mem::replace(&mut asking.last_failed, again.is_err());
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
                if known { MIN_FETCH_INTERVAL } else { RETRY_WITHOUT_KEYS }
            }
        };
        self.fetched.send_replace(());
        pause
    }
}

/// Whoever keeps them need not wait any longer.
impl Drop for KeyCache {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Up to a tenth sooner, so that several instances do not ask at the same moment.
fn with_jitter(pause: Duration) -> Duration {
    let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    let spread = RandomState::new().hash_one(millis) % (millis / 10 + 1);
    pause - Duration::from_millis(spread)
}

fn logged(set: KeySet) -> KeySet {
    let (usable, left_out) = (set.usable(), set.skipped);
    if usable == 0 {
        warn!(left_out, "the login service shows no key that can be used: every token is refused");
    } else {
        info!(usable, left_out, "the login service's keys are read");
    }
    set
}

pub(in crate::access) struct Fetched {
    pub(super) body: Bytes,
    pub(super) refetch_in: Duration,
}

/// Why there are no new keys. It says nothing of the document.
pub(super) type FetchError = Box<dyn Error + Send + Sync>;
pub(super) type FetchFuture = Pin<Box<dyn Future<Output = Result<Fetched, FetchError>> + Send>>;
pub(super) type KeySource = Box<dyn Fn() -> FetchFuture + Send + Sync>;

pub(super) fn key_source(jwks: &JwksSource) -> KeySource {
    let jwks = jwks.clone();
    Box::new(move || Box::pin(fetch_keys(jwks.clone())))
}

async fn fetch_keys(jwks: JwksSource) -> Result<Fetched, FetchError> {
    match jwks {
        JwksSource::Url(address) => {
            let document = fetch::fetch_document(&address, MAX_DOCUMENT, FETCH_TIMEOUT).await?;
            let again = document.max_age.unwrap_or(DEFAULT_REFETCH).clamp(MIN_REFETCH, MAX_REFETCH);
            Ok(Fetched { body: document.body, refetch_in: again })
        }
        JwksSource::File(path) => {
            let body = spawn_blocking(move || read_file(&path)).await??;
            Ok(Fetched { body: body.into(), refetch_in: FILE_REREAD })
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
