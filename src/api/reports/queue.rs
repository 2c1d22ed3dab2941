//! Lets each caller read one report at a time, and limits how many callers read at once.
//!
//! A report reads up to a month of purchases, and the store reads reports one after another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock::{self, Instant};
use crate::gate::problem::{OVERLOADED, Problem};
use crate::gate::response::{Body, Response};
use crate::ledger::Caller;
use crate::sync::lock;

/// Reports that are being read or wait in the store.
const MAX_REPORTS: usize = 16;
/// How long a report is reused for the same query.
const MAX_AGE: Duration = Duration::from_millis(200);
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Callers whose latest answer is kept, in addition to those that wait.
const MAX_KEPT: usize = 64;

pub struct ReportQueue {
    by_caller: Mutex<HashMap<Caller, Turn>>,
    slots: Semaphore,
}

/// Held while the caller's report is read; contains the latest one.
type Turn = Arc<tokio::sync::Mutex<Option<Kept>>>;

struct Kept {
    question: Box<str>,
    at: Instant,
    answer: Response,
}

impl Default for ReportQueue {
    fn default() -> Self {
        Self { by_caller: Mutex::default(), slots: Semaphore::new(MAX_REPORTS) }
    }
}

impl ReportQueue {
    /// Runs `report` after the caller's earlier ones, or returns a recent answer to the same
    /// question.
    pub async fn run(
        &self,
        caller: &Caller,
        question: &str,
        report: impl Future<Output = Result<Response, Problem>>,
    ) -> Result<Response, Problem> {
        let turn = self.turn(caller);
        let mut latest = turn.lock().await;
        let fresh = latest.as_ref().filter(|kept| &*kept.question == question);
        if let Some(kept) = fresh.filter(|kept| kept.at.elapsed() < MAX_AGE)
            && let Some(answer) = copy(&kept.answer)
        {
            return Ok(answer);
        }
        let _slot = self.slots.try_acquire().map_err(|_| {
            Problem::new(&OVERLOADED)
                .detail("too many reports are being read; retry later")
                .retry_after(RETRY_AFTER)
        })?;
        let answer = report.await?;
        *latest = copy(&answer).map(|answer| Kept {
            question: question.into(),
            at: clock::now(),
            answer,
        });
        Ok(answer)
    }

    /// Drops the caller's kept answer, so that it sees what it has just changed.
    pub async fn forget(&self, caller: &Caller) {
        *self.turn(caller).lock().await = None;
    }

    fn turn(&self, caller: &Caller) -> Turn {
        let mut turns = lock(&self.by_caller);
        if turns.len() >= MAX_KEPT {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        Arc::clone(turns.entry(caller.clone()).or_default())
    }
}

fn copy(answer: &Response) -> Option<Response> {
    let mut copy = Response::new(Body::from(answer.body().whole()?));
    *copy.status_mut() = answer.status();
    *copy.headers_mut() = answer.headers().clone();
    Some(copy)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::{join_all, poll_immediate};
    use http::StatusCode;
    use tokio::time::sleep;

    use super::*;
    use crate::gate::response;

    fn caller(number: usize) -> Caller {
        Caller::Member(number.to_string().into())
    }

    /// A slow report that records how many run at once, and answers with its number.
    #[derive(Default)]
    struct Slow {
        running: AtomicUsize,
        most: AtomicUsize,
        begun: AtomicUsize,
    }

    impl Slow {
        async fn report(&self) -> Result<Response, Problem> {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(running, Ordering::SeqCst);
            let number = self.begun.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(100)).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            Ok(response::json(StatusCode::OK, &number))
        }
    }

    fn text(answer: Result<Response, Problem>) -> String {
        let whole = answer.expect("it is answered").body().whole().expect("a whole body");
        String::from_utf8(whole.to_vec()).expect("text")
    }

    #[tokio::test(start_paused = true)]
    async fn caller_reads_one_report_at_a_time_and_gets_the_same_answer_for_a_moment() {
        let (turns, slow) = (ReportQueue::default(), Slow::default());
        let ann = caller(1);
        let ask = |question| turns.run(&ann, question, slow.report());
        let answers = join_all((0..100).map(|_| ask("?since=7d"))).await;
        assert!(answers.into_iter().all(|answer| text(answer) == "0"));
        assert_eq!(slow.begun.load(Ordering::SeqCst), 1);
        let answers = join_all((0..10).map(|turn| ask(["?since=1d", "?since=2d"][turn % 2]))).await;
        assert_eq!(answers.into_iter().map(text).collect::<Vec<_>>()[..2], ["1", "2"]);
        assert_eq!(slow.most.load(Ordering::SeqCst), 1);
        let begun = slow.begun.load(Ordering::SeqCst);
        text(ask("?since=2d").await);
        assert_eq!(slow.begun.load(Ordering::SeqCst), begun);
        sleep(MAX_AGE).await;
        text(ask("?since=2d").await);
        assert_eq!(slow.begun.load(Ordering::SeqCst), begun + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_callers_get_retry_after_and_disconnects_free_slots() {
        let (turns, slow) = (ReportQueue::default(), Slow::default());
        let numbers: Vec<_> = (0..=MAX_REPORTS).map(caller).collect();
        let mut waiting = Vec::new();
        for one in &numbers[..MAX_REPORTS] {
            let mut report = Box::pin(turns.run(one, "?", slow.report()));
            assert!(poll_immediate(&mut report).await.is_none());
            waiting.push(report);
        }
        let refused = turns.run(&numbers[MAX_REPORTS], "?", slow.report()).await.unwrap_err();
        assert_eq!((refused.kind(), refused.retry_delay()), (&OVERLOADED, Some(RETRY_AFTER)));
        waiting.pop();
        assert!(turns.run(&numbers[MAX_REPORTS], "?", slow.report()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_kept_answers_is_bounded() {
        let (turns, slow) = (ReportQueue::default(), Slow::default());
        for number in 0..3 * MAX_KEPT {
            text(turns.run(&caller(number), "?", slow.report()).await);
        }
        assert!(turns.by_caller.lock().unwrap().len() <= MAX_KEPT + 1);
    }
}
