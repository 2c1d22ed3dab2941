//! What all who watch one job share: its latest word, and that somebody watches.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep_until;

use super::pace::Pace;
use crate::clock::{self, Instant};
use crate::problem::Problem;
use crate::store::{Job, JobState, Word};
use crate::sync::lock;

/// For how long whoever asked for a job's status counts as watching it.
const LEASE: Duration = Duration::from_secs(15);

/// What is known of a job.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// The gateway's latest word.
    pub word: Option<Word>,
    /// Why the latest poll brought none.
    pub trouble: Option<Problem>,
    /// Polls so far.
    pub polls: u64,
}

impl News {
    /// Whether there will be no more of it.
    pub fn is_last(&self) -> bool {
        self.word.as_ref().is_some_and(|word| word.state != JobState::Open)
    }
}

/// A job that is being polled.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) job: Job,
    pub(super) news: watch::Sender<News>,
    attention: Mutex<Attention>,
    wake: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Attention {
    watchers: usize,
    lease: Option<Instant>,
}

impl Attention {
    fn is_there(self, now: Instant) -> bool {
        self.watchers > 0 || self.lease.is_some_and(|end| now < end)
    }
}

impl Watched {
    pub(super) fn new(job: Job) -> Self {
        let news = News { word: job.latest.clone(), ..News::default() };
        let (news, _) = watch::channel(news);
        Self { job, news, attention: Mutex::default(), wake: Notify::new() }
    }

    /// Whether nobody holds on to it.
    pub(super) fn is_alone(&self) -> bool {
        self.attend(|attention| attention.watchers == 0)
    }

    /// One more who watches, until the guard goes.
    pub(super) fn join(self: &Arc<Self>) -> Watcher {
        self.attend(|attention| attention.watchers += 1);
        Watcher(Arc::clone(self))
    }

    /// Somebody asked, and will ask again.
    pub(super) fn lease(&self) {
        self.attend(|attention| attention.lease = Some(clock::now() + LEASE));
    }

    /// Whether somebody would like to hear of it now.
    pub(super) fn is_watched(&self) -> bool {
        self.attend(|attention| attention.is_there(clock::now()))
    }

    /// Resolves when somebody watches.
    pub(super) async fn noticed(&self) {
        while !self.is_watched() {
            self.wake.notified().await;
        }
    }

    /// Resolves when the job is to be asked for. The first who watches makes it sooner.
    pub(super) async fn due(&self, pace: &Pace) {
        loop {
            let is_watched = self.is_watched();
            let due = pace.due(is_watched);
            if due <= clock::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    fn attend<T>(&self, change: impl FnOnce(&mut Attention) -> T) -> T {
        let mut attention = lock(&self.attention);
        let before = attention.is_there(clock::now());
        let answer = change(&mut attention);
        if !before && attention.is_there(clock::now()) {
            self.wake.notify_one();
        }
        answer
    }
}

/// Somebody who watches.
#[derive(Debug)]
pub(super) struct Watcher(Arc<Watched>);

impl Watcher {
    pub(super) fn job(&self) -> &Arc<Watched> {
        &self.0
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.attend(|attention| attention.watchers -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::contract::money::Usd;

    fn watched() -> Arc<Watched> {
        Arc::new(Watched::new(Job {
            request_id: "r".into(),
            purchase: None,
            owner: "ann".into(),
            key: None,
            model: "m".into(),
            toll: Usd::ZERO,
            at: Duration::ZERO,
            latest: None,
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_who_watches_wakes_the_poller_and_the_last_lets_it_rest() {
        let (job, start) = (watched(), clock::now());
        let times = vec![Duration::from_secs(600)];
        let mut pace = Pace::new(times, Duration::ZERO, start);
        pace.answered(start);
        let within = |seconds| timeout(Duration::from_secs(seconds), job.due(&pace));
        within(50).await.expect_err("nobody watches");
        let one = job.join();
        within(0).await.expect("it is overdue for who watches");
        pace.answered(clock::now());
        let within = |seconds| timeout(Duration::from_secs(seconds), job.due(&pace));
        drop((job.join(), one));
        assert!(job.is_alone());
        within(20).await.expect_err("nobody watches any more");
        job.lease();
        within(0).await.expect("somebody asked");
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_while_the_poller_sleeps_wakes_it() {
        let job = watched();
        let mut pace = Pace::new(vec![], Duration::ZERO, clock::now());
        pace.answered(clock::now());
        let (sleeper, start) = (Arc::clone(&job), clock::now());
        let due = tokio::spawn(async move { sleeper.due(&pace).await });
        sleep(Duration::from_secs(1)).await;
        let _watcher = job.join();
        due.await.unwrap();
        assert_eq!(clock::now() - start, Duration::from_secs(5));
    }
}
