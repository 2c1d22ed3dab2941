//! Knows the UTC day and month in which a purchase counts, and when each of them ends.

use std::time::Duration;

use crate::clock::Date;

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
    /// clock that jumps back opens no period that was left behind.
    pub(super) fn at(wall: Duration, latest_day: Option<u64>) -> Self {
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
        let later = Today::at(wall, None).day + 40;
        assert_eq!(Today::at(wall, Some(later)), Today::on(later));
        assert_eq!(Today::at(wall, Some(3)), Today::at(wall, None));
    }
}
