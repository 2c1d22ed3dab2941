//! Bounds the log lines that requests can cause, so that a flood of them does not fill the disk.

use std::sync::Mutex;
use std::time::Duration;

use tracing::info;

use crate::clock::{self, Instant};
use crate::sync::lock;

const PERIOD: Duration = Duration::from_secs(60);

/// The lines of one minute. The others are counted.
#[derive(Debug)]
pub struct LogLimit {
    /// The most lines.
    total: usize,
    /// The most lines of one kind and value.
    same: usize,
    minute: Mutex<Minute>,
}

#[derive(Debug, Default)]
struct Minute {
    started: Option<Instant>,
    logged: Vec<(&'static str, Box<[u8]>)>,
    suppressed: u64,
}

impl LogLimit {
    pub fn new(total: usize, same: usize) -> Self {
        Self { total, same, minute: Mutex::default() }
    }

    /// Returns whether to write this line, and logs how many of an earlier minute were suppressed.
    pub fn is_due(&self, kind: &'static str, value: &[u8]) -> bool {
        let now = clock::now();
        let mut minute = lock(&self.minute);
        let rest = minute.take_suppressed(now);
        minute.started.get_or_insert(now);
        let same = minute.logged.iter().filter(|(of, logged)| *of == kind && **logged == *value);
        let is_due = minute.logged.len() < self.total && same.count() < self.same;
        if is_due {
            minute.logged.push((kind, value.into()));
        } else {
            minute.suppressed = minute.suppressed.saturating_add(1);
        }
        drop(minute);
        log_suppressed(rest);
        is_due
    }

    /// Logs the number of suppressed lines once their minute is over.
    pub fn flush(&self, now: Instant) {
        let suppressed = lock(&self.minute).take_suppressed(now);
        log_suppressed(suppressed);
    }
}

impl Minute {
    fn take_suppressed(&mut self, now: Instant) -> u64 {
        let is_over =
            self.started.is_some_and(|began| now.saturating_duration_since(began) >= PERIOD);
        if is_over { std::mem::take(self).suppressed } else { 0 }
    }
}

fn log_suppressed(count: u64) {
    if count > 0 {
        info!(count, "refusal log lines suppressed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_lines_a_minute_are_written_and_the_rest_is_counted() {
        let (limit, begin) = (LogLimit::new(10, 1), clock::now());
        let logged = |kind, numbers: std::ops::Range<usize>| {
            let is_due = |n: &usize| limit.is_due(kind, format!("{n}.example").as_bytes());
            numbers.filter(is_due).count()
        };
        assert_eq!(logged("host", 0..1), 1);
        assert_eq!(logged("host", 0..1), 0, "it was logged before");
        assert_eq!(logged("origin", 0..4), 4, "another kind of value");
        assert_eq!(logged("origin", 0..4), 0, "the same value");
        assert_eq!(logged("host", 0..1_000), 5, "ten in all");
        tokio::time::advance(PERIOD - Duration::from_millis(1)).await;
        assert_eq!(logged("host", 2_000..2_100), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(lock(&limit.minute).suppressed, 1 + 4 + 995 + 100);
        assert_eq!(lock(&limit.minute).take_suppressed(begin + PERIOD), 1_100);
        assert_eq!(logged("host", 0..100), 10);
        assert!(!limit.is_due("host", b""));
    }
}
