//! Those who wait for the same, caller by caller in turns: who asks often waits behind who asks
//! rarely.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Each caller has a line of its own; the callers take turns.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Everybody in `waiting` once, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    waiting: HashMap<Arc<str>, VecDeque<u64>>,
    len: usize,
}

impl Line {
    /// `again` puts it before all others.
    pub(super) fn enter(&mut self, caller: &Arc<str>, number: u64, again: bool) {
        self.len += 1;
        let is_new = !self.waiting.contains_key(caller);
        let own = self.waiting.entry(Arc::clone(caller)).or_default();
        match again {
            true => own.push_front(number),
            false => own.push_back(number),
        }
        match (is_new, again) {
            (true, true) => self.turns.push_front(Arc::clone(caller)),
            (true, false) => self.turns.push_back(Arc::clone(caller)),
            (false, _) => {}
        }
    }

    /// `false` where it does not wait here.
    pub(super) fn leave(&mut self, caller: &Arc<str>, number: u64) -> bool {
        let Some(own) = self.waiting.get_mut(caller) else { return false };
        let Some(place) = own.iter().position(|one| *one == number) else { return false };
        own.remove(place);
        self.len -= 1;
        if own.is_empty() {
            self.waiting.remove(caller);
            self.turns.retain(|one| one != caller);
        }
        true
    }

    /// Whose turn it is; its caller goes to the end.
    pub(super) fn next(&mut self) -> Option<u64> {
        let caller = self.turns.pop_front()?;
        let own = self.waiting.get_mut(&caller)?;
        let number = own.pop_front()?;
        self.len -= 1;
        match own.is_empty() {
            true => drop(self.waiting.remove(&caller)),
            false => self.turns.push_back(caller),
        }
        Some(number)
    }

    /// How many go before one more of this caller.
    pub(super) fn ahead_of(&self, caller: &str) -> usize {
        let own = self.waiting.get(caller).map_or(0, VecDeque::len);
        self.waiting.values().map(|theirs| theirs.len().min(own + 1)).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(entries: &[(&str, u64)]) -> Line {
        let mut line = Line::default();
        for (caller, number) in entries {
            line.enter(&Arc::from(*caller), *number, false);
        }
        line
    }

    #[test]
    fn callers_take_turns() {
        let mut line = line(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]);
        assert_eq!((line.ahead_of("a"), line.ahead_of("b"), line.ahead_of("d")), (6, 6, 3));
        let order: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert!(line.is_empty() && line.turns.is_empty() && line.waiting.is_empty());
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let mut line = line(&[("a", 1), ("b", 2), ("b", 3), ("c", 4)]);
        assert!(line.leave(&"a".into(), 1) && line.leave(&"b".into(), 2));
        assert!(!line.leave(&"a".into(), 1) && !line.leave(&"b".into(), 9));
        assert_eq!(
            (line.len(), line.next(), line.next(), line.next()),
            (2, Some(3), Some(4), None)
        );
    }

    #[test]
    fn who_comes_again_is_the_first() {
        let mut line = line(&[("a", 1), ("b", 2)]);
        line.enter(&"c".into(), 3, true);
        line.enter(&"b".into(), 4, true);
        let order: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!(order, [3, 1, 4, 2]);
    }
}
