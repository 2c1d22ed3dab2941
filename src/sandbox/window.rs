//! Counts requests against the account's rate limit, as an exact sliding log.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Instant;

/// When the requests of the last `length` arrived, at most `limit` of them.
pub(super) struct Window {
    limit: usize,
    length: Duration,
    taken: VecDeque<Instant>,
}

impl Window {
    pub(super) fn new((limit, length): (u32, Duration)) -> Self {
        Self { limit: limit as usize, length, taken: VecDeque::new() }
    }

    /// Lets a request in, or says how long until the next place is free. Guess: a refused request
    /// takes no place.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        while self.taken.front().is_some_and(|taken| now.duration_since(*taken) >= self.length) {
            self.taken.pop_front();
        }
        if self.taken.len() < self.limit {
            self.taken.push_back(now);
            return Ok(());
        }
        let oldest = self.taken.front().map_or(Duration::ZERO, |taken| now.duration_since(*taken));
        Err(self.length.saturating_sub(oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn no_stretch_of_the_windows_length_holds_more_than_the_limit() {
        let start = clock::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut window = Window::new((2, Duration::from_secs(1)));
        assert_eq!(window.admit(at(0)), Ok(()));
        assert_eq!(window.admit(at(600)), Ok(()));
        assert_eq!(window.admit(at(700)), Err(Duration::from_millis(300)));
        assert_eq!(window.admit(at(999)), Err(Duration::from_millis(1)));
        assert_eq!(window.admit(at(1000)), Ok(()), "the first has left");
        assert_eq!(window.admit(at(1599)), Err(Duration::from_millis(1)), "the second has not");
        assert_eq!(window.admit(at(1600)), Ok(()));
    }

    #[test]
    fn a_window_of_none_lets_nobody_in() {
        let mut window = Window::new((0, Duration::from_secs(5)));
        assert_eq!(window.admit(clock::now()), Err(Duration::from_secs(5)));
    }
}
