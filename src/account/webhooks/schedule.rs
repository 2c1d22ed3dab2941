//! When an event is tried again.

use std::time::Duration;

/// The waits after the first failures. The last one repeats.
const WAITS: [u64; 8] = [5, 30, 120, 600, 1_800, 7_200, 21_600, 43_200];
/// No attempt is made after this age.
const MAX_AGE: Duration = Duration::from_secs(3 * 86_400);

/// Returns the wait until the next attempt after `failures`, or `None` if there is none.
pub(super) fn next_wait(id: &str, failures: usize, age: Duration) -> Option<Duration> {
    let seconds = WAITS[failures.saturating_sub(1).min(WAITS.len() - 1)];
    let wait = Duration::from_millis(seconds * (1_000 - 200 + jitter(id, failures)));
    (age + wait <= MAX_AGE).then_some(wait)
}

/// Returns a number from 0 to 400, which spreads the attempts of many events.
fn jitter(id: &str, failures: usize) -> u64 {
    let hash = blake3::hash(format!("{id} {failures}").as_bytes());
    hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from(u16::from_le_bytes(*bytes)) % 401)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_seconds_to_half_a_day_for_three_days() {
        let (mut age, mut waits) = (Duration::ZERO, Vec::new());
        while let Some(wait) = next_wait("evt_1", waits.len() + 1, age) {
            age += wait;
            waits.push(wait);
        }
        let near = |wait: Duration, seconds: u64| {
            let range =
                Duration::from_secs(seconds) * 8 / 10..=Duration::from_secs(seconds) * 12 / 10;
            assert!(range.contains(&wait), "{wait:?} is not about {seconds} s");
        };
        for (index, wait) in waits.iter().enumerate() {
            near(*wait, WAITS[index.min(WAITS.len() - 1)]);
        }
        assert!(waits.len() > WAITS.len(), "{waits:?}");
        assert!(age <= MAX_AGE && age > MAX_AGE - Duration::from_secs(54_000), "{age:?}");
    }

    #[test]
    fn events_are_not_tried_again_at_the_same_moment() {
        let waits: Vec<_> =
            (0..50).filter_map(|n| next_wait(&format!("evt_{n}"), 1, Duration::ZERO)).collect();
        let different: std::collections::HashSet<_> = waits.iter().collect();
        assert!(different.len() > 25, "{waits:?}");
    }
}
