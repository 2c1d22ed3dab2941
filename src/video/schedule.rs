//! Decides when a job is polled next. The time is passed in.

use std::time::Duration;

use crate::clock::Instant;

const FIRST_POLL: Duration = Duration::from_secs(1);
const DEFAULT_JOB_DURATION: Duration = Duration::from_secs(60);
const WATCHED_GAP: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// The wait after a failed poll; it doubles.
const FIRST_BACKOFF: Duration = Duration::from_secs(2);
const MAX_WATCHED_BACKOFF: Duration = Duration::from_secs(30);
const MAX_GAP: Duration = Duration::from_secs(300);
const MAX_GAP_OF_OLD_JOBS: Duration = Duration::from_secs(6 * 3_600);

#[derive(Clone, Debug)]
pub(super) struct PollSchedule {
    usual_duration: Duration,
    started: Instant,
    first: Duration,
    age: Duration,
    last: Option<Instant>,
    failures: u32,
}

impl PollSchedule {
    /// `age` is how old the job is.
    pub(super) fn new(age: Duration, now: Instant) -> Self {
        Self {
            usual_duration: DEFAULT_JOB_DURATION,
            started: now,
            first: FIRST_POLL,
            age,
            last: None,
            failures: 0,
        }
    }

    /// `times` are the durations of earlier jobs of the model. They matter after the first poll.
    pub(super) fn with_durations(mut self, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        self.usual_duration = times.get(times.len() / 2).copied().unwrap_or(DEFAULT_JOB_DURATION);
        self
    }

    pub(super) fn delayed(mut self, by: Duration) -> Self {
        self.first += by;
        self
    }

    /// Returns when to poll next. A watched job is never polled later than an unwatched one.
    pub(super) fn next_poll(&self, is_watched: bool) -> Instant {
        match self.last {
            None if is_watched => self.started,
            None => self.started + self.first,
            Some(last) => {
                let own = self.unwatched_gap(self.age + last.duration_since(self.started));
                let watched = (self.usual_duration / 12).clamp(WATCHED_GAP.0, WATCHED_GAP.1);
                let gap = if is_watched { own.min(watched) } else { own };
                last + gap.max(self.backoff(is_watched))
            }
        }
    }

    pub(super) fn answered(&mut self, now: Instant) {
        self.last = Some(now);
        self.failures = 0;
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.last = Some(now);
        self.failures = self.failures.saturating_add(1);
    }

    /// Polls rarely at first, often around the usual duration, then ever more rarely.
    fn unwatched_gap(&self, age: Duration) -> Duration {
        let soon = self.usual_duration * 3 / 4;
        if age < soon {
            (soon - age).clamp(Duration::from_secs(5), Duration::from_secs(60))
        } else if age < self.usual_duration * 3 / 2 {
            (self.usual_duration / 6).clamp(Duration::from_secs(5), Duration::from_secs(30))
        } else {
            // A job whose final state is not recognised is polled for ever.
            (age / 4).min(MAX_GAP.max(age / 12)).clamp(Duration::from_secs(10), MAX_GAP_OF_OLD_JOBS)
        }
    }

    fn backoff(&self, is_watched: bool) -> Duration {
        let longest = if is_watched { MAX_WATCHED_BACKOFF } else { MAX_GAP };
        match self.failures {
            0 => Duration::ZERO,
            more => FIRST_BACKOFF.saturating_mul(1 << (more - 1).min(16)).min(longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn seconds(list: &[u64]) -> Vec<Duration> {
        list.iter().map(|seconds| Duration::from_secs(*seconds)).collect()
    }

    /// The gaps between the polls of the first two hours.
    fn gaps(mut pace: PollSchedule, is_watched: bool, brings: bool) -> Vec<Duration> {
        let (start, mut now) = (pace.started, pace.started);
        let mut gaps = Vec::new();
        while now < start + 7_200 * SECOND {
            let due = pace.next_poll(is_watched).max(now);
            gaps.push(due - now);
            now = due;
            if brings { pace.answered(now) } else { pace.failed(now) }
        }
        gaps
    }

    #[tokio::test(start_paused = true)]
    async fn watched_job_is_polled_at_once_and_every_five_seconds_at_least() {
        for times in [vec![], seconds(&[1]), seconds(&[3_000])] {
            let gaps = gaps(
                PollSchedule::new(Duration::ZERO, clock::now()).with_durations(times),
                true,
                true,
            );
            assert_eq!(gaps[0], Duration::ZERO);
            assert!(
                gaps[1..].iter().all(|gap| (2 * SECOND..=5 * SECOND).contains(gap)),
                "{gaps:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unwatched_job_is_polled_rarely_except_around_its_usual_duration() {
        let pace = PollSchedule::new(Duration::ZERO, clock::now())
            .with_durations(seconds(&[90, 100, 3_000]));
        let gaps = gaps(pace, false, true);
        assert!(gaps[0] <= 2 * SECOND, "the first within two seconds");
        assert_eq!(gaps[1..3], seconds(&[60, 14]), "sparse until three quarters of the median");
        let (mut age, mut around) = (Duration::ZERO, 0);
        for (before, gap) in gaps.iter().zip(&gaps[1..]) {
            age += *before;
            around += u32::from((75 * SECOND..150 * SECOND).contains(&age));
            assert!(*gap <= MAX_GAP.max(age / 12));
            assert!(age < 150 * SECOND || age + *gap > 7_200 * SECOND || *gap >= 16 * SECOND);
        }
        assert!((4..=8).contains(&around), "{around} polls around its time");
        assert!(gaps.len() < 60, "{} polls in two hours", gaps.len());
        assert!(gaps.last().is_some_and(|last| *last >= MAX_GAP));
        let old = PollSchedule::new(90 * 86_400 * SECOND, clock::now());
        assert_eq!(old.unwatched_gap(90 * 86_400 * SECOND), MAX_GAP_OF_OLD_JOBS);
    }

    #[tokio::test(start_paused = true)]
    async fn polls_that_bring_no_word_come_ever_more_slowly() {
        for (is_watched, longest) in [(true, MAX_WATCHED_BACKOFF), (false, MAX_GAP)] {
            let pace = PollSchedule::new(500 * SECOND, clock::now());
            let gaps = gaps(pace, is_watched, false);
            assert!(gaps[1..].is_sorted(), "{gaps:?}");
            // Beyond the longest pause it is the age alone that makes them rarer.
            assert!(gaps.last().is_some_and(|last| *last >= longest && *last <= 3 * longest));
        }
        let mut pace = PollSchedule::new(Duration::ZERO, clock::now());
        (0..100).for_each(|_| pace.failed(clock::now()));
        pace.answered(clock::now());
        assert_eq!(pace.next_poll(true) - clock::now(), 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn old_job_is_polled_soon_after_restart() {
        let pace = PollSchedule::new(86_400 * SECOND, clock::now());
        assert!(pace.next_poll(false) - clock::now() <= 2 * SECOND);
    }
}
