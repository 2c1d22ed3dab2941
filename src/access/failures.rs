//! Limits failed authentications per address, to slow guessing down.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::counter_key::CounterKey;
use crate::clock::Instant;
use crate::ledger::Caller;
use crate::sync::lock;

/// Failures per address and [`PERIOD`] that are answered with a 401.
const MAX_FAILURES: u32 = 30;
const PERIOD: Duration = Duration::from_secs(60);
/// From this many counters on, new addresses share counters, which bounds memory.
const SHARED_FROM: usize = 50_000;

#[derive(Debug, Default)]
pub(super) struct FailureLimiter(Mutex<Option<Period>>);

#[derive(Debug)]
struct Period {
    ends_at: Instant,
    counts: HashMap<CounterKey, u32>,
}

impl FailureLimiter {
    /// Like [`Self::record`], without counting.
    pub(super) fn check(&self, address: &Caller, now: Instant) -> Result<(), Duration> {
        let current = lock(&self.0);
        let Some(period) = current.as_ref().filter(|period| now < period.ends_at) else {
            return Ok(());
        };
        let count = period.counts.get(&CounterKey::new(address, &period.counts, SHARED_FROM));
        let is_limited = count.is_some_and(|count| *count >= MAX_FAILURES);
        if is_limited { Err(period.ends_at - now) } else { Ok(()) }
    }

    /// Fails with the time until failures of this address are answered with a 401 again.
    pub(super) fn record(&self, address: &Caller, now: Instant) -> Result<(), Duration> {
        let mut current = lock(&self.0);
        current.take_if(|period| period.ends_at <= now);
        let period =
            current.get_or_insert_with(|| Period { ends_at: now + PERIOD, counts: HashMap::new() });
        let key = CounterKey::new(address, &period.counts, SHARED_FROM);
        let count = period.counts.entry(key).or_default();
        if *count >= MAX_FAILURES {
            return Err(period.ends_at - now);
        }
        *count += 1;
        Ok(())
    }

    /// Takes one failure of this address back.
    pub(super) fn forget(&self, address: &Caller) {
        let mut current = lock(&self.0);
        let Some(period) = current.as_mut() else { return };
        let key = CounterKey::new(address, &period.counts, SHARED_FROM);
        if let Some(count) = period.counts.get_mut(&key) {
            *count = count.saturating_sub(1);
        }
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
    async fn each_address_gets_thirty_failures_a_minute() {
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
    async fn many_addresses_are_counted_by_network_in_bounded_memory() {
        let (failures, begin) = (FailureLimiter::default(), clock::now());
        let many = u32::try_from(SHARED_FROM).unwrap();
        let of_network = |number: u32| {
            let bits = (0x2000_u128 << 112) | (u128::from(number) << 96);
            Caller::Address(std::net::Ipv6Addr::from_bits(bits).into())
        };
        for number in 0..many {
            assert_eq!(failures.record(&address(number), begin), Ok(()));
        }
        // All later addresses of one network share thirty failures.
        let late = |number: u32| address((10 << 24) | number);
        let answered = (0..1_000).filter(|n| failures.record(&late(*n), begin).is_ok()).count();
        assert_eq!(answered, 30);
        assert!(failures.check(&late(2_000), begin).is_err());
        assert_eq!(failures.check(&address(11 << 24), begin), Ok(()), "another network");
        for number in 0..2 * many {
            failures.record(&of_network(number), begin).ok();
        }
        let counted = || failures.0.lock().unwrap().as_ref().unwrap().counts.len();
        assert!((2 * SHARED_FROM..=2 * SHARED_FROM + 10).contains(&counted()), "{}", counted());
        for _ in 1..30 {
            assert_eq!(failures.record(&address(0), begin), Ok(()));
        }
        assert!(failures.record(&address(0), begin).is_err(), "it keeps its own counter");
        assert_eq!(failures.record(&address(0), begin + PERIOD), Ok(()));
        assert!(failures.0.lock().unwrap().as_ref().unwrap().counts.capacity() < 100);
    }
}
