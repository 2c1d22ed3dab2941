//! Limits the rate and the concurrency of each caller, before the body is read.

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

/// Concurrent uploads per caller.
const MAX_UPLOADS: usize = 2;

const READ_FACTOR: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);

/// The limits of all callers, shared by all cores.
#[derive(Debug)]
pub struct Limiter {
    paid: Bucket,
    reads: Bucket,
    logins: Bucket,
    in_flight: Arc<KeyedLimit<Caller>>,
    uploads: Arc<KeyedLimit<Caller>>,
    limits: LimitsConfig,
    refusals: Arc<RecentRefusals>,
}

#[derive(Debug, Serialize)]
pub struct LimitStatus {
    requests: u32,
    seconds: u64,
    burst: u32,
    left: u32,
    /// Seconds until the full burst is available.
    reset_seconds: u64,
}

impl Limiter {
    pub fn new(limits: &LimitsConfig, refusals: Arc<RecentRefusals>) -> Self {
        let more = |n: NonZeroU32| n.saturating_mul(READ_FACTOR);
        Self {
            paid: Bucket::new(limits.requests, limits.period, limits.burst),
            reads: Bucket::new(more(limits.requests), limits.period, more(limits.burst)),
            logins: Bucket::new(limits.requests, limits.period, limits.burst),
            in_flight: Arc::default(),
            uploads: Arc::default(),
            limits: *limits,
            refusals,
        }
    }

    fn note_refusal(&self, caller: &Caller) {
        self.refusals.record(RefusalKey::Caller(caller.clone()));
    }

    /// Forgets callers whose full burst is available, and frees their memory.
    pub fn evict_idle(&self) {
        for bucket in [&self.paid, &self.reads, &self.logins] {
            bucket.evict_full(clock::now());
        }
    }

    pub fn status(&self, caller: &Caller) -> LimitStatus {
        let headers = self.paid.headers(self.paid.remaining(caller, clock::now()));
        LimitStatus {
            requests: self.limits.requests.get(),
            seconds: self.limits.period.as_secs(),
            burst: self.paid.burst,
            left: headers.remaining,
            reset_seconds: headers.reset_seconds,
        }
    }

    /// Counts a login against the same limit as paid calls, but separately.
    pub fn take_login(&self, member: &Caller) -> Result<(), Duration> {
        self.logins.take(member).map(|_remaining| ())
    }

    /// Counts a call against the limits of its class. The admission is for [`Limiter::finish`].
    pub fn admit<B>(&self, call: &Call<B>) -> (Admission, Result<(), Problem>) {
        let (caller, is_paid) = (&call.caller, call.route.class == Class::Paid);
        let bucket = match call.route.class {
            Class::Paid | Class::Upload => &self.paid,
            Class::Read => &self.reads,
            Class::Free => return (Admission::default(), Ok(())),
        };
        let refuse = |headers, detail: String, wait| {
            if is_paid {
                self.note_refusal(caller);
            }
            let problem = Problem::new(&RATE_LIMITED).detail(detail).retry_after(wait);
            (Admission { headers: Some(headers), ..Admission::default() }, Err(problem))
        };
        let headers = match bucket.take(caller) {
            Ok(remaining) => bucket.headers(remaining),
            Err(wait) => {
                let Bucket { burst, interval, .. } = bucket;
                let detail = format!("at most {burst} calls at once, then one every {interval:?}");
                return refuse(bucket.headers(0), detail, wait);
            }
        };
        let (permits, max) = match call.route.class {
            Class::Paid => (&self.in_flight, self.limits.concurrent.get() as usize),
            Class::Upload => (&self.uploads, MAX_UPLOADS),
            Class::Read | Class::Free => {
                return (Admission { headers: Some(headers), ..Admission::default() }, Ok(()));
            }
        };
        let Some(permit) = permits.try_acquire(caller.clone(), max) else {
            let detail = format!("at most {max} concurrent calls");
            return refuse(headers, detail, Duration::from_secs(1));
        };
        let (slot, upload) = if is_paid { (Some(permit), None) } else { (None, Some(permit)) };
        (Admission { headers: Some(headers), slot, _upload: upload }, Ok(()))
    }

    /// Adds the rate limit headers, and holds the caller's slot until the body is written.
    pub fn finish(&self, admission: Admission, mut response: Response) -> Response {
        if let Some(slot) = admission.slot {
            // SDKs retry these, possibly before the body was read.
            let retried = [&REQUEST_TIMEOUT, &OVERLOADED];
            let problem = response.extensions().get::<Problem>();
            if problem.is_some_and(|problem| retried.contains(&problem.kind())) {
                self.note_refusal(&slot.key);
            }
            response = response.map(|body| body.with_guard(slot));
        }
        match admission.headers {
            Some(headers) => headers.apply(response),
            None => response,
        }
    }
}

#[derive(Debug, Default)]
pub struct Admission {
    headers: Option<RateLimitHeaders>,
    slot: Option<sync::KeyedPermit<Caller>>,
    _upload: Option<sync::KeyedPermit<Caller>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Session;
    use crate::access::cookie::Transport;
    use crate::downstream::RequestId;
    use crate::downstream::route::{DEFAULT_ROUTE, Route};

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
    fn callers_have_separate_bursts_and_reads_ten_times_as_many() {
        let limiter = limiter(1);
        let takes = |bucket: &Bucket, last| {
            (0..100).take_while(|_| bucket.take(&caller(last)).is_ok()).count()
        };
        assert_eq!(takes(&limiter.paid, 1), 2);
        assert_eq!(takes(&limiter.paid, 2), 2);
        assert_eq!(takes(&limiter.reads, 1), 20);
    }

    static UPLOAD: Route = Route { class: Class::Upload, ..DEFAULT_ROUTE };

    fn upload(last: u8) -> Call<()> {
        Call {
            id: RequestId::new(),
            caller: caller(last),
            session: Session::default(),
            transport: Transport::Plain,
            route: &UPLOAD,
            head: http::Request::new(()).into_parts().0,
            body: (),
        }
    }

    #[test]
    fn two_uploads_per_caller_run_at_once_beside_purchases() {
        let limiter = limiter(1);
        let purchase = limiter.in_flight.try_acquire(caller(1), 1);
        let uploads = [limiter.admit(&upload(1)), limiter.admit(&upload(1))];
        assert!(uploads.iter().all(|(_, admitted)| admitted.is_ok()));
        assert!(limiter.uploads.try_acquire(caller(1), MAX_UPLOADS).is_none());
        assert!(limiter.admit(&upload(2)).1.is_ok());
        let refused = limiter.admit(&upload(1)).1.map_err(|problem| problem.kind().code);
        assert_eq!(refused, Err("rate_limited"));
        for (admission, _) in uploads {
            limiter.finish(admission, Response::default());
        }
        assert!(limiter.uploads.is_empty() && purchase.is_some());
    }

    #[test]
    fn slot_is_released_when_its_call_ends() {
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
