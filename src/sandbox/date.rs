//! Writes dates as the key list shows them: ISO 8601, in UTC, to the millisecond (2.1).

use std::time::Duration;

use crate::clock::Date;

/// The moment that lies `since_epoch` after the Unix epoch.
pub(super) fn iso8601(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let Date { year, month, day } = Date::at(since_epoch);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_to_the_millisecond() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00.250Z"),
            (951_868_799, "2000-02-29T23:59:59.250Z"),
            (1_763_654_400, "2025-11-20T16:00:00.250Z"),
        ] {
            assert_eq!(iso8601(Duration::new(seconds, 250_000_000)), written);
        }
    }
}
