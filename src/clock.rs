//! The only user of the system clocks, so that tests can set the time.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use crate::gateway::contract::decimal;
use crate::sync::lock;

/// Time services correct less than this without a step.
const MIN_STEP_SECONDS: i64 = 10;

/// Monotonic time, which tokio's paused clock also stops.
pub type Instant = tokio::time::Instant;

pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time since the system booted, including the time that it was suspended.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME);
    now.or_else(|_| clock_gettime(ClockId::CLOCK_MONOTONIC)).map(Duration::from).unwrap_or_default()
}

/// Returns a time that advances with [`now`], also when that is paused, for a simulation.
pub fn simulated_since_boot() -> Duration {
    static FIRST: LazyLock<Instant> = LazyLock::new(now);
    // The paused clock of another runtime may be behind that of the first caller.
    (now() + Duration::from_secs(DAY)).saturating_duration_since(*FIRST)
}

thread_local! {
    /// The time when this thread's wall clock was set first and last, and its values then.
    static SET: Cell<Option<[(Instant, Duration); 2]>> = const { Cell::new(None) };
}

/// Returns the time since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "this is the one home of the system clock")]
pub fn wall() -> Duration {
    match SET.get() {
        Some([_, (since, wall)]) => wall.saturating_add(now().saturating_duration_since(since)),
        None => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
    }
}

/// Returns a wall-clock time of now without the steps that the clock has made in this process, so that the
/// result never goes back and never jumps. A step is a whole number of seconds.
pub fn without_steps(wall_time: Duration) -> Duration {
    let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
    let step = match SET.get() {
        Some([first, last]) => {
            let passed = last.0.saturating_duration_since(first.0);
            nanos(last.1) - nanos(first.1) - nanos(passed)
        }
        None => {
            let (first, last) = (*FIRST, readings());
            let step = (last.0 - first.0) - (last.1 - first.1);
            (step + SECOND / 2).div_euclid(SECOND) * SECOND
        }
    };
    let steady = u64::try_from(nanos(wall_time) - step).unwrap_or_default();
    Duration::from_nanos(steady)
}

/// Returns when this process began to count steps; `None` if this thread's clock is that of a test. What
/// [`without_steps`] returned to an earlier process may differ by the steps that it had counted.
pub fn steps_counted_since() -> Option<Duration> {
    let nanos = u64::try_from(FIRST.0).unwrap_or_default();
    SET.get().is_none().then_some(Duration::from_nanos(nanos))
}

/// The first [`readings`] of this process.
static FIRST: LazyLock<(i128, i128)> = LazyLock::new(readings);
/// Nanoseconds.
const SECOND: i128 = 1_000_000_000;
/// Two clocks that are read within this time are read at once.
const AT_ONCE: i128 = SECOND / 10;

/// Reads the wall clock and the time since boot at once, in nanoseconds.
fn readings() -> (i128, i128) {
    let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or_default();
    loop {
        let (before, wall, after) = (since_boot(), wall(), since_boot());
        // The process may have stood still in between.
        if nanos(after.saturating_sub(before)) < AT_ONCE {
            return (nanos(wall), nanos(after));
        }
    }
}

/// Notices that the system clock was set, or stood still, by comparing it with monotonic time.
#[derive(Debug)]
pub struct StepDetector(Mutex<(Instant, Duration)>);

impl Default for StepDetector {
    fn default() -> Self {
        Self(Mutex::new((now(), wall())))
    }
}

impl StepDetector {
    /// Returns by how many seconds the clock was set forward, or back, since the last call. Small
    /// corrections are ignored.
    pub fn take_step(&self) -> Option<i64> {
        let mut last = lock(&self.0);
        let (then, before) = std::mem::replace(&mut *last, (now(), wall()));
        let expected = before.saturating_add(last.0.saturating_duration_since(then));
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let step = seconds(last.1) - seconds(expected);
        (step.abs() >= MIN_STEP_SECONDS).then_some(step)
    }
}

pub fn ceil_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// Sets this thread's wall clock for a test; it then advances with [`now`]. `None` resets it.
pub fn set_wall(wall: Option<Duration>) {
    let set = wall.map(|wall| (now(), wall));
    SET.set(set.map(|last| [SET.get().map_or(last, |[first, _]| first), last]));
}

/// A UTC date since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    pub year: u64,
    pub month: u64,
    pub day: u64,
}

const DAY: u64 = 86_400;
/// Days in four centuries, after which the calendar repeats.
const ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: u64 = 719_468;

/// Returns the current UTC day.
pub fn today() -> Date {
    Date::at(wall())
}

impl Date {
    pub fn at(wall: Duration) -> Self {
        Self::from_days(wall.as_secs() / DAY)
    }

    /// Returns the last day that has begun before `wall`.
    pub fn before(wall: Duration) -> Self {
        Self::at(wall.saturating_sub(Duration::from_nanos(1)))
    }

    /// Internally, years start in March, so that the leap day is the last day.
    pub fn from_days(days_since_epoch: u64) -> Self {
        let days = days_since_epoch + EPOCH;
        let day_of_era = days % ERA;
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + days / ERA * 400 + u64::from(month <= 2);
        Self { year, month, day }
    }

    pub fn days(self) -> u64 {
        let march_year = self.year.saturating_sub(u64::from(self.month <= 2));
        let year_of_era = march_year % 400;
        let march_month = (self.month + 9) % 12;
        let day_of_year = (153 * march_month + 2) / 5 + self.day.saturating_sub(1);
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (march_year / 400 * ERA + day_of_era).saturating_sub(EPOCH)
    }

    pub fn start(self) -> Duration {
        Duration::from_secs(self.days().saturating_mul(DAY))
    }

    pub fn next_month(self) -> Self {
        match self.month {
            12 => Self { year: self.year + 1, month: 1, day: 1 },
            month => Self { month: month + 1, day: 1, ..self },
        }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a date, such as 2026-11-23")]
pub struct ParseDateError;

impl FromStr for Date {
    type Err = ParseDateError;

    fn from_str(text: &str) -> Result<Self, ParseDateError> {
        if text.len() != "2026-11-23".len() {
            return Err(ParseDateError);
        }
        let mut parts = text.split('-').map(|part| part.parse().map_err(|_| ParseDateError));
        let mut next = || parts.next().ok_or(ParseDateError)?;
        let (year, month, day) = (next()?, next()?, next()?);
        // The calendar turns a date that does not exist into another one.
        let date = Self::from_days(Self { year, month, day }.days());
        if date.to_string() == text { Ok(date) } else { Err(ParseDateError) }
    }
}

/// Formats a time as ISO 8601, in UTC with milliseconds.
pub fn iso8601(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let Date { year, month, day } = Date::at(since_epoch);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_epoch.subsec_millis().into();
    let mut text = String::with_capacity("2026-11-23T12:34:56.789Z".len());
    let parts = [
        (year, 4, '-'),
        (month, 2, '-'),
        (day, 2, 'T'),
        (hour, 2, ':'),
        (minute, 2, ':'),
        (second, 2, '.'),
        (millis, 3, 'Z'),
    ];
    for (number, width, end) in parts {
        // Writing to a string cannot fail.
        decimal::write(&mut text, number, width).ok();
        text.push(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_at_leap_days_and_year_ends() {
        for (seconds, year, month, day) in [
            (0, 1970, 1, 1),
            (951_782_400, 2000, 2, 29),
            (951_868_799, 2000, 2, 29),
            (1_709_251_200, 2024, 3, 1),
            (1_735_689_599, 2024, 12, 31),
            (1_763_654_400, 2025, 11, 20),
            (4_107_542_400, 2100, 3, 1),
        ] {
            assert_eq!(Date::at(Duration::from_secs(seconds)), Date { year, month, day });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn set_wall_affects_only_this_thread_and_follows_paused_time() {
        let set = Duration::from_secs(951_782_400);
        set_wall(Some(set));
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(wall(), set + Duration::from_secs(90));
        set_wall(Some(set - Duration::from_secs(5)));
        assert_eq!(wall(), set - Duration::from_secs(5));
        assert_eq!(without_steps(wall()), set + Duration::from_secs(90));
        let elsewhere = std::thread::spawn(wall).join().unwrap();
        assert!(elsewhere > Duration::from_secs(1_700_000_000), "{elsewhere:?}");
        set_wall(None);
        assert!(wall() >= elsewhere);
        assert_eq!(without_steps(set), set, "the system's clock has made no step");
    }

    #[tokio::test(start_paused = true)]
    async fn step_of_the_clock_is_noticed_once() {
        let start = Duration::from_secs(951_782_400);
        set_wall(Some(start));
        let detector = StepDetector::default();
        let minute = Duration::from_secs(60);
        for (set, step) in [
            (None, None),
            (Some(start + minute * 60), Some(3_480)),
            (None, None),
            (Some(start), Some(-3_720)),
            (Some(start + minute + Duration::from_secs(5)), None),
        ] {
            tokio::time::advance(minute).await;
            if set.is_some() {
                set_wall(set);
            }
            assert_eq!(detector.take_step(), step, "{set:?}");
        }
        set_wall(None);
    }

    #[test]
    fn next_month_starts_on_its_first_day() {
        for (seconds, next) in [
            (951_782_400, Date { year: 2000, month: 3, day: 1 }),
            (1_735_689_599, Date { year: 2025, month: 1, day: 1 }),
        ] {
            assert_eq!(Date::at(Duration::from_secs(seconds)).next_month(), next);
        }
    }

    proptest! {
        #[test]
        fn dates_round_trip(days in 0_u64..4_000_000) {
            prop_assert_eq!(Date::from_days(days).days(), days);
            prop_assert_eq!(Date::at(Date::from_days(days).start()), Date::from_days(days));
            prop_assert!(Date::from_days(days) < Date::from_days(days + 1));
        }
    }

    #[test]
    fn iso8601_has_milliseconds() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00.250Z"),
            (951_868_799, "2000-02-29T23:59:59.250Z"),
            (1_763_654_400, "2025-11-20T16:00:00.250Z"),
        ] {
            assert_eq!(iso8601(Duration::new(seconds, 250_000_000)), written);
        }
    }
}
