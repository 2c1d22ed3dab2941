//! Knows whether anybody still waits for a purchase: until its first byte is sent, it goes with the
//! last of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Everybody who waits, or has waited, for one purchase.
#[derive(Clone, Default)]
pub struct Waiters(Arc<Mutex<Vec<Arc<Presence>>>>);

#[derive(Default)]
struct Presence {
    is_gone: AtomicBool,
    going: Notify,
}

impl Waiters {
    /// One more who waits, until the guard is dropped.
    pub(super) fn wait(&self) -> Waiting {
        let presence = Arc::new(Presence::default());
        self.lock().push(Arc::clone(&presence));
        Waiting(presence)
    }

    /// Those who wait for `other` wait for this one, too.
    pub(super) fn join(&self, other: &Self) {
        let others = other.lock().clone();
        let mut here = self.lock();
        here.retain(|one| !one.is_gone.load(Ordering::Acquire));
        here.extend(others);
    }

    /// Whether anybody is still here.
    pub(super) fn any(&self) -> bool {
        self.first().is_some()
    }

    /// Resolves when nobody is left.
    pub(super) async fn none(&self) {
        while let Some(one) = self.first() {
            let going = one.going.notified();
            // Who went before this line is seen here, who goes after it wakes us.
            if !one.is_gone.load(Ordering::Acquire) {
                going.await;
            }
        }
    }

    fn first(&self) -> Option<Arc<Presence>> {
        self.lock().iter().find(|one| !one.is_gone.load(Ordering::Acquire)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Presence>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("any", &self.any()).finish()
    }
}

/// Somebody who waits.
pub(super) struct Waiting(Arc<Presence>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.is_gone.store(true, Ordering::Release);
        self.0.going.notify_waiters();
        self.0.going.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn somebody_waits_until_the_last_one_is_gone() {
        let (first, second) = (Waiters::default(), Waiters::default());
        let (one, two) = (first.wait(), second.wait());
        first.join(&second);
        drop(one);
        assert!(first.any());
        timeout(Duration::from_secs(1), first.none()).await.expect_err("one is left");
        let alone = first.clone();
        let left = tokio::spawn(async move { alone.none().await });
        tokio::task::yield_now().await;
        drop(two);
        left.await.expect("told");
        assert!(!first.any());
    }
}
