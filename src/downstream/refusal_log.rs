//! Logs what is refused before the limiter, in a bounded number of lines.
//!
//! Such requests need no credentials and no limit holds for them, so one line for each would let
//! anybody fill the disk.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use http::HeaderValue;
use tracing::{info, warn};

use super::shown;
use crate::clock::{self, Instant};
use crate::sync::lock;

/// Lines in a [`PERIOD`], besides one that counts the rest.
const MAX_LINES: usize = 10;
const PERIOD: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// A `Host` that is not one of ours.
    Host,
    /// A page of another origin, which sent a request of this kind.
    Origin(&'static str),
    /// A call that failed with this status before its caller was counted, such as one whose credentials
    /// cannot be looked up.
    Failed(u16),
}

impl Refused {
    /// Whether both are refused for the same kind of value.
    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// The refusals of the current minute, shared by every core.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<Minute>);

#[derive(Debug, Default)]
struct Minute {
    began: Option<Instant>,
    logged: Vec<(Refused, HeaderValue)>,
    rest: u64,
}

impl RefusalLog {
    /// Logs a value that was not logged in this minute yet, as long as there are lines left.
    pub(super) fn log(&self, refused: Refused, value: Option<&HeaderValue>) {
        if !self.is_due(refused, value, clock::now()) {
            return;
        }
        match refused {
            Refused::Host => info!(host = shown(value), "a Host that is not ours"),
            Refused::Origin(asked) => {
                let origin = shown(value);
                info!(origin, asked, "an origin that is not in access.allowed_origins");
            }
            // The span has the route.
            Refused::Failed(status) => warn!(status, "answered"),
        }
    }

    /// Logs how many refusals of a minute that is over were not logged.
    pub fn tidy(&self, now: Instant) {
        let rest = self.lock().end(now);
        log_rest(rest);
    }

    fn is_due(&self, refused: Refused, value: Option<&HeaderValue>, now: Instant) -> bool {
        let nothing = HeaderValue::from_static("");
        let mut minute = self.lock();
        let rest = minute.end(now);
        minute.began.get_or_insert(now);
        let value = value.unwrap_or(&nothing);
        let is_known =
            |logged: &(Refused, HeaderValue)| logged.0.is_like(refused) && logged.1 == value;
        let is_due = minute.logged.len() < MAX_LINES && !minute.logged.iter().any(is_known);
        if is_due {
            minute.logged.push((refused, value.clone()));
        } else {
            minute.rest = minute.rest.saturating_add(1);
        }
        drop(minute);
        log_rest(rest);
        is_due
    }

    fn lock(&self) -> MutexGuard<'_, Minute> {
        lock(&self.0)
    }
}

impl Minute {
    /// Begins anew if the minute is over. Returns how many refusals of it were not logged.
    fn end(&mut self, now: Instant) -> u64 {
        let is_over =
            self.began.is_some_and(|began| now.saturating_duration_since(began) >= PERIOD);
        if is_over { std::mem::take(self).rest } else { 0 }
    }
}

fn log_rest(count: u64) {
    if count > 0 {
        info!(count, "refusals not logged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: usize) -> HeaderValue {
        HeaderValue::try_from(format!("{number}.example")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn ten_new_values_a_minute_are_logged_and_the_rest_is_counted() {
        let (refusals, begin) = (RefusalLog::default(), clock::now());
        let logged = |refused, numbers: std::ops::Range<usize>, now| {
            let is_due = |n: &usize| refusals.is_due(refused, Some(&value(*n)), now);
            numbers.filter(is_due).count()
        };
        assert_eq!(logged(Refused::Host, 0..1, begin), 1);
        assert_eq!(logged(Refused::Host, 0..1, begin), 0, "it was logged before");
        assert_eq!(logged(Refused::Origin("a read"), 0..4, begin), 4, "another kind of value");
        assert_eq!(logged(Refused::Origin("a preflight"), 0..4, begin), 0, "the same value");
        assert_eq!(logged(Refused::Host, 0..1_000, begin), 5, "ten in all");
        let almost = begin + PERIOD - Duration::from_millis(1);
        assert_eq!(logged(Refused::Host, 2_000..2_100, almost), 0);
        assert_eq!(refusals.lock().rest, 1 + 4 + 995 + 100);
        assert_eq!(refusals.lock().end(begin + PERIOD), 1_100);
        assert_eq!(logged(Refused::Host, 0..100, begin + PERIOD), MAX_LINES);
        assert!(!refusals.is_due(Refused::Host, None, begin + PERIOD));
    }
}
