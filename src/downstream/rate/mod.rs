//! Refuses a caller who comes too often or too many times at once, before the body is read.

mod bucket;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::bucket::{Bucket, Left};
use super::route::Class;
use super::step::{Finish, Onward, Step};
use super::{Call, DownstreamConfig, refuse};
use crate::answer::Answer;
use crate::clock;
use crate::config::Limits;
use crate::problem::{OVERLOADED, Problem, RATE_LIMITED, REQUEST_TIMEOUT};
use crate::store::{Caller, Refusals, RefusedAs};
use crate::sync::lock;

/// How much more a caller may read than buy.
const ROOM_FOR_READS: u32 = 10;

/// What all callers have used up, shared by every core.
#[derive(Debug)]
pub struct Limiter {
    paid: Bucket,
    reads: Bucket,
    logins: Bucket,
    at_once: Mutex<HashMap<Caller, u32>>,
    concurrent: u32,
    requests: u32,
    period: Duration,
    refusals: Arc<Refusals>,
}

/// What a caller has left for paid calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// `limits.requests`
    pub requests: u32,
    /// `limits.seconds`
    pub period: Duration,
    pub burst: u32,
    /// Calls right now.
    pub left: u32,
    /// Until the whole burst is there again: whole seconds.
    pub reset_seconds: u64,
}

impl Limiter {
    /// A limiter with nothing used up yet, which notes in `refusals` whose paid calls were refused before
    /// their body was read.
    pub fn new(limits: &Limits, refusals: Arc<Refusals>) -> Self {
        let more =
            |n: NonZeroU32| n.saturating_mul(NonZeroU32::MIN.saturating_add(ROOM_FOR_READS - 1));
        Self {
            paid: Bucket::new(limits.requests, limits.period, limits.burst),
            reads: Bucket::new(more(limits.requests), limits.period, more(limits.burst)),
            logins: Bucket::new(limits.requests, limits.period, limits.burst),
            at_once: Mutex::default(),
            concurrent: limits.concurrent.get(),
            requests: limits.requests.get(),
            period: limits.period,
            refusals,
        }
    }

    fn note_refusal(&self, caller: &Caller) {
        self.refusals.note(RefusedAs::Caller(caller.clone()));
    }

    /// Forgets callers whose allowance is whole again, and gives their memory back.
    pub fn tidy(&self) {
        for bucket in [&self.paid, &self.reads, &self.logins] {
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

    /// One more login of this member, which has as many as paid calls.
    ///
    /// # Errors
    /// How long it has to wait.
    pub fn log_in(&self, member: &Caller) -> Result<(), Duration> {
        self.logins.take(member).map(|_left| ())
    }

    fn bucket(&self, class: Class) -> Option<&Bucket> {
        match class {
            Class::Paid => Some(&self.paid),
            Class::Read => Some(&self.reads),
            Class::Free => None,
        }
    }

    /// Counts one call, or returns why it is refused and what is left.
    fn admit(
        self: &Arc<Self>,
        caller: &Caller,
        class: Class,
    ) -> Result<Counted, Box<(Problem, Left)>> {
        let Some(bucket) = self.bucket(class) else { return Ok(Counted::default()) };
        let is_paid = class == Class::Paid;
        let left = match bucket.take(caller) {
            Ok(room) => bucket.left(room),
            Err(wait) => {
                if is_paid {
                    self.note_refusal(caller);
                }
                let Bucket { burst, one_per, .. } = bucket;
                let detail = format!("at most {burst} calls at once, then one every {one_per:?}");
                let problem = Problem::new(&RATE_LIMITED).detail(detail).retry_after(wait);
                return Err(Box::new((problem, bucket.left(0))));
            }
        };
        let place = match is_paid.then(|| self.enter(caller)) {
            None => None,
            Some(Some(place)) => Some(place),
            Some(None) => {
                self.note_refusal(caller);
                let detail = format!("at most {} calls at the same time", self.concurrent);
                let wait = Duration::from_secs(1);
                let problem = Problem::new(&RATE_LIMITED).detail(detail).retry_after(wait);
                return Err(Box::new((problem, left)));
            }
        };
        Ok(Counted { left: Some(left), place })
    }

    /// One more call of this caller at the same time, or `None` when it has enough under way.
    fn enter(self: &Arc<Self>, caller: &Caller) -> Option<Place> {
        let mut at_once = lock(&self.at_once);
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
        let mut at_once = lock(&self.limiter.at_once);
        if let Some(count) = at_once.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                at_once.remove(&self.caller);
            }
        }
    }
}

/// Whether this answers a call that was counted here.
pub(super) fn has_counted(answer: &Answer) -> bool {
    bucket::has_policy(answer)
}

/// Counts each call by its row's class.
pub fn layer<B: http_body::Body>(
    config: &DownstreamConfig,
) -> Step<impl Fn(Call<B>) -> Onward<Call<B>, Counted> + Clone + use<B>> {
    let limiter = Arc::clone(&config.limiter);
    Step(move |call: Call<B>| match limiter.admit(&call.caller, call.route.class) {
        Ok(counted) => Ok((call, counted)),
        Err(refused) => {
            let (problem, left) = *refused;
            Err(Box::new(left.finish(refuse(problem, &call))))
        }
    })
}

/// Says what is left, also where what took of it was refused, and keeps the caller's place until the
/// connection has taken all of the answer.
#[derive(Debug, Default)]
pub struct Counted {
    left: Option<Left>,
    place: Option<Place>,
}

impl Finish for Counted {
    fn finish(self, mut answer: Answer) -> Answer {
        if let Some(place) = self.place {
            if answer.body().problem().is_some_and(is_retried_unread) {
                place.limiter.note_refusal(&place.caller);
            }
            answer = answer.map(|body| body.holding(place));
        }
        match self.left {
            Some(left) => left.finish(answer),
            None => answer,
        }
    }
}

/// Whether SDKs send again what was refused so, perhaps before its body was read.
fn is_retried_unread(problem: &Problem) -> bool {
    [&REQUEST_TIMEOUT, &OVERLOADED].contains(&problem.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(concurrent: u32) -> Arc<Limiter> {
        let number = |n| NonZeroU32::new(n).unwrap();
        let limits = Limits {
            requests: number(60),
            period: Duration::from_secs(60),
            burst: number(2),
            concurrent: number(concurrent),
        };
        Arc::new(Limiter::new(&limits, Arc::new(Refusals::new(Arc::new(|| Duration::ZERO)))))
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
        let first = limiter.enter(&caller(1));
        assert!(first.is_some() && limiter.enter(&caller(1)).is_none());
        assert!(limiter.enter(&caller(2)).is_some());
        drop(first);
        assert!(limiter.enter(&caller(1)).is_some());
        assert!(limiter.at_once.lock().unwrap().is_empty());
    }
}
