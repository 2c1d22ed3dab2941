//! Knows the UTC day and month in which a purchase counts, and when each of them ends.

use std::time::Duration;

use crate::clock::{self, Date};

/// How many days a counted day may lie ahead of the clock and still be believed: time zones, leap
/// seconds and a clock that was set back explain no more.
const MAX_DAYS_AHEAD: u64 = 2;

/// A UTC day, and the month that it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Today {
    /// Days since 1970-01-01.
    pub(super) day: u64,
    /// Months since January of the year 0.
    pub(super) month: u64,
}

impl Today {
    /// The day at a wall-clock time, but never one before the latest day that anything counted in: a
    /// clock that jumps back opens no period that was left behind. A latest day that is not
    /// [believed](last_believed_day) is left out: it was counted under a clock that was ahead.
    pub(super) fn at(wall: Duration, latest_day: Option<u64>) -> Self {
        let latest_day = latest_day.filter(|day| *day <= last_believed_day(wall));
        Self::on(Date::at(wall).days().max(latest_day.unwrap_or(0)))
    }

    fn on(day: u64) -> Self {
        let date = Date::on(day);
        Self { day, month: date.year * 12 + date.month - 1 }
    }

    /// When the next day begins.
    pub(super) fn day_ends(self) -> Duration {
        Date::on(self.day + 1).begins()
    }

    /// When the next month begins.
    pub(super) fn month_ends(self) -> Duration {
        Date::on(self.day).next_month().begins()
    }
}

/// The last day that purchases can have counted in if the clock is right at `wall`.
pub(super) fn last_believed_day(wall: Duration) -> u64 {
    Date::at(wall).days().saturating_add(MAX_DAYS_AHEAD)
}

/// Logs that purchases were counted in a day that cannot have come yet.
pub(super) fn warn_of_day_ahead(day: u64, wall: Duration) {
    let ledger_day = clock::iso8601(Date::on(day).begins());
    let clock_day = clock::iso8601(Date::at(wall).begins());
    tracing::warn!(
        %ledger_day,
        %clock_day,
        "ledger day ahead of clock ignored; budgets count in the clock's day"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_second_of_a_month_is_still_in_it() {
        let new_year = Duration::from_secs(1_735_689_600);
        let before = Today::at(new_year - Duration::from_nanos(1), None);
        let after = Today::at(new_year, None);
        assert_eq!((after.day, after.month), (before.day + 1, before.month + 1));
        assert_eq!((before.day_ends(), before.month_ends()), (new_year, new_year));
        assert_eq!(after.day_ends(), new_year + Duration::from_secs(86_400));
        assert_eq!(after.month_ends(), new_year + Duration::from_secs(31 * 86_400));
    }

    #[test]
    fn a_day_that_was_counted_in_is_never_left_backwards() {
        let wall = Duration::from_secs(1_735_689_600);
        let today = Today::at(wall, None);
        for later in [today.day + 1, today.day + 2] {
            assert_eq!(Today::at(wall, Some(later)), Today::on(later));
        }
        for later in [today.day + 3, today.day + 4_000] {
            assert_eq!(Today::at(wall, Some(later)), today, "{later}");
        }
        assert_eq!(Today::at(wall, Some(3)), Today::at(wall, None));
    }
}
