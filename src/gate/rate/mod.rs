//! Limits the rate and the concurrency of each caller, before the body is read.

mod bucket;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use serde::Serialize;
use serde_json::json;

use self::bucket::Bucket;
pub(super) use self::bucket::RATELIMIT_POLICY;
pub use self::bucket::calibrate_clock;
use super::Call;
use super::route::Class;
use crate::clock;
use crate::config::LimitsConfig;
use crate::gate::problem::{Problem, RATE_LIMITED};
use crate::gate::response::Response;
use crate::ledger::{Caller, Digest, Store};
use crate::sync::{self, KeyedLimit};

/// The number of an attempt, from 0, as OpenAI's SDKs send it.
pub(crate) const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

fn attempt(headers: &HeaderMap) -> Option<u32> {
    headers.get(RETRY_COUNT)?.to_str().ok()?.trim().parse().ok()
}

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
    /// How many refusals of each caller are noted.
    notes: Bucket,
    ledger: Store,
}

impl Limiter {
    pub fn new(limits: &LimitsConfig, ledger: Store) -> Self {
        let more = |n: NonZeroU32| n.saturating_mul(READ_FACTOR);
        Self {
            paid: Bucket::new(limits.requests, limits.period, limits.burst),
            reads: Bucket::new(more(limits.requests), limits.period, more(limits.burst)),
            logins: Bucket::new(limits.requests, limits.period, limits.burst),
            in_flight: Arc::default(),
            uploads: Arc::default(),
            limits: *limits,
            notes: Bucket::new(more(limits.requests), limits.period, more(limits.burst)),
            ledger,
        }
    }

    /// Remembers that a purchase without a key was refused for free before its order was known. The
    /// refusal of a retry says nothing about its first attempt, which may have been served.
    pub fn note_refusal(&self, caller: &Caller, head: &Parts, refused: Refused<'_>) {
        let is_first = attempt(&head.headers).is_none_or(|attempt| attempt == 0);
        let is_keyed = head.headers.contains_key("idempotency-key");
        if is_first && !is_keyed && self.notes.take(caller).is_ok() {
            self.ledger.note_refusal(caller.name(), refused.digest(caller, head.uri.path()));
        }
    }

    /// Forgets callers whose full burst is available, and frees their memory.
    pub fn evict_idle(&self) {
        for bucket in [&self.paid, &self.reads, &self.logins, &self.notes] {
            bucket.evict_full(clock::now());
        }
    }

    pub fn status(&self, caller: &Caller) -> impl Serialize + use<> {
        let left = self.paid.remaining(caller, clock::now());
        json!({
            "requests": self.limits.requests,
            "seconds": self.limits.period.as_secs(),
            "burst": self.paid.burst,
            "left": left,
            "reset_seconds": self.paid.reset_seconds(left),
        })
    }

    /// Counts a login against the same limit as paid calls, but separately.
    pub fn take_login(&self, member: &Caller) -> Result<(), Duration> {
        self.logins.take(member).map(|_remaining| ())
    }

    /// Counts a purchase of a call of the class [`Class::Agent`], which has a slot already.
    pub fn take_purchase(&self, caller: &Caller) -> Result<(), Problem> {
        take(&self.paid, caller).map(|_remaining| ())
    }

    /// Counts a call against the limits of its class. The admission is for [`Limiter::finish`].
    pub fn admit<B>(&self, call: &Call<B>) -> (Admission, Result<(), Problem>) {
        let (caller, class) = (&call.caller, call.route.class);
        let Some(bucket) = self.bucket(class) else { return (Admission::default(), Ok(())) };
        let remaining = match take(bucket, caller) {
            Ok(remaining) => remaining,
            Err(refusal) => {
                return (Admission { taken: Some((class, 0)), slot: None }, Err(refusal));
            }
        };
        let limit = match class {
            Class::Paid | Class::Agent => {
                Some((&self.in_flight, self.limits.concurrent.get() as usize))
            }
            Class::Upload => Some((&self.uploads, MAX_UPLOADS)),
            Class::Read | Class::Free => None,
        };
        let slot = limit.and_then(|(permits, max)| permits.try_acquire(caller.clone(), max));
        let admitted = match (limit, &slot) {
            (Some((_, max)), None) => {
                let detail = format!("at most {max} concurrent calls");
                Err(rate_limited(detail, Duration::from_secs(1)))
            }
            _ => Ok(()),
        };
        (Admission { taken: Some((class, remaining)), slot }, admitted)
    }

    fn bucket(&self, class: Class) -> Option<&Bucket> {
        match class {
            Class::Paid | Class::Upload => Some(&self.paid),
            Class::Read | Class::Agent => Some(&self.reads),
            Class::Free => None,
        }
    }

    /// Adds the rate limit headers, and holds the caller's slot until the body is written.
    pub fn finish(&self, admission: Admission, mut response: Response) -> Response {
        if let Some(slot) = admission.slot {
            response = response.map(|body| body.with_guard(slot));
        }
        if let Some((class, remaining)) = admission.taken
            && let Some(bucket) = self.bucket(class)
        {
            bucket.set_headers(remaining, response.headers_mut());
        }
        response
    }
}

impl Call {
    /// Returns the number of the attempt, from 0, if the client says it.
    pub fn attempt(&self) -> Option<u32> {
        attempt(&self.head.headers)
    }

    /// Returns the digests by which the same call may have been refused before its order was known.
    pub fn refused_as(&self) -> Vec<Digest> {
        let length = self.body.len() as u64;
        let refused =
            [Refused::Payload(&self.body), Refused::Unread(Some(length)), Refused::Unread(None)];
        refused.map(|refused| refused.digest(&self.caller, self.head.uri.path())).to_vec()
    }
}

fn take(bucket: &Bucket, caller: &Caller) -> Result<u32, Problem> {
    bucket.take(caller).map_err(|wait| {
        let Bucket { burst, interval, .. } = bucket;
        rate_limited(format!("at most {burst} calls at once, then one every {interval:?}"), wait)
    })
}

fn rate_limited(detail: String, wait: Duration) -> Problem {
    Problem::new(&RATE_LIMITED).detail(detail).retry_after(wait)
}

/// The known part of a refused purchase's body.
pub enum Refused<'a> {
    Payload(&'a [u8]),
    /// Its length, if the request says it.
    Unread(Option<u64>),
}

impl Refused<'_> {
    fn digest(&self, caller: &Caller, path: &str) -> Digest {
        let (length, payload) = match *self {
            Self::Payload(payload) => (String::new(), payload),
            Self::Unread(length) => (format!("{length:?}"), &[][..]),
        };
        let mut hasher = blake3::Hasher::new();
        for part in [caller.name().as_bytes(), path.as_bytes(), length.as_bytes(), payload] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

#[derive(Debug, Default)]
pub struct Admission {
    /// The class of the call, and how many more calls the caller may make.
    taken: Option<(Class, u32)>,
    slot: Option<sync::KeyedPermit<Caller>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Session;
    use crate::access::cookie::Transport;
    use crate::gate::RequestId;
    use crate::gate::route::{DEFAULT_ROUTE, Route};

    fn limiter(concurrent: u32) -> Arc<Limiter> {
        let number = |n| NonZeroU32::new(n).unwrap();
        let limits = LimitsConfig {
            requests: number(60),
            period: Duration::from_secs(60),
            burst: number(2),
            concurrent: number(concurrent),
        };
        Arc::new(Limiter::new(&limits, Store::unusable("a test")))
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
    fn retry_count_header_numbers_the_attempts() {
        for (count, number) in
            [("0", Some(0)), (" 1 ", Some(1)), ("x", None), ("", None), ("-1", None)]
        {
            let headers = [(RETRY_COUNT, http::HeaderValue::from_static(count))];
            assert_eq!(attempt(&HeaderMap::from_iter(headers)), number, "{count:?}");
        }
        assert_eq!(attempt(&HeaderMap::new()), None);
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
