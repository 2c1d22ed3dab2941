//! Bounds what callers hold open: each caller's event streams and videos, and those of all together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::problem::{OVERLOADED, Problem, RATE_LIMITED};
use crate::store::Caller;

/// How many there are at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    what: &'static str,
    of_a_caller: usize,
    of_all: usize,
    come_back: Duration,
}

/// A page needs one for each tab.
pub(super) const STREAMS: Bounds = Bounds {
    what: "event streams",
    of_a_caller: 8,
    of_all: 1_000,
    come_back: Duration::from_secs(30),
};

/// Each has a connection of its own on both sides. A browser opens six at a time, or, behind a front-end that
/// speaks HTTP/2, as many as there are clips in view.
pub(super) const VIDEOS: Bounds = Bounds {
    what: "videos on their way",
    of_a_caller: 16,
    of_all: 64,
    come_back: Duration::from_secs(10),
};

/// Who has one open.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    bounds: Bounds,
    taken: Arc<Mutex<HashMap<Caller, usize>>>,
}

impl Seats {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    /// One more, until the seat is dropped.
    pub(super) fn take(&self, caller: &Caller) -> Result<Seat, Problem> {
        let Bounds { what, of_a_caller, of_all, come_back } = self.bounds;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let refused =
            |kind, detail: String| Err(Problem::new(kind).detail(detail).retry_after(come_back));
        // One who has enough is told so, however many there are in all.
        if taken.get(caller).is_some_and(|own| *own >= of_a_caller) {
            return refused(&RATE_LIMITED, format!("at most {of_a_caller} {what} of a caller"));
        }
        if taken.values().sum::<usize>() >= of_all {
            return refused(&OVERLOADED, format!("at most {of_all} {what} at a time"));
        }
        *taken.entry(caller.clone()).or_default() += 1;
        Ok(Seat { seats: self.clone(), caller: caller.clone() })
    }
}

/// A caller's seat.
#[derive(Debug)]
pub struct Seat {
    seats: Seats,
    caller: Caller,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(number: usize) -> Caller {
        let number = u32::try_from(number).unwrap();
        Caller::Address(std::net::Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn a_caller_has_so_many_all_have_so_many_and_a_dropped_one_is_free() {
        for (bounds, own, all) in [(STREAMS, 8, 1_000), (VIDEOS, 16, 64)] {
            let seats = Seats::new(bounds);
            let mut taken: Vec<_> = (0..own).map(|_| seats.take(&caller(0)).unwrap()).collect();
            assert_eq!(seats.take(&caller(0)).unwrap_err().kind().code, "rate_limited");
            taken.extend((own..all).map(|number| seats.take(&caller(number / own)).unwrap()));
            assert_eq!(seats.take(&caller(all)).unwrap_err().kind().code, "overloaded");
            assert_eq!(seats.take(&caller(0)).unwrap_err().kind().code, "rate_limited");
            taken.pop();
            taken.push(seats.take(&caller(all)).unwrap());
            taken.clear();
            assert!(seats.taken.lock().unwrap().is_empty());
        }
    }
}
