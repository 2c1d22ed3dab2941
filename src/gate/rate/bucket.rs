//! Token buckets for callers, in bounded memory: beyond a number of buckets, new callers share one
//! per network.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::{Quota, RateLimiter};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request};
use tower_governor::GovernorError;
use tower_governor::governor::{GovernorConfigBuilder, SharedRateLimiter};
use tower_governor::key_extractor::KeyExtractor;

use crate::access::counter_key::CounterKey;
use crate::clock::{self, Instant};
use crate::ledger::Caller;
use crate::sync::{FastMap, lock};

pub(in crate::gate) const RATELIMIT_POLICY: HeaderName =
    HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// From this many buckets on (about 20 MB), new callers share buckets.
const SHARED_FROM: usize = 100_000;

type KeyedLimiter = SharedRateLimiter<CounterKey, StateInformationMiddleware>;

#[derive(Debug)]
pub(super) struct Bucket {
    /// Made at its first use, so that no start waits for its clock.
    limiter: OnceLock<KeyedLimiter>,
    policy: HeaderValue,
    pub(super) burst: NonZeroU32,
    pub(super) interval: Duration,
    /// The tokens left after each bucket's last use, which governor reports only then.
    last_seen: Mutex<FastMap<CounterKey, (u32, Instant)>>,
}

/// Unused: the key comes from the call, not from a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoKeyExtractor;

impl KeyExtractor for NoKeyExtractor {
    type Key = CounterKey;

    fn extract<T>(&self, _request: &Request<T>) -> Result<CounterKey, GovernorError> {
        Err(GovernorError::UnableToExtractKey)
    }
}

/// Calibrates the clock that all limiters share, which keeps the thread busy for 10 to 200 ms.
/// Otherwise, the first request waits for it.
pub fn calibrate_clock() {
    DefaultClock::default();
}

impl Bucket {
    pub(super) fn new(requests: NonZeroU32, period: Duration, burst: NonZeroU32) -> Self {
        let interval = (period / requests.get()).max(Duration::from_nanos(1));
        let policy = format!("\"caller\";q={requests};w={}", period.as_secs());
        let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static(""));
        Self { limiter: OnceLock::new(), policy, burst, interval, last_seen: Mutex::default() }
    }

    fn limiter(&self) -> &KeyedLimiter {
        self.limiter.get_or_init(|| {
            let config = GovernorConfigBuilder::default()
                .key_extractor(NoKeyExtractor)
                .period(self.interval)
                .burst_size(self.burst.get())
                .use_headers()
                .finish();
            match config {
                Some(config) => Arc::clone(config.limiter()),
                // Unreachable: `finish` rejects only zeros.
                None => {
                    Arc::new(RateLimiter::keyed(Quota::per_second(self.burst)).with_middleware())
                }
            }
        })
    }

    /// Takes one request. Returns what is left, or how long to wait.
    pub(super) fn take(&self, caller: &Caller) -> Result<u32, Duration> {
        let mut last_seen = lock(&self.last_seen);
        let key = CounterKey::new(caller, &last_seen, SHARED_FROM);
        match self.limiter().check_key(&key) {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                last_seen.insert(key, (remaining, clock::now()));
                Ok(remaining)
            }
            // A new clock would ask the processor for its features, which takes 40 µs in a guest.
            Err(denied) => Err(denied.wait_time_from(self.limiter().clock().now())),
        }
    }

    pub(super) fn remaining(&self, caller: &Caller, now: Instant) -> u32 {
        let last_seen = lock(&self.last_seen);
        let key = CounterKey::new(caller, &last_seen, SHARED_FROM);
        last_seen.get(&key).map_or(self.burst.get(), |seen| self.refilled(*seen, now))
    }

    pub(super) fn evict_full(&self, now: Instant) {
        if let Some(limiter) = self.limiter.get() {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
        let mut last_seen = lock(&self.last_seen);
        last_seen.retain(|_, seen| self.refilled(*seen, now) < self.burst.get());
        last_seen.shrink_to_fit();
    }

    fn refilled(&self, (remaining, at): (u32, Instant), now: Instant) -> u32 {
        let more = now.saturating_duration_since(at).as_nanos() / self.interval.as_nanos().max(1);
        remaining.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(self.burst.get())
    }

    /// Returns the seconds until the full burst is available.
    pub(super) fn reset_seconds(&self, remaining: u32) -> u64 {
        clock::ceil_seconds(self.interval * self.burst.get().saturating_sub(remaining))
    }

    /// Sets `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).
    pub(super) fn set_headers(&self, remaining: u32, headers: &mut HeaderMap) {
        // Formatted by the standard library, they take as long as the rest of the limiter.
        let (mut left, mut reset) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (left, reset) = (left.format(remaining), reset.format(self.reset_seconds(remaining)));
        let text = ["\"caller\";r=", left, ";t=", reset].concat();
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(RATELIMIT, value);
        }
        headers.insert(RATELIMIT_POLICY, self.policy.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn bucket() -> Bucket {
        let number = |n| NonZeroU32::new(n).unwrap();
        Bucket::new(number(1), HOUR, number(2))
    }

    /// The `number`th network of `bits` bits that a caller can come from.
    fn of_network(number: u32, bits: u32) -> Caller {
        let bits = u128::from(number) << (128 - bits);
        Caller::Address(Ipv6Addr::from_bits((0x2000 << 112) | bits).into())
    }

    fn subject(number: u32) -> Caller {
        Caller::Subject(number.to_string().into())
    }

    fn remembered(bucket: &Bucket) -> usize {
        lock(&bucket.last_seen).len().max(bucket.limiter().len())
    }

    #[test]
    fn memory_is_bounded_for_any_number_of_callers() {
        let many = u32::try_from(SHARED_FROM).unwrap();
        let of_one_provider = bucket();
        for number in 0..many + 1_000 {
            of_one_provider.take(&of_network(number, 64)).ok();
        }
        // All later callers share one burst of two, which is used up.
        assert_eq!(remembered(&of_one_provider), SHARED_FROM + 1);
        assert!(of_one_provider.take(&of_network(2 * many, 64)).is_err());
        let from_everywhere = bucket();
        for number in 0..2 * many + 1_000 {
            from_everywhere.take(&of_network(number, 32)).ok();
        }
        assert_eq!(remembered(&from_everywhere), 2 * SHARED_FROM + 1);
        for number in 0..2_000 {
            from_everywhere.take(&subject(number)).ok();
        }
        let max = 2 * SHARED_FROM + 1 + 1_024;
        assert!((2 * SHARED_FROM + 2..=max).contains(&remembered(&from_everywhere)));
    }

    #[tokio::test(start_paused = true)]
    async fn known_callers_and_other_networks_are_served_while_others_share() {
        let bucket = bucket();
        let known = of_network(7, 64);
        for number in 0..=u32::try_from(SHARED_FROM).unwrap() + 5 {
            bucket.take(&of_network(number, 64)).ok();
        }
        assert!(bucket.take(&of_network(200_000, 64)).is_err(), "it shares a bucket");
        assert_eq!(bucket.remaining(&of_network(200_000, 64), clock::now()), 0);
        assert_eq!(bucket.take(&known), Ok(0), "it had two and took one");
        assert_eq!(bucket.take(&Caller::Address([192, 0, 2, 1].into())), Ok(1));
        assert_eq!(bucket.take(&Caller::Address([192, 0, 3, 1].into())), Ok(0), "one IPv4 /16");
        assert_eq!(bucket.take(&Caller::Address([192, 1, 2, 1].into())), Ok(1));
        assert_eq!(bucket.take(&Caller::Member("ada".into())), Ok(1));
        assert_eq!(bucket.take(&Caller::Member("bob".into())), Ok(1));
        bucket.evict_full(clock::now() + 3 * HOUR);
        assert!(lock(&bucket.last_seen).is_empty());
        assert_eq!(bucket.remaining(&of_network(200_000, 64), clock::now()), 2, "its own");
    }

    #[tokio::test(start_paused = true)]
    async fn remaining_requests_can_be_read_without_taking_one() {
        let number = |n| NonZeroU32::new(n).unwrap();
        let bucket = Bucket::new(number(60), Duration::from_secs(60), number(2));
        let caller = |last: u8| Caller::Address([192, 0, 2, last].into());
        let left = |last| {
            let left = bucket.remaining(&caller(last), clock::now());
            (left, bucket.reset_seconds(left))
        };
        assert_eq!(left(1), (2, 0));
        bucket.take(&caller(1)).unwrap();
        bucket.take(&caller(1)).unwrap();
        for _ in 0..10 {
            assert_eq!((left(1), left(2)), ((0, 2), (2, 0)));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(left(1), (1, 1));
        bucket.evict_full(clock::now());
        assert_eq!(left(1), (1, 1));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(left(1), (2, 0));
        bucket.evict_full(clock::now());
        assert!(lock(&bucket.last_seen).is_empty());
    }
}
