//! Writes dates as the key list shows them: ISO 8601, in UTC, to the millisecond (2.1).

use std::time::Duration;

const DAY: u64 = 86_400;
/// Days in four centuries, after which the calendar repeats.
const ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: u64 = 719_468;

/// The moment that lies `since_epoch` after the Unix epoch.
pub(super) fn iso8601(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil(seconds / DAY);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day. Years are counted from March, so that the leap day comes last.
fn civil(days_since_epoch: u64) -> (u64, u64, u64) {
    let days = days_since_epoch + EPOCH;
    let day_of_era = days % ERA;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + days / ERA * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days_and_year_ends() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00.250Z"),
            (951_782_400, "2000-02-29T00:00:00.250Z"),
            (951_868_799, "2000-02-29T23:59:59.250Z"),
            (1_709_251_200, "2024-03-01T00:00:00.250Z"),
            (1_735_689_599, "2024-12-31T23:59:59.250Z"),
            (1_763_654_400, "2025-11-20T16:00:00.250Z"),
            (4_107_542_400, "2100-03-01T00:00:00.250Z"),
        ] {
            assert_eq!(iso8601(Duration::new(seconds, 250_000_000)), written);
        }
    }
}
