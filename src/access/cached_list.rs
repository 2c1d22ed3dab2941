//! An in-memory copy of a list in the store. Changes by other processes apply at the next refresh.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info};

use super::Denied;
use crate::clock::{self, Instant};
use crate::ledger::{Store, Unavailable, VERSION_POLL_INTERVAL};

/// How long the last list is used while the store is unreadable. After that, everyone is rejected.
const MAX_STALE: Duration = Duration::from_secs(30);
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A list that counts in the store's [version](Store::members_version).
pub(super) trait Listed: Sized + Send + Sync {
    /// Reads the list. `old` is the one before.
    fn read(
        store: &Store,
        old: Option<&Self>,
    ) -> impl Future<Output = Result<Self, Unavailable>> + Send;

    /// Runs when `self` has replaced `old`.
    fn replaces(&self, old: &Self);
}

pub(super) struct CachedList<L> {
    pub(super) store: Store,
    current: ArcSwapOption<Cached<L>>,
    is_failing: AtomicBool,
    updating: Mutex<()>,
}

struct Cached<L> {
    list: Arc<L>,
    /// The ledger's name and the version: a ledger that has lost changes may reach a version again.
    version: (Arc<str>, u64),
    refreshed_at: Instant,
}

impl<L: Listed> CachedList<L> {
    /// Starts empty: everyone is rejected until the first refresh.
    pub(super) fn new(store: Store) -> Self {
        let (current, is_failing) = (ArcSwapOption::empty(), AtomicBool::new(false));
        Self { store, current, is_failing, updating: Mutex::default() }
    }

    pub(super) async fn run(&self) {
        let mut ticks = interval(VERSION_POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.refresh().await;
        }
    }

    pub(super) fn list(&self) -> Result<Arc<L>, Denied> {
        match &*self.current.load() {
            Some(cached) if cached.refreshed_at.elapsed() <= MAX_STALE => {
                Ok(Arc::clone(&cached.list))
            }
            Some(_) | None => Err(Denied::Unavailable(RETRY_AFTER)),
        }
    }

    /// Returns the last list, however old.
    pub(super) fn last(&self) -> Option<Arc<L>> {
        self.current.load().as_ref().map(|cached| Arc::clone(&cached.list))
    }

    /// Locks the list while the store is changed. Finish with [`reload`](Self::reload).
    pub(super) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.updating.lock().await
    }

    pub(super) async fn refresh(&self) {
        let guard = self.lock().await;
        let result = self.refresh_locked(&guard).await;
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::AcqRel);
        match result {
            Ok(()) if was_failing => info!("member list readable again"),
            Err(error) if !was_failing && !self.store.is_unusable() => {
                error!(%error, "member list unreadable")
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// [`refresh`](Self::refresh), unless another call has refreshed since `earliest`.
    pub(super) async fn refresh_since(&self, earliest: Instant) {
        let is_new = |cached: &Cached<L>| cached.refreshed_at >= earliest;
        let guard = self.lock().await;
        if !self.current.load().as_deref().is_some_and(is_new) {
            // The next regular refresh reports a failure.
            self.refresh_locked(&guard).await.ok();
        }
    }

    async fn refresh_locked(&self, guard: &MutexGuard<'_, ()>) -> Result<(), Unavailable> {
        let started_at = clock::now();
        let version = self.version().await?;
        match self.current.load_full() {
            Some(old) if old.version == version => {
                self.publish(Arc::clone(&old.list), version, started_at);
                Ok(())
            }
            Some(_) | None => self.reload(guard).await,
        }
    }

    async fn version(&self) -> Result<(Arc<str>, u64), Unavailable> {
        let version = self.store.members_version().await?;
        Ok((self.store.name(), version))
    }

    fn publish(&self, list: Arc<L>, version: (Arc<str>, u64), refreshed_at: Instant) {
        self.current.store(Some(Arc::new(Cached { list, version, refreshed_at })));
    }

    /// Reloads the whole list.
    pub(super) async fn reload(&self, _: &MutexGuard<'_, ()>) -> Result<(), Unavailable> {
        let started_at = clock::now();
        // The version comes first, so that the next refresh finds changes made while we read.
        let version = self.version().await?;
        let old = self.last();
        let new = Arc::new(L::read(&self.store, old.as_deref()).await?);
        self.publish(Arc::clone(&new), version, started_at);
        if let Some(old) = old {
            new.replaces(&old);
        }
        Ok(())
    }
}
