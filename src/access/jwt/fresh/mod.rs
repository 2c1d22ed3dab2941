//! Keeps a login service's keys fresh: asks for them from time to time, and when a token names one
//! that is not known yet, but never often.

use std::error::Error;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info, warn};

use super::key_set::{KeySet, MAX_DOCUMENT};
use crate::clock::{self, Instant};
use crate::config::Jwks;
use crate::sync::lock;
use crate::upstream::fetch::{self, Document};

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
/// After a failure while no keys are known at all.
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
    asked: watch::Sender<u64>,
}

struct Asking {
    is_on: bool,
    /// Also by whoever came while it was on.
    is_wanted: bool,
    last: Option<Instant>,
    due: Instant,
    fails: bool,
}

impl Keys {
    /// None yet: nothing is asked before [`Keys::keep`] runs.
    pub(super) fn new(source: Source) -> Self {
        let asking =
            Asking { is_on: false, is_wanted: false, last: None, due: clock::now(), fails: false };
        Self {
            held: ArcSwapOption::empty(),
            source,
            asking: Mutex::new(asking),
            wake: Arc::default(),
            asked: watch::Sender::new(0),
        }
    }

    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        let held = self.held.load();
        let held = held.as_ref()?;
        let is_fresh = clock::now().duration_since(held.since) < MAX_STALE;
        is_fresh.then(|| Arc::clone(&held.set))
    }

    /// Keys that are newer than these, if need be by asking for them and waiting; `None` where that was
    /// done a short while ago, or gave nothing in time.
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
        self.asking().is_wanted = true;
        self.wake.notify_one();
    }

    /// Asks when it is time to, until nobody holds these keys any more.
    pub(super) fn keep(self: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let (keys, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
        async move {
            while let Some(due) = step(&keys).await {
                // Woken or due, the next step looks whether there is anything to do.
                timeout_at(due, wake.notified()).await.ok();
            }
        }
    }

    pub(super) fn take(&self, document: &[u8]) -> Result<(), Fault> {
        let same = self.held.load_full().filter(|held| held.set.print() == blake3::hash(document));
        let set = match same {
            Some(held) => Arc::clone(&held.set),
            None => Arc::new(told(KeySet::read(document)?)),
        };
        self.held.store(Some(Arc::new(Held { set, since: clock::now() })));
        Ok(())
    }

    /// Whether somebody is asking from now on.
    fn ask(&self, now: Instant) -> bool {
        let mut asking = self.asking();
        if asking.is_on {
            return true;
        }
        if asking.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return false;
        }
        asking.is_on = true;
        self.wake.notify_one();
        true
    }

    async fn refresh(&self) {
        let fetched = (self.source)().await;
        let again = fetched.and_then(|Fetched { body, again }| self.take(&body).map(|()| again));
        let mut asking = self.asking();
        let pause = match again {
            Ok(again) => {
                if std::mem::take(&mut asking.fails) {
                    info!("the login service's keys are there again");
                }
                again
            }
            Err(fault) => {
                let known = self.current().is_some();
                // Once is enough for a log; the rest is for whoever looks closer.
                if std::mem::replace(&mut asking.fails, true) {
                    debug!(%fault, known, "no newer keys of the login service");
                } else {
                    warn!(%fault, known, "no newer keys of the login service");
                }
                if known { PAUSE } else { PAUSE_WITHOUT }
            }
        };
        asking.is_on = false;
        asking.due = clock::now() + sooner(pause);
        drop(asking);
        self.asked.send_modify(|times| *times = times.wrapping_add(1));
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        lock(&self.asking)
    }
}

/// Whoever keeps them need not wait any longer.
impl Drop for Keys {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Asks if it is due or asked for; says when to look again, while there is anybody to look for.
async fn step(keys: &Weak<Keys>) -> Option<Instant> {
    let keys = keys.upgrade()?;
    let now = clock::now();
    let is_time = {
        let mut asking = keys.asking();
        asking.is_on |= std::mem::take(&mut asking.is_wanted) || now >= asking.due;
        if asking.is_on {
            asking.last = Some(now);
        }
        asking.is_on
    };
    if is_time {
        keys.refresh().await;
    }
    let due = keys.asking().due;
    Some(due)
}

/// Up to a tenth sooner, so that several instances do not ask at the same moment.
fn sooner(pause: Duration) -> Duration {
    let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    let spread = RandomState::new().hash_one(millis) % (millis / 10 + 1);
    pause - Duration::from_millis(spread)
}

fn told(set: KeySet) -> KeySet {
    let (usable, left_out) = (set.usable(), set.left_out());
    match usable {
        0 => warn!(
            left_out,
            "the login service shows no key that can be used: every token is refused"
        ),
        _ => info!(usable, left_out, "the login service's keys are read"),
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

/// An address, or a file that somebody replaces when keys change.
pub(super) fn source(jwks: &Jwks) -> Source {
    match jwks.clone() {
        Jwks::Address(address) => Box::new(move || {
            let address = address.clone();
            Box::pin(async move {
                let Document { body, fresh_for } =
                    fetch::document(&address, MAX_DOCUMENT, DEADLINE).await?;
                Ok(Fetched { body, again: fresh_for.unwrap_or(USUAL).clamp(SOONEST, LATEST) })
            })
        }),
        Jwks::File(path) => Box::new(move || {
            let path = path.clone();
            Box::pin(async move {
                let body = spawn_blocking(move || read_file(&path)).await??;
                Ok(Fetched { body: body.into(), again: FILE_AGAIN })
            })
        }),
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
