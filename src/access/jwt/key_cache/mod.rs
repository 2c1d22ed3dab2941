//! Caches the keys of the JWKS. They are fetched periodically, and when a token names an unknown key.

use std::error::Error;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info, warn};

use super::key_set::{KeySet, KeySetError, MAX_DOCUMENT};
use crate::clock::{self, Instant};
use crate::config::JwksSource;
use crate::gateway::fetch;
use crate::sync::lock;

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_REFETCH: Duration = Duration::from_secs(600);
const MIN_REFETCH: Duration = Duration::from_secs(60);
const MAX_REFETCH: Duration = Duration::from_secs(900);
const FILE_REREAD: Duration = Duration::from_secs(10);
pub(super) const MAX_STALE: Duration = Duration::from_secs(24 * 3_600);
/// The minimum time between fetches for unknown keys, and the retry interval after a failure.
pub(super) const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(30);
pub(super) const RETRY_WITHOUT_KEYS: Duration = Duration::from_secs(5);
/// How long a token waits for keys: slightly longer than a fetch may take.
const MAX_WAIT: Duration = Duration::from_secs(FETCH_TIMEOUT.as_secs() + 1);

pub(super) struct KeyCache {
    source: KeySource,
    /// The keys, and when they were fetched.
    cached: ArcSwapOption<(Arc<KeySet>, Instant)>,
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
    /// Starts empty: [`Self::run`] fetches the keys.
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
        let cached = self.cached.load();
        let (set, fetched_at) = &**cached.as_ref()?;
        (fetched_at.elapsed() < MAX_STALE).then(|| Arc::clone(set))
    }

    /// Returns `None` if keys were fetched recently, or if none arrive in time.
    pub(super) async fn refetched(&self, than: Option<&Arc<KeySet>>) -> Option<Arc<KeySet>> {
        let mut fetched = self.fetched.subscribe();
        if !self.request_fetch(clock::now()) {
            // They may have been fetched in the meantime.
            let is_newer = |set: &Arc<KeySet>| than.is_none_or(|than| !Arc::ptr_eq(set, than));
            return self.current().filter(is_newer);
        }
        timeout(MAX_WAIT, fetched.changed()).await.ok()?.ok()?;
        self.current()
    }

    pub(super) fn refetch(&self) {
        self.wake.notify_one();
    }

    /// Fetches the keys periodically, until `self` is dropped.
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
        let set = match self.cached.load().as_deref() {
            Some((set, _)) if set.fingerprint == blake3::hash(document) => Arc::clone(set),
            Some(_) | None => Arc::new(read_and_log(document)?),
        };
        self.cached.store(Some(Arc::new((set, clock::now()))));
        Ok(())
    }

    fn request_fetch(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let is_recent = |last_at| now.duration_since(last_at) < MIN_FETCH_INTERVAL;
        if !state.is_running && state.last_at.is_some_and(is_recent) {
            return false;
        }
        if !mem::replace(&mut state.is_running, true) {
            self.wake.notify_one();
        }
        true
    }

    /// Fetches the keys and returns the time until the next fetch.
    async fn refresh(&self) -> Duration {
        {
            let mut state = lock(&self.state);
            (state.is_running, state.last_at) = (true, Some(clock::now()));
            // This fetch also serves the requests made until now.
            self.wake.notified().now_or_never();
        }
        let fetched = (self.source)().await;
        let result = fetched.and_then(|(document, refetch_in)| {
            self.replace(&document)?;
            Ok(refetch_in)
        });
        let mut state = lock(&self.state);
        state.is_running = false;
        let had_failed = mem::replace(&mut state.last_failed, result.is_err());
        drop(state);
        if had_failed && result.is_ok() {
            info!("fetched JWKS after failure");
        }
        let pause = result.unwrap_or_else(|error| {
            let has_keys = self.current().is_some();
            if had_failed {
                debug!(%error, has_keys, "failed to fetch JWKS");
            } else {
                warn!(%error, has_keys, "failed to fetch JWKS");
            }
            if has_keys { MIN_FETCH_INTERVAL } else { RETRY_WITHOUT_KEYS }
        });
        self.fetched.send_replace(());
        pause
    }
}

impl Drop for KeyCache {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Shortens `pause` by up to a tenth, so that instances do not fetch at the same moment.
fn with_jitter(pause: Duration) -> Duration {
    let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    let spread = RandomState::new().hash_one(millis) % (millis / 10 + 1);
    pause - Duration::from_millis(spread)
}

fn read_and_log(document: &[u8]) -> Result<KeySet, KeySetError> {
    let set = KeySet::read(document)?;
    let (usable, skipped) = (set.usable(), set.skipped);
    if usable == 0 {
        warn!(skipped, "no usable key in JWKS; rejecting all tokens");
    } else {
        info!(usable, skipped, "loaded JWKS");
    }
    Ok(set)
}

/// Never quotes the document.
pub(in crate::access) type FetchError = Box<dyn Error + Send + Sync>;
/// Resolves to the document and the time until the next fetch.
pub(in crate::access) type FetchFuture = BoxFuture<'static, Result<(Bytes, Duration), FetchError>>;
pub(in crate::access) type KeySource = Box<dyn Fn() -> FetchFuture + Send + Sync>;

pub(super) fn key_source(jwks: &JwksSource) -> KeySource {
    let jwks = jwks.clone();
    Box::new(move || Box::pin(fetch_keys(jwks.clone())))
}

pub(in crate::access) async fn fetch_keys(
    jwks: JwksSource,
) -> Result<(Bytes, Duration), FetchError> {
    match jwks {
        JwksSource::Url(address) => {
            let document = fetch::fetch_document(&address, MAX_DOCUMENT, FETCH_TIMEOUT).await?;
            let max_age = document.max_age.unwrap_or(DEFAULT_REFETCH);
            Ok((document.body, max_age.clamp(MIN_REFETCH, MAX_REFETCH)))
        }
        JwksSource::File(path) => {
            let body = spawn_blocking(move || read_file(&path)).await??;
            Ok((body.into(), FILE_REREAD))
        }
    }
}

/// Reads at most one byte more than [`KeySet::read`] accepts.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut body = Vec::new();
    file.take(MAX_DOCUMENT as u64 + 1).read_to_end(&mut body)?;
    Ok(body)
}

#[cfg(test)]
mod tests;
