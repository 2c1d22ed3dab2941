//! Bounds how many event streams are open: each caller's, and all together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::problem::{OVERLOADED, Problem, RATE_LIMITED};
use crate::store::Caller;

/// Streams of one caller: a page needs one for each tab.
const OF_A_CALLER: usize = 8;
/// Streams of all callers.
const OF_ALL: usize = 1_000;
const COME_BACK: Duration = Duration::from_secs(30);

/// Who has a stream open.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Arc<Mutex<HashMap<Caller, usize>>>);

impl Seats {
    /// One more stream, until the seat is dropped.
    pub(super) fn take(&self, caller: &Caller) -> Result<Seat, Problem> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused =
            |kind, detail: String| Err(Problem::new(kind).detail(detail).retry_after(COME_BACK));
        if taken.values().sum::<usize>() >= OF_ALL {
            return refused(&OVERLOADED, format!("at most {OF_ALL} event streams at a time"));
        }
        let own = taken.entry(caller.clone()).or_default();
        if *own >= OF_A_CALLER {
            return refused(
                &RATE_LIMITED,
                format!("at most {OF_A_CALLER} event streams of a caller"),
            );
        }
        *own += 1;
        Ok(Seat { seats: self.clone(), caller: caller.clone() })
    }
}

/// A stream's seat.
#[derive(Debug)]
pub struct Seat {
    seats: Seats,
    caller: Caller,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn caller(number: u32) -> Caller {
        Caller::Address(std::net::Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn a_caller_has_eight_streams_all_have_a_thousand_and_a_dropped_one_is_free() {
        let seats = Seats::default();
        let mut taken: Vec<_> = (0..8).map(|_| seats.take(&caller(0)).unwrap()).collect();
        assert_eq!(seats.take(&caller(0)).unwrap_err().kind().code, "rate_limited");
        taken.extend(
            (1..125)
                .flat_map(|one| (0..8).map(move |_| one))
                .map(|one| seats.take(&caller(one)).unwrap()),
        );
        assert_eq!(seats.take(&caller(500)).unwrap_err().kind().code, "overloaded");
        taken.pop();
        taken.push(seats.take(&caller(500)).unwrap());
        taken.clear();
        assert!(seats.0.lock().unwrap().is_empty());
    }
}
