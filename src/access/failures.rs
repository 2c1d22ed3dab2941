//! Bounds how often an address is told that what it showed is wrong: guessing is slow, and a log stays
//! readable.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Instant;
use crate::store::Caller;
use crate::sync::lock;

/// Wrong credentials of one address that are answered as such in a [`PERIOD`].
const MAX_FAILURES: u32 = 30;
const PERIOD: Duration = Duration::from_secs(60);
/// From so many counts on, addresses that come anew in this period share one by network, so that
/// neither the memory nor what is answered grows with the number of addresses.
const GROUPED_FROM: usize = 50_000;
/// From so many on, they share by wider networks, of which there are some sixty-six thousand at most.
const GROUPED_WIDER_FROM: usize = 2 * GROUPED_FROM;
const GROUP_PREFIX: (u32, u32) = (16, 32);
const WIDE_GROUP_PREFIX: (u32, u32) = (8, 16);

#[derive(Debug, Default)]
pub(super) struct FailureLimiter(Mutex<Period>);

#[derive(Debug, Default)]
struct Period {
    started_at: Option<Instant>,
    counts: HashMap<CountKey, u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CountKey {
    Caller(Caller),
    Network(IpAddr, (u32, u32)),
}

impl Period {
    /// An address that is counted keeps a count of its own, however many come after it.
    fn key_for(&self, address: &Caller) -> CountKey {
        let own = CountKey::Caller(address.clone());
        if self.counts.len() < GROUPED_FROM || self.counts.contains_key(&own) {
            return own;
        }
        let bits =
            if self.counts.len() < GROUPED_WIDER_FROM { GROUP_PREFIX } else { WIDE_GROUP_PREFIX };
        address.network(bits).map_or(own, |network| CountKey::Network(network, bits))
    }
}

impl FailureLimiter {
    /// Whether the next one of an address would be answered. `Err`, as of [`record`](Self::note).
    pub(super) fn check(&self, address: &Caller, now: Instant) -> Result<(), Duration> {
        let minute = lock(&self.0);
        let end = minute.started_at.map(|began| began + PERIOD).filter(|end| now < *end);
        let count = minute.counts.get(&minute.key_for(address));
        let has_enough = count.is_some_and(|count| *count >= MAX_FAILURES);
        end.filter(|_| has_enough).map_or(Ok(()), |end| Err(end.saturating_duration_since(now)))
    }

    /// `Err` is how long until the next failure of this address (of IPv6, its /64) is answered again.
    pub(super) fn record(&self, address: &Caller, now: Instant) -> Result<(), Duration> {
        let mut minute = lock(&self.0);
        let began =
            minute.started_at.filter(|began| now.saturating_duration_since(*began) < PERIOD);
        let began = began.unwrap_or_else(|| {
            // A new map: what a crowd took is given back.
            *minute = Period { started_at: Some(now), counts: HashMap::new() };
            now
        });
        let share = minute.key_for(address);
        let count = minute.counts.entry(share).or_default();
        if *count >= MAX_FAILURES {
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
        let (failures, begin) = (FailureLimiter::default(), clock::now());
        let second = |seconds| begin + Duration::from_secs(seconds);
        for _ in 0..30 {
            assert_eq!(failures.record(&address(1), begin), Ok(()));
        }
        assert_eq!(failures.check(&address(1), second(20)), Err(Duration::from_secs(40)));
        assert_eq!(failures.record(&address(1), second(20)), Err(Duration::from_secs(40)));
        assert_eq!(failures.check(&address(2), second(20)), Ok(()));
        assert_eq!(failures.record(&address(2), second(20)), Ok(()));
        assert_eq!(failures.record(&address(1), second(59)), Err(Duration::from_secs(1)));
        for _ in 0..30 {
            assert_eq!(failures.check(&address(1), second(60)), Ok(()));
            assert_eq!(failures.record(&address(1), second(60)), Ok(()));
        }
        assert!(failures.record(&address(1), second(61)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_counted_by_network_in_bounded_memory_and_gives_it_back() {
        let (failures, begin) = (FailureLimiter::default(), clock::now());
        let crowded = u32::try_from(GROUPED_FROM).unwrap();
        let of_network = |number: u32| {
            let bits = (0x2000_u128 << 112) | (u128::from(number) << 96);
            Caller::Address(std::net::Ipv6Addr::from_bits(bits).into())
        };
        for number in 0..crowded {
            assert_eq!(failures.record(&address(number), begin), Ok(()));
        }
        // All who come late from one network have thirty together, as each had before.
        let late = |number: u32| address((10 << 24) | number);
        let answered = (0..1_000).filter(|n| failures.record(&late(*n), begin).is_ok()).count();
        assert_eq!(answered, 30);
        assert!(failures.check(&late(2_000), begin).is_err());
        assert_eq!(failures.check(&address(11 << 24), begin), Ok(()), "another network");
        for number in 0..2 * crowded {
            failures.record(&of_network(number), begin).ok();
        }
        let counted = || failures.0.lock().unwrap().counts.len();
        assert!(
            (GROUPED_WIDER_FROM..=GROUPED_WIDER_FROM + 10).contains(&counted()),
            "{}",
            counted()
        );
        for _ in 1..30 {
            assert_eq!(failures.record(&address(0), begin), Ok(()));
        }
        assert!(failures.record(&address(0), begin).is_err(), "who is counted stays counted");
        assert_eq!(failures.record(&address(0), begin + PERIOD), Ok(()));
        assert!(failures.0.lock().unwrap().counts.capacity() < 100);
    }
}
