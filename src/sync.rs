//! Locks that ignore poisoning, blocking waits, maps with a fast hash, and a limit per key.

use std::collections::{HashMap, VecDeque};
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

/// How many notes each caller has, and how many callers have any.
const MAX_NOTES: usize = 256;
const MAX_NOTERS: usize = 1_000;

/// The latest notes about requests: so many for each caller. With too many callers, the one whose last
/// note is the oldest is dropped.
#[derive(Debug)]
pub(crate) struct Notes<K, N, V> {
    notes: FastMap<N, V>,
    by_caller: FastMap<K, VecDeque<N>>,
    /// In the order of their last notes.
    callers: VecDeque<K>,
}

impl<K, N, V> Default for Notes<K, N, V> {
    fn default() -> Self {
        Self { notes: FastMap::default(), by_caller: FastMap::default(), callers: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, N: Copy + Eq + Hash, V> Notes<K, N, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    pub(crate) fn get(&self, of: &N) -> Option<&V> {
        self.notes.get(of)
    }

    pub(crate) fn insert(&mut self, caller: &K, of: N, note: V) {
        self.callers.retain(|known| known != caller);
        self.callers.push_back(caller.clone());
        let own = self.by_caller.entry(caller.clone()).or_default();
        if self.notes.insert(of, note).is_none() {
            own.push_back(of);
        }
        if own.len() > MAX_NOTES
            && let Some(oldest) = own.pop_front()
        {
            self.notes.remove(&oldest);
        }
        if self.callers.len() > MAX_NOTERS {
            let dropped = self.callers.pop_front().and_then(|first| self.by_caller.remove(&first));
            for of in dropped.into_iter().flatten() {
                self.notes.remove(&of);
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_a_caller_push_out_its_own_oldest_only() {
        let mut notes = Notes::default();
        notes.insert(&"ann", 0, "ann's");
        for of in 1..=MAX_NOTES {
            notes.insert(&"bob", of, "first");
            notes.insert(&"bob", of, "second");
        }
        assert_eq!((notes.get(&0), notes.get(&1)), (Some(&"ann's"), Some(&"second")));
        notes.insert(&"bob", MAX_NOTES + 1, "more");
        assert_eq!(
            (notes.get(&0), notes.get(&1), notes.get(&2)),
            (Some(&"ann's"), None, Some(&"second"))
        );
        assert_eq!(notes.notes.len(), MAX_NOTES + 1);
    }

    #[test]
    fn callers_with_notes_are_bounded() {
        let mut notes = Notes::default();
        for caller in 0..MAX_NOTERS {
            notes.insert(&caller, caller, ());
        }
        notes.insert(&0, MAX_NOTERS, ());
        notes.insert(&MAX_NOTERS, MAX_NOTERS + 1, ());
        assert_eq!((notes.get(&0), notes.get(&1), notes.get(&2)), (Some(&()), None, Some(&())));
        let sizes = [notes.notes.len() - 1, notes.by_caller.len(), notes.callers.len()];
        assert_eq!(sizes, [MAX_NOTERS; 3]);
        // An anonymous key may come from any number of addresses.
        for caller in 0..3 * MAX_NOTERS {
            notes.insert(&caller, usize::MAX, ());
        }
        assert_eq!((notes.by_caller.len(), notes.callers.len()), (MAX_NOTERS, MAX_NOTERS));
    }
}
