//! Bounds how often an address is told that what it showed is wrong: guessing is slow, and a log stays
//! readable.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Instant;
use crate::store::Caller;

/// Wrong credentials of one address that are answered as such in a [`PERIOD`].
const ANSWERED: u32 = 30;
const PERIOD: Duration = Duration::from_secs(60);
/// Addresses that are counted in a period. Who comes when there are as many is not: nobody finds
/// 256 bits in a minute, and the memory is bounded.
const MOST_ADDRESSES: usize = 50_000;

/// The failures of the current minute, by address.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<Minute>);

#[derive(Debug, Default)]
struct Minute {
    began: Option<Instant>,
    counts: HashMap<Caller, u32>,
}

impl Failures {
    /// Whether the next one of an address would be answered. `Err`, as of [`note`](Self::note).
    pub(super) fn look(&self, address: &Caller, now: Instant) -> Result<(), Duration> {
        let minute = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = minute.began.map(|began| began + PERIOD).filter(|end| now < *end);
        let has_enough = minute.counts.get(address).is_some_and(|count| *count >= ANSWERED);
        end.filter(|_| has_enough).map_or(Ok(()), |end| Err(end.saturating_duration_since(now)))
    }

    /// Notes one of an address (of IPv6, a /64). `Err` where there were too many: how
    /// long until the next is answered again.
    pub(super) fn note(&self, address: &Caller, now: Instant) -> Result<(), Duration> {
        let mut minute = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = minute.began.filter(|began| now.saturating_duration_since(*began) < PERIOD);
        let began = began.unwrap_or_else(|| {
            // A new map: what a crowd took is given back.
            *minute = Minute { began: Some(now), counts: HashMap::new() };
            now
        });
        let is_full = minute.counts.len() >= MOST_ADDRESSES;
        let count = match minute.counts.get_mut(address) {
            Some(count) => count,
            None if is_full => return Ok(()),
            None => minute.counts.entry(address.clone()).or_default(),
        };
        if *count >= ANSWERED {
            return Err((began + PERIOD).saturating_duration_since(now));
        }
        *count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::clock;

    fn address(number: u32) -> Caller {
        Caller::Address(Ipv4Addr::from_bits(number).into())
    }

    #[tokio::test(start_paused = true)]
    async fn thirty_a_minute_are_answered_and_each_address_is_counted_by_itself() {
        let (failures, begin) = (Failures::default(), clock::now());
        let second = |seconds| begin + Duration::from_secs(seconds);
        for _ in 0..30 {
            assert_eq!(failures.note(&address(1), begin), Ok(()));
        }
        assert_eq!(failures.look(&address(1), second(20)), Err(Duration::from_secs(40)));
        assert_eq!(failures.note(&address(1), second(20)), Err(Duration::from_secs(40)));
        assert_eq!(failures.look(&address(2), second(20)), Ok(()));
        assert_eq!(failures.note(&address(2), second(20)), Ok(()));
        assert_eq!(failures.note(&address(1), second(59)), Err(Duration::from_secs(1)));
        for _ in 0..30 {
            assert_eq!(failures.look(&address(1), second(60)), Ok(()));
            assert_eq!(failures.note(&address(1), second(60)), Ok(()));
        }
        assert!(failures.note(&address(1), second(61)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_takes_no_more_memory_than_there_is_for_it_and_gives_it_back() {
        let (failures, begin) = (Failures::default(), clock::now());
        let most = u32::try_from(MOST_ADDRESSES).unwrap();
        for number in 0..most + 1_000 {
            assert_eq!(failures.note(&address(number), begin), Ok(()));
        }
        assert_eq!(failures.0.lock().unwrap().counts.len(), MOST_ADDRESSES);
        for _ in 1..30 {
            assert_eq!(failures.note(&address(0), begin), Ok(()));
        }
        assert!(failures.note(&address(0), begin).is_err(), "who is counted stays counted");
        assert_eq!(failures.note(&address(0), begin + PERIOD), Ok(()));
        assert!(failures.0.lock().unwrap().counts.capacity() < 100);
    }
}
