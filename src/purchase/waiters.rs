//! Knows whether anybody still waits for a purchase who may buy it: until its first byte is sent, it
//! goes with the last of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::access::Standing;
use crate::sync::lock;

/// Everybody who waits, or has waited, for one purchase.
#[derive(Clone, Default)]
pub struct Waiters(Arc<Mutex<Vec<Arc<Presence>>>>);

#[derive(Default)]
struct Presence {
    is_gone: AtomicBool,
    going: Notify,
    standing: Standing,
}

impl Presence {
    /// Whose credentials hold no more does not count: nothing more is bought for it.
    fn counts(&self) -> bool {
        !self.is_gone.load(Ordering::Acquire) && !self.standing.is_over()
    }
}

impl Waiters {
    /// One more who waits, until the guard is dropped or its credentials end.
    pub(super) fn wait(&self, standing: Standing) -> Waiting {
        let presence = Arc::new(Presence { standing, ..Presence::default() });
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
            if one.counts() {
                tokio::select! {
                    () = going => {}
                    () = one.standing.over() => {}
                }
            }
        }
    }

    fn first(&self) -> Option<Arc<Presence>> {
        self.lock().iter().find(|one| one.counts()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Presence>>> {
        lock(&self.0)
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("any", &self.any()).finish()
    }
}

/// Somebody who waits.
pub(super) struct Waiting(Arc<Presence>);

impl Waiting {
    /// Whether its credentials hold no more.
    pub(super) fn is_barred(&self) -> bool {
        self.0.standing.is_over()
    }
}

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
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn somebody_waits_until_the_last_one_is_gone() {
        let (first, second) = (Waiters::default(), Waiters::default());
        let (one, two) = (first.wait(Standing::default()), second.wait(Standing::default()));
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

    #[tokio::test(start_paused = true)]
    async fn whose_credentials_ended_waits_no_more_and_its_companion_does() {
        let standings = [(); 2].map(|()| {
            let ended = Some(CancellationToken::new());
            Standing { ended, ..Standing::default() }
        });
        let end = |which: usize| standings[which].ended.as_ref().unwrap().cancel();
        let waiters = Waiters::default();
        let [one, two] = standings.each_ref().map(|standing| waiters.wait(standing.clone()));
        end(0);
        assert!((one.is_barred(), two.is_barred(), waiters.any()) == (true, false, true));
        let alone = waiters.clone();
        let left = tokio::spawn(async move { alone.none().await });
        tokio::task::yield_now().await;
        assert!(!left.is_finished());
        end(1);
        left.await.expect("told");
        assert!(!waiters.any());
    }
}
