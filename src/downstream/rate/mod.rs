//! Refuses a caller who comes too often or too many times at once, before the body is read.

mod bucket;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::bucket::{Bucket, Left};
use super::Call;
use super::route::Class;
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
    pub requests: u32,
    pub period: Duration,
    pub burst: u32,
    /// Calls right now.
    pub left: u32,
    /// Until the whole burst is there again: whole seconds.
    pub reset_seconds: u64,
}

impl Limiter {
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
        self.refusals.note(RefusedAs::Caller(caller.clone()), clock::wall());
    }

    /// Forgets callers whose allowance is whole again, and gives their memory back.
    pub fn tidy(&self) {
        for bucket in [&self.paid, &self.reads, &self.logins] {
            bucket.tidy(clock::now());
        }
    }

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

    /// Counts one call by its row's class, or says why it is refused; with what its answer shows in either case.
    pub fn count<B>(self: &Arc<Self>, call: &Call<B>) -> (Counted, Result<(), Problem>) {
        let Some(bucket) = self.bucket(call.route.class) else {
            return (Counted::default(), Ok(()));
        };
        let (caller, is_paid) = (&call.caller, call.route.class == Class::Paid);
        let refused = |left, detail: String, wait| {
            if is_paid {
                self.note_refusal(caller);
            }
            let problem = Problem::new(&RATE_LIMITED).detail(detail).retry_after(wait);
            (Counted { left: Some(left), place: None }, Err(problem))
        };
        let left = match bucket.take(caller) {
            Ok(room) => bucket.left(room),
            Err(wait) => {
                let Bucket { burst, one_per, .. } = bucket;
                let detail = format!("at most {burst} calls at once, then one every {one_per:?}");
                return refused(bucket.left(0), detail, wait);
            }
        };
        let place = match is_paid.then(|| self.enter(caller)) {
            None => None,
            Some(Some(place)) => Some(place),
            Some(None) => {
                let detail = format!("at most {} calls at the same time", self.concurrent);
                return refused(left, detail, Duration::from_secs(1));
            }
        };
        (Counted { left: Some(left), place }, Ok(()))
    }

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

pub(super) fn has_counted(answer: &Answer) -> bool {
    bucket::has_policy(answer)
}

/// Says what is left, also where what took of it was refused, and keeps the caller's place until the
/// connection has taken all of the answer.
#[derive(Debug, Default)]
pub struct Counted {
    left: Option<Left>,
    place: Option<Place>,
}

impl Counted {
    pub fn show(self, mut answer: Answer) -> Answer {
        if let Some(place) = self.place {
            if answer.body().problem().is_some_and(is_retried_unread) {
                place.limiter.note_refusal(&place.caller);
            }
            answer = answer.map(|body| body.holding(place));
        }
        match self.left {
            Some(left) => left.show(answer),
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
        Arc::new(Limiter::new(&limits, Arc::new(Refusals::new(Duration::ZERO))))
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
