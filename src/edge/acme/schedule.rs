//! The schedule of renewals and retries. All times are since the Unix epoch.

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// Stays below the rate limits of public authorities.
pub(super) const MAX_ORDERS: usize = 5;
/// The longest single wait, so that a clock step or a suspended machine delays a renewal little.
pub(super) const MAX_WAIT: Duration = HOUR;

/// Returns the time to renew a certificate without renewal information: after two thirds of its life,
/// or up to a thirtieth of it earlier, so that servers with equal certificates do not order at once.
pub(super) fn due_of_life(starts: Duration, expires: Duration, salt: &blake3::Hash) -> Duration {
    let life = expires.saturating_sub(starts);
    let latest = starts + life / 3 * 2;
    latest.saturating_sub(fraction_of(life / 30, salt))
}

/// Returns a time in the window that the authority suggests.
pub(super) fn due_in_window(start: Duration, end: Duration, salt: &blake3::Hash) -> Duration {
    start + fraction_of(end.saturating_sub(start), salt)
}

/// Returns a pseudo-random part of this length, always the same for one certificate.
fn fraction_of(length: Duration, salt: &blake3::Hash) -> Duration {
    let [a, b, ..] = *salt.as_bytes();
    length / 0x1_0000 * u32::from(u16::from_be_bytes([a, b]))
}

/// Returns the wait after this many failures: 1 minute, 10 minutes, 1 hour, then 6 hours.
pub(super) fn backoff(failures: u32) -> Duration {
    match failures {
        0 | 1 => MINUTE,
        2 => 10 * MINUTE,
        3 => HOUR,
        _ => 6 * HOUR,
    }
}

/// Returns the wait until one more order stays within [`MAX_ORDERS`] a day.
pub(super) fn order_wait(placed: &[Duration], now: Duration) -> Duration {
    let mut recent: Vec<_> = placed.iter().filter(|at| now.saturating_sub(**at) < DAY).collect();
    recent.sort();
    // The oldest one that has to be a day old by then.
    let blocking = recent.len().checked_sub(MAX_ORDERS).and_then(|place| recent.get(place));
    blocking.map_or(Duration::ZERO, |at| (**at + DAY).saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    #[test]
    fn renewal_is_due_before_the_last_third() {
        let salts = (0..100_u32).map(|salt| blake3::hash(&salt.to_be_bytes()));
        let due: Vec<_> = salts.map(|salt| due_of_life(NOW, NOW + 90 * DAY, &salt)).collect();
        let (first, last) = (NOW + 57 * DAY, NOW + 60 * DAY);
        assert!(due.iter().all(|due| (first..=last).contains(due)), "{due:?}");
        assert!(due.iter().any(|other| *other != due[0]), "servers spread");
    }

    #[test]
    fn renewal_is_due_within_the_window_of_the_authority() {
        for salt in 0..100_u32 {
            let salt = blake3::hash(&salt.to_be_bytes());
            let due = due_in_window(NOW, NOW + 2 * DAY, &salt);
            assert!((NOW..NOW + 2 * DAY).contains(&due), "{due:?}");
        }
        assert_eq!(due_in_window(NOW, NOW - DAY, &blake3::hash(b"")), NOW);
    }

    #[test]
    fn sixth_order_of_a_day_waits() {
        let placed = |ages: &[u64]| -> Vec<_> {
            ages.iter()
                .map(|hours| NOW.saturating_sub(Duration::from_secs(hours * 3_600)))
                .collect()
        };
        for (ages, hours) in [
            (&[][..], 0),
            (&[1, 2, 3, 4][..], 0),
            (&[1, 2, 3, 4, 30][..], 0),
            (&[1, 2, 3, 4, 23][..], 1),
            (&[23, 4, 3, 2, 1][..], 1),
            (&[0, 0, 0, 0, 0][..], 24),
            (&[1, 2, 3, 4, 5, 23][..], 19),
        ] {
            assert_eq!(
                order_wait(&placed(ages), NOW),
                Duration::from_secs(hours * 3_600),
                "{ages:?}"
            );
        }
    }

    #[test]
    fn waits_grow_to_six_hours() {
        let minutes: Vec<_> = (1..7).map(|failures| backoff(failures).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 10, 60, 360, 360, 360]);
    }
}
