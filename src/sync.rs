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

/// The amounts in use, for each key and in all.
#[derive(Debug)]
pub(crate) struct KeyedLimit<K: Clone + Eq + Hash>(Mutex<Amounts<K>>);

#[derive(Debug)]
struct Amounts<K> {
    by_key: FastMap<K, usize>,
    total: usize,
}

/// The most that may be in use of a [`KeyedLimit`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) each: usize,
    pub(crate) total: usize,
}

impl<K: Clone + Eq + Hash> Default for KeyedLimit<K> {
    fn default() -> Self {
        Self(Mutex::new(Amounts { by_key: FastMap::default(), total: 0 }))
    }
}

impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn try_acquire(self: &Arc<Self>, key: K, max: usize) -> Option<KeyedPermit<K>> {
        let mut permit = self.permit(key);
        permit.try_grow(1, Bounds { each: max, total: usize::MAX }).then_some(permit)
    }

    /// Returns a permit for nothing yet.
    pub(crate) fn permit(self: &Arc<Self>, key: K) -> KeyedPermit<K> {
        KeyedPermit { limit: Arc::clone(self), key, amount: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct KeyedPermit<K: Clone + Eq + Hash> {
    limit: Arc<KeyedLimit<K>>,
    pub(crate) key: K,
    amount: usize,
}

impl<K: Clone + Eq + Hash> KeyedPermit<K> {
    /// Returns whether the bounds leave so much more. If not, the permit stays as it is.
    pub(crate) fn try_grow(&mut self, more: usize, bounds: Bounds) -> bool {
        let mut amounts = lock(&self.limit.0);
        let grown = |used: usize, max| used.checked_add(more).filter(|sum| *sum <= max);
        let own = amounts.by_key.get(&self.key).copied().unwrap_or_default();
        let (own, total) = (grown(own, bounds.each), grown(amounts.total, bounds.total));
        let (Some(own), Some(total)) = (own, total) else { return false };
        amounts.by_key.insert(self.key.clone(), own);
        amounts.total = total;
        self.amount += more;
        true
    }
}

impl<K: Clone + Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        let mut amounts = lock(&self.limit.0);
        amounts.total -= self.amount;
        if let Some(own) = amounts.by_key.get_mut(&self.key) {
            *own -= self.amount;
            if *own == 0 {
                amounts.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn is_empty(&self) -> bool {
        self.total() == 0 && lock(&self.0).by_key.is_empty()
    }

    pub(crate) fn total(&self) -> usize {
        lock(&self.0).total
    }
}
