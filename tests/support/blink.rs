//! Looks at a browser again and again.

use std::thread;
use std::time::Duration;

use crate::support::PATIENCE;

/// Pauses between two looks: the first, which grows by half each time, and the longest.
const BLINKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// Tries until there is something. Pauses count, and not the time of attempts: a browser that the system
/// leaves alone for long loses no attempt.
#[expect(clippy::disallowed_methods, reason = "it waits for a condition")]
pub(crate) fn patiently<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let (mut pause, longest) = BLINKS;
    let mut waited = Duration::ZERO;
    loop {
        let found = attempt();
        if found.is_some() || waited > PATIENCE {
            return found;
        }
        thread::sleep(pause);
        waited += pause;
        pause = (pause * 3 / 2).min(longest);
    }
}
