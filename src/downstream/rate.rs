//! Refuses a caller who comes too often or too many times at once, before the body is read.

use std::collections::HashMap;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, Ready, ready};
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::{Quota, RateLimiter};
use http::header::HeaderName;
use http::{HeaderValue, Request};
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tower_governor::GovernorError;
use tower_governor::governor::{GovernorConfigBuilder, SharedRateLimiter};
use tower_governor::key_extractor::KeyExtractor;

use super::after::{After, Finish};
use super::route::Class;
use super::{Call, refuse};
use crate::answer::Answer;
use crate::clock;
use crate::clock::Instant;
use crate::config::Limits;
use crate::problem::{Problem, RATE_LIMITED};
use crate::store::Caller;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");
/// How much more a caller may read than buy.
const ROOM_FOR_READS: u32 = 10;

/// What all callers have used up, shared by every core.
#[derive(Debug)]
pub struct Limiter {
    paid: Bucket,
    reads: Bucket,
    at_once: Mutex<HashMap<Caller, u32>>,
    concurrent: u32,
    requests: u32,
    period: Duration,
}

/// What a caller has left for paid calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// `limits.requests`
    pub requests: u32,
    /// `limits.seconds`
    pub period: Duration,
    /// `limits.burst`
    pub burst: u32,
    /// Calls right now.
    pub left: u32,
    /// Until the whole burst is there again: whole seconds.
    pub reset_seconds: u64,
}

#[derive(Debug)]
struct Bucket {
    limiter: SharedRateLimiter<Caller, StateInformationMiddleware>,
    policy: HeaderValue,
    burst: u32,
    one_per: Duration,
    /// What was left to callers when they came last: governor says so only to who takes some of it.
    last: Mutex<HashMap<Caller, (u32, Instant)>>,
}

impl Limiter {
    /// A limiter with nothing used up yet.
    pub fn new(limits: &Limits) -> Self {
        let more =
            |n: NonZeroU32| n.saturating_mul(NonZeroU32::MIN.saturating_add(ROOM_FOR_READS - 1));
        Self {
            paid: Bucket::new(limits.requests, limits.period, limits.burst),
            reads: Bucket::new(more(limits.requests), limits.period, more(limits.burst)),
            at_once: Mutex::default(),
            concurrent: limits.concurrent.get(),
            requests: limits.requests.get(),
            period: limits.period,
        }
    }

    /// Forgets callers whose allowance is whole again, and gives their memory back.
    pub fn tidy(&self) {
        for bucket in [&self.paid, &self.reads] {
            bucket.limiter.retain_recent();
            bucket.limiter.shrink_to_fit();
            bucket.tidy(clock::now());
        }
    }

    /// What `caller` has left for paid calls, without taking any of it.
    pub fn allowed(&self, caller: &Caller) -> Allowed {
        let left = self.paid.left(self.paid.room(caller, clock::now()));
        Allowed {
            requests: self.requests,
            period: self.period,
            burst: self.paid.burst,
            left: left.room,
            reset_seconds: left.seconds,
        }
    }

    fn bucket(&self, class: Class) -> Option<&Bucket> {
        match class {
            Class::Paid => Some(&self.paid),
            Class::Read => Some(&self.reads),
            Class::Free => None,
        }
    }

    /// One more call of this caller at the same time, or `None` when it has enough under way.
    fn enter(self: &Arc<Self>, caller: &Caller) -> Option<Place> {
        let mut at_once = self.at_once.lock().unwrap_or_else(PoisonError::into_inner);
        let count = at_once.entry(caller.clone()).or_insert(0);
        if *count >= self.concurrent {
            return None;
        }
        *count += 1;
        Some(Place { limiter: Arc::clone(self), caller: caller.clone() })
    }
}

/// A call under way; gone, it makes room for the next.
#[derive(Debug)]
struct Place {
    limiter: Arc<Limiter>,
    caller: Caller,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut at_once = self.limiter.at_once.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = at_once.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                at_once.remove(&self.caller);
            }
        }
    }
}

/// tower_governor's own layer would ask this for the key; ours has the caller already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByCaller;

impl KeyExtractor for ByCaller {
    type Key = Caller;

    fn extract<T>(&self, _request: &Request<T>) -> Result<Caller, GovernorError> {
        Err(GovernorError::UnableToExtractKey)
    }
}

impl Bucket {
    fn new(requests: NonZeroU32, period: Duration, burst: NonZeroU32) -> Self {
        let one_per = (period / requests.get()).max(Duration::from_nanos(1));
        let config = GovernorConfigBuilder::default()
            .key_extractor(ByCaller)
            .period(one_per)
            .burst_size(burst.get())
            .use_headers()
            .finish();
        let limiter = match config {
            Some(config) => Arc::clone(config.limiter()),
            // `finish` refuses zeros only, and neither number can be one; this is the same quota.
            None => Arc::new(RateLimiter::keyed(Quota::per_second(burst)).with_middleware()),
        };
        let policy = format!("\"caller\";q={requests};w={}", period.as_secs());
        let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static(""));
        Self { limiter, policy, burst: burst.get(), one_per, last: Mutex::default() }
    }

    /// Takes one call's room, if there is some; says what is left, or how long to wait.
    fn take(&self, caller: &Caller) -> Result<u32, Duration> {
        match self.limiter.check_key(caller) {
            Ok(state) => {
                let room = state.remaining_burst_capacity();
                let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
                last.insert(caller.clone(), (room, clock::now()));
                Ok(room)
            }
            Err(denied) => Err(denied.wait_time_from(DefaultClock::default().now())),
        }
    }

    /// What there is by `now`, as far as it has been seen.
    fn room(&self, caller: &Caller, now: Instant) -> u32 {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(caller).map_or(self.burst, |seen| self.grown(*seen, now))
    }

    fn grown(&self, (room, at): (u32, Instant), now: Instant) -> u32 {
        let one_per = self.one_per.as_nanos().max(1);
        let more = now.saturating_duration_since(at).as_nanos() / one_per;
        room.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(self.burst)
    }

    fn tidy(&self, now: Instant) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|_, seen| self.grown(*seen, now) < self.burst);
        last.shrink_to_fit();
    }

    fn left(&self, room: u32) -> Left {
        // Seconds until the whole burst is there again, as the draft's `t` has it.
        let missing = self.burst.saturating_sub(room);
        let until_whole = self.one_per * missing;
        Left {
            policy: self.policy.clone(),
            room,
            seconds: until_whole.as_secs() + u64::from(until_whole.subsec_nanos() > 0),
        }
    }
}

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Rate<S> {
    inner: S,
    limiter: Arc<Limiter>,
}

/// Counts each call by its row's class.
pub fn layer<S>(limiter: Arc<Limiter>) -> impl Layer<S, Service = Rate<S>> + Clone {
    layer_fn(move |inner| Rate { inner, limiter: Arc::clone(&limiter) })
}

impl<S, B> Service<Call<B>> for Rate<S>
where
    S: Service<Call<B>, Response = Answer, Error = Infallible>,
    B: http_body::Body,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<After<S::Future, Counted>, Ready<Result<Answer, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: Call<B>) -> Self::Future {
        let Some(bucket) = self.limiter.bucket(call.route.class) else {
            return Either::Left(After::new(self.inner.call(call), Counted::default()));
        };
        let left = match bucket.take(&call.caller) {
            Ok(room) => bucket.left(room),
            Err(wait) => {
                let detail = format!(
                    "at most {} calls at once, then one every {:?}",
                    bucket.burst, bucket.one_per
                );
                let problem = Problem::new(&RATE_LIMITED).detail(detail).retry_after(wait);
                let refusal = refuse(problem, &call.head.headers, &call.body);
                return Either::Right(ready(Ok(bucket.left(0).finish(refusal))));
            }
        };
        let place = match call.route.class {
            Class::Read | Class::Free => None,
            Class::Paid => match self.limiter.enter(&call.caller) {
                Some(place) => Some(place),
                None => {
                    let detail =
                        format!("at most {} calls at the same time", self.limiter.concurrent);
                    let problem = Problem::new(&RATE_LIMITED)
                        .detail(detail)
                        .retry_after(Duration::from_secs(1));
                    let refusal = refuse(problem, &call.head.headers, &call.body);
                    return Either::Right(ready(Ok(left.finish(refusal))));
                }
            },
        };
        let counted = Counted { left: Some(left), place };
        Either::Left(After::new(self.inner.call(call), counted))
    }
}

/// What is left to a caller, for the two headers (draft-ietf-httpapi-ratelimit-headers-10).
#[derive(Debug)]
struct Left {
    policy: HeaderValue,
    room: u32,
    seconds: u64,
}

impl Left {
    fn finish(self, mut answer: Answer) -> Answer {
        let left = format!("\"caller\";r={};t={}", self.room, self.seconds);
        if let Ok(left) = HeaderValue::try_from(left) {
            answer.headers_mut().insert(LEFT, left);
        }
        answer.headers_mut().insert(POLICY, self.policy);
        answer
    }
}

/// Says what is left on success, and keeps the caller's place until the answer is there, all of it.
#[derive(Debug, Default)]
pub struct Counted {
    left: Option<Left>,
    place: Option<Place>,
}

impl Finish for Counted {
    fn finish(self, mut answer: Answer) -> Answer {
        if let Some(place) = self.place {
            answer = answer.map(|body| body.holding(place));
        }
        match self.left {
            Some(left) if answer.status().is_success() => left.finish(answer),
            Some(_) | None => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(concurrent: u32) -> Arc<Limiter> {
        let number = |n| NonZeroU32::new(n).unwrap();
        Arc::new(Limiter::new(&Limits {
            requests: number(60),
            period: Duration::from_secs(60),
            burst: number(2),
            concurrent: number(concurrent),
        }))
    }

    fn caller(last: u8) -> Caller {
        Caller::Address([192, 0, 2, last].into())
    }

    #[test]
    fn each_caller_has_its_own_burst_and_reads_have_ten_times_the_room() {
        let limiter = limiter(1);
        let takes = |bucket: &Bucket, last| {
            (0..100).take_while(|_| bucket.limiter.check_key(&caller(last)).is_ok()).count()
        };
        assert_eq!(takes(&limiter.paid, 1), 2);
        assert_eq!(takes(&limiter.paid, 2), 2);
        assert_eq!(takes(&limiter.reads, 1), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_can_be_asked_for_without_taking_it() {
        let limiter = limiter(1);
        let left = |last| {
            let Allowed { left, reset_seconds, .. } = limiter.allowed(&caller(last));
            (left, reset_seconds)
        };
        assert_eq!(left(1), (2, 0));
        limiter.paid.take(&caller(1)).unwrap();
        limiter.paid.take(&caller(1)).unwrap();
        limiter.reads.take(&caller(1)).unwrap();
        for _ in 0..10 {
            assert_eq!((left(1), left(2)), ((0, 2), (2, 0)));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(left(1), (1, 1));
        limiter.tidy();
        assert_eq!(left(1), (1, 1));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(left(1), (2, 0));
        limiter.tidy();
        assert!(limiter.paid.last.lock().unwrap().is_empty());
    }

    #[test]
    fn a_place_is_free_again_when_its_call_is_gone() {
        let limiter = limiter(1);
        let first = limiter.enter(&caller(1));
        assert!(first.is_some() && limiter.enter(&caller(1)).is_none());
        assert!(limiter.enter(&caller(2)).is_some());
        drop(first);
        assert!(limiter.enter(&caller(1)).is_some());
        assert!(limiter.at_once.lock().unwrap().is_empty());
    }
}
