//! Remembers when callers were last refused for free, so that the retry of a refused request is not
//! taken for the retry of an earlier one that was answered.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use super::{Caller, Clock, Identity};
use crate::sync::lock;

/// How many refusals are remembered.
const MAX_REFUSALS: usize = 10_000;

/// What is known of a request that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RefusedAs {
    /// Only who sent it: its body was not read.
    Caller(Caller),
    /// The fingerprint of its caller, endpoint and payload.
    Fingerprint(Identity),
}

/// The latest refusals that cost nothing, by what is known of the request. It lives as long as the
/// process. Whatever it does not remember counts as refused when it was forgotten: a new process starts
/// as if everybody had just been refused, because requests failed while none was running.
pub struct Refusals {
    clock: Clock,
    noted: Mutex<Noted>,
}

struct Noted {
    last: HashMap<RefusedAs, Duration>,
    /// Notes in the order in which they were made; one that was renewed is in it more than once.
    order: VecDeque<(RefusedAs, Duration)>,
    forgotten_until: Duration,
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").finish_non_exhaustive()
    }
}

impl Refusals {
    /// Nothing is remembered of the time before now. `clock` is the one of the store.
    pub fn new(clock: Clock) -> Self {
        let (last, order, forgotten_until) = (HashMap::new(), VecDeque::new(), clock());
        Self { clock, noted: Mutex::new(Noted { last, order, forgotten_until }) }
    }

    pub fn note(&self, of: RefusedAs) {
        let now = (self.clock)();
        let mut noted = lock(&self.noted);
        noted.last.insert(of.clone(), now);
        noted.order.push_back((of, now));
        while noted.order.len() > MAX_REFUSALS {
            let Some((of, at)) = noted.order.pop_front() else { return };
            if noted.last.get(&of) == Some(&at) {
                noted.last.remove(&of);
                noted.forgotten_until = noted.forgotten_until.max(at);
            }
        }
    }

    /// When a request like this one, or any of its caller's, may last have been refused.
    pub fn last(&self, caller: &Caller, fingerprint: &Identity) -> Duration {
        let noted = lock(&self.noted);
        let keys = [RefusedAs::Caller(caller.clone()), RefusedAs::Fingerprint(*fingerprint)];
        let last = keys.iter().filter_map(|key| noted.last.get(key)).max();
        last.copied().unwrap_or_default().max(noted.forgotten_until)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn caller(number: u8) -> Caller {
        Caller::Address([192, 0, 2, number].into())
    }

    /// Refusals at moments that the test sets.
    struct Wound(Refusals, Arc<Mutex<Duration>>);

    impl Wound {
        fn new(now: Duration) -> Self {
            let time = Arc::new(Mutex::new(now));
            let read = Arc::clone(&time);
            Self(Refusals::new(Arc::new(move || *lock(&read))), time)
        }

        fn note(&self, of: RefusedAs, now: Duration) {
            *lock(&self.1) = now;
            self.0.note(of);
        }
    }

    #[test]
    fn refusal_counts_for_its_caller_or_for_its_fingerprint_alone() {
        let refusals = Wound::new(SECOND);
        refusals.note(RefusedAs::Caller(caller(1)), 5 * SECOND);
        refusals.note(RefusedAs::Fingerprint([2; 32]), 7 * SECOND);
        refusals.note(RefusedAs::Fingerprint([3; 32]), 3 * SECOND);
        for (number, print, last) in [(1, 1, 5), (1, 2, 7), (1, 3, 5), (2, 3, 3), (2, 1, 1)] {
            assert_eq!(
                refusals.0.last(&caller(number), &[print; 32]),
                SECOND * last,
                "{number} {print}"
            );
        }
    }

    #[test]
    fn forgotten_refusals_count_for_everybody_and_memory_is_bounded() {
        let refusals = Wound::new(Duration::ZERO);
        refusals.note(RefusedAs::Caller(caller(1)), 2 * SECOND);
        // One that is renewed again and again pushes the others out, and is not forgotten itself.
        for second in 0..MAX_REFUSALS as u32 {
            assert_eq!(refusals.0.last(&caller(2), &[2; 32]), Duration::ZERO);
            refusals.note(RefusedAs::Fingerprint([1; 32]), SECOND * (3 + second));
        }
        assert_eq!(refusals.0.last(&caller(2), &[2; 32]), 2 * SECOND);
        refusals.note(RefusedAs::Fingerprint([1; 32]), 90_000 * SECOND);
        assert_eq!(refusals.0.last(&caller(2), &[2; 32]), 2 * SECOND);
        let noted = refusals.0.noted.lock().unwrap();
        assert_eq!((noted.last.len(), noted.order.len()), (1, MAX_REFUSALS));
    }
}
