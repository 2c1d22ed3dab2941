//! Knows whether anybody still waits for a purchase: until its first byte is sent, it goes with the
//! last of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Everybody who waits, or has waited, for one purchase.
#[derive(Clone, Default)]
pub struct Waiters(Arc<Mutex<Vec<Arc<AtomicBool>>>>);

impl Waiters {
    /// One more who waits, until the guard is dropped.
    pub(super) fn wait(&self) -> Waiting {
        let here = Arc::new(AtomicBool::new(true));
        self.lock().push(Arc::clone(&here));
        Waiting(here)
    }

    /// Those who wait for `other` wait for this one, too.
    pub(super) fn join(&self, other: &Self) {
        let others = other.lock().clone();
        self.lock().extend(others);
    }

    /// Whether anybody is still here.
    pub(super) fn any(&self) -> bool {
        self.lock().iter().any(|here| here.load(Ordering::Acquire))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<AtomicBool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("any", &self.any()).finish()
    }
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_waits_until_the_last_one_is_gone() {
        let (first, second) = (Waiters::default(), Waiters::default());
        let (one, two) = (first.wait(), second.wait());
        first.join(&second);
        drop(one);
        assert!(first.any());
        drop(two);
        assert!(!first.any());
    }
}
