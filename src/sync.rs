//! Locks that ignore poisoning, blocking waits, maps with a fast hash, and a limit per key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A map for each request. Its hash has a random seed, as the standard one has.
pub(crate) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Locks the mutex, even if it is poisoned: each change under a lock is one step, so data is whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks this thread for a while, which must not be a runtime's.
#[expect(clippy::disallowed_methods, reason = "this is the one home of blocking waits")]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// The number of permits in use for each key.
#[derive(Debug)]
pub(crate) struct KeyedLimit<K: Clone + Eq + Hash>(Mutex<FastMap<K, usize>>);

impl<K: Clone + Eq + Hash> Default for KeyedLimit<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn try_acquire(self: &Arc<Self>, key: K, max: usize) -> Option<KeyedPermit<K>> {
        let mut counts = lock(&self.0);
        let count = counts.entry(key.clone()).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(KeyedPermit { limit: Arc::clone(self), key })
    }
}

#[derive(Debug)]
pub(crate) struct KeyedPermit<K: Clone + Eq + Hash> {
    limit: Arc<KeyedLimit<K>>,
    pub(crate) key: K,
}

impl<K: Clone + Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.limit.0);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}
