//! Refuses a caller who comes too often or too many times at once, before the body is read.

mod bucket;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

pub(super) use self::bucket::RATELIMIT_POLICY;
use self::bucket::{Bucket, RateLimitHeaders};
use super::Call;
use super::route::Class;
use crate::clock;
use crate::config::LimitsConfig;
use crate::problem::{OVERLOADED, Problem, RATE_LIMITED, REQUEST_TIMEOUT};
use crate::response::Response;
use crate::store::{Caller, RecentRefusals, RefusalKey};
use crate::sync::{self, KeyedLimit};

const READ_FACTOR: u32 = 10;

/// What all callers have used up, shared by every core.
#[derive(Debug)]
pub struct Limiter {
    paid: Bucket,
    reads: Bucket,
    logins: Bucket,
    in_flight: Arc<KeyedLimit<Caller>>,
    limits: LimitsConfig,
    refusals: Arc<RecentRefusals>,
}

#[derive(Debug, Serialize)]
pub struct LimitStatus {
    requests: u32,
    seconds: u64,
    burst: u32,
    left: u32,
    /// Until the whole burst is there again.
    reset_seconds: u64,
}

impl Limiter {
    pub fn new(limits: &LimitsConfig, refusals: Arc<RecentRefusals>) -> Self {
        let more =
            |n: NonZeroU32| n.saturating_mul(NonZeroU32::MIN.saturating_add(READ_FACTOR - 1));
        Self {
            paid: Bucket::new(limits.requests, limits.period, limits.burst),
            reads: Bucket::new(more(limits.requests), limits.period, more(limits.burst)),
            logins: Bucket::new(limits.requests, limits.period, limits.burst),
            in_flight: Arc::default(),
            limits: *limits,
            refusals,
        }
    }

    fn note_refusal(&self, caller: &Caller) {
        self.refusals.record(RefusalKey::Caller(caller.clone()));
    }

    /// Forgets callers whose allowance is whole again, and gives their memory back.
    pub fn evict_idle(&self) {
        for bucket in [&self.paid, &self.reads, &self.logins] {
            bucket.evict_full(clock::now());
        }
    }

    pub fn status(&self, caller: &Caller) -> LimitStatus {
        let left = self.paid.headers(self.paid.remaining(caller, clock::now()));
        LimitStatus {
            requests: self.limits.requests.get(),
            seconds: self.limits.period.as_secs(),
            burst: self.paid.burst,
            left: left.remaining,
            reset_seconds: left.reset_seconds,
        }
    }

    /// One more login of this member, which has as many as paid calls.
    pub fn take_login(&self, member: &Caller) -> Result<(), Duration> {
        self.logins.take(member).map(|_left| ())
    }

    fn bucket(&self, class: Class) -> Option<&Bucket> {
        match class {
            Class::Paid => Some(&self.paid),
            Class::Read => Some(&self.reads),
            Class::Free => None,
        }
    }

    /// Counts one call by its row's class, or says why it is refused; with what its answer shows in either case.
    pub fn admit<B>(&self, call: &Call<B>) -> (Admission, Result<(), Problem>) {
        let Some(bucket) = self.bucket(call.route.class) else {
            return (Admission::default(), Ok(()));
        };
        let (caller, is_paid) = (&call.caller, call.route.class == Class::Paid);
        let refused = |left, detail: String, wait| {
            if is_paid {
                self.note_refusal(caller);
            }
            let problem = Problem::new(&RATE_LIMITED).detail(detail).retry_after(wait);
            (Admission { headers: Some(left), slot: None }, Err(problem))
        };
        let left = match bucket.take(caller) {
            Ok(room) => bucket.headers(room),
            Err(wait) => {
                let Bucket { burst, interval: one_per, .. } = bucket;
                let detail = format!("at most {burst} calls at once, then one every {one_per:?}");
                return refused(bucket.headers(0), detail, wait);
            }
        };
        let most = self.limits.concurrent.get() as usize;
        let place = match is_paid.then(|| self.in_flight.try_acquire(caller.clone(), most)) {
            None => None,
            Some(Some(place)) => Some(place),
            Some(None) => {
                let detail = format!("at most {} calls at the same time", self.limits.concurrent);
                return refused(left, detail, Duration::from_secs(1));
            }
        };
        (Admission { headers: Some(left), slot: place }, Ok(()))
    }

    /// Says what is left, also where what took of it was refused, and keeps the caller's place until the
    /// connection has taken all of the answer.
    pub fn finish(&self, counted: Admission, mut answer: Response) -> Response {
        if let Some(place) = counted.slot {
            // SDKs send again what is refused so, perhaps before its body was read.
            let again = [&REQUEST_TIMEOUT, &OVERLOADED];
            if answer.body().problem().is_some_and(|problem| again.contains(&problem.kind())) {
                self.note_refusal(&place.key);
            }
            answer = answer.map(|body| body.with_guard(place));
        }
        match counted.headers {
            Some(left) => left.apply(answer),
            None => answer,
        }
    }
}

#[derive(Debug, Default)]
pub struct Admission {
    headers: Option<RateLimitHeaders>,
    slot: Option<sync::KeyedPermit<Caller>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(concurrent: u32) -> Arc<Limiter> {
        let number = |n| NonZeroU32::new(n).unwrap();
        let limits = LimitsConfig {
            requests: number(60),
            period: Duration::from_secs(60),
            burst: number(2),
            concurrent: number(concurrent),
        };
        Arc::new(Limiter::new(&limits, Arc::new(RecentRefusals::new(Arc::new(|| Duration::ZERO)))))
    }

    fn caller(last: u8) -> Caller {
        Caller::Address([192, 0, 2, last].into())
    }

    #[test]
    fn each_caller_has_its_own_burst_and_reads_have_ten_times_the_room() {
        let limiter = limiter(1);
        let takes = |bucket: &Bucket, last| {
            (0..100).take_while(|_| bucket.take(&caller(last)).is_ok()).count()
        };
        assert_eq!(takes(&limiter.paid, 1), 2);
        assert_eq!(takes(&limiter.paid, 2), 2);
        assert_eq!(takes(&limiter.reads, 1), 20);
    }

    #[test]
    fn a_place_is_free_again_when_its_call_is_gone() {
        let limiter = limiter(1);
        let enter = |last| limiter.in_flight.try_acquire(caller(last), 1);
        let first = enter(1);
        assert!(first.is_some() && enter(1).is_none());
        assert!(enter(2).is_some());
        drop(first);
        assert!(enter(1).is_some());
        assert!(limiter.in_flight.is_empty());
    }
}
