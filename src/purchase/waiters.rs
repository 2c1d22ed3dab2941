//! Lets a purchase run to its end although its caller has hung up; and knows whether anybody still waits
//! for it who may buy it: until its first byte is sent, it goes with the last of them.
//!
//! hyper drops a request's future when its connection closes; a purchase cut in half would leave the
//! money spent and the receipt unknown. A shutdown waits for the tracker that these tasks run on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{Outcome, Phase, Progress, Purchase};
use crate::access::Standing;
use crate::problem::{
    DRAINING, INTERNAL, INVALID_CREDENTIALS, OUTCOME_UNKNOWN, OVERLOADED, Problem,
};
use crate::sync::lock;

/// What a purchase that nobody waits for any longer still needs to leave its queue.
const LEAVING: Duration = Duration::from_millis(100);
/// When another server may have taken this one's place.
const COME_BACK: Duration = Duration::from_secs(5);

/// Everybody who waits, or has waited, for one purchase.
#[derive(Clone, Default)]
pub struct Waiters(Arc<Mutex<Vec<Arc<Presence>>>>);

#[derive(Default)]
struct Presence {
    gone: CancellationToken,
    standing: Standing,
}

impl Presence {
    /// A caller whose credentials have ended does not count: nothing more is bought for it.
    fn counts(&self) -> bool {
        !self.gone.is_cancelled() && !self.standing.is_over()
    }
}

impl Waiters {
    /// Adds one more who waits, until the guard is dropped or its credentials end.
    pub(super) fn wait(&self, standing: Standing) -> Waiting {
        let presence = Arc::new(Presence { standing, ..Presence::default() });
        lock(&self.0).push(Arc::clone(&presence));
        Waiting(presence)
    }

    /// Those who wait for `other` wait for this one, too.
    pub(super) fn join(&self, other: &Self) {
        let others = lock(&other.0).clone();
        let mut here = lock(&self.0);
        here.retain(|one| !one.gone.is_cancelled());
        here.extend(others);
    }

    /// Whether anybody is still here.
    pub(super) fn any(&self) -> bool {
        self.first().is_some()
    }

    /// Resolves when nobody is left.
    pub(super) async fn none(&self) {
        while let Some(one) = self.first() {
            tokio::select! {
                biased;
                () = one.gone.cancelled() => {}
                () = one.standing.over() => {}
            }
        }
    }

    fn first(&self) -> Option<Arc<Presence>> {
        lock(&self.0).iter().find(|one| one.counts()).cloned()
    }
}

/// Somebody who waits.
pub(super) struct Waiting(Arc<Presence>);

impl Waiting {
    /// Whether its credentials have ended.
    pub(super) fn is_barred(&self) -> bool {
        self.0.standing.is_over()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.gone.cancel();
    }
}

/// Runs `call`, which makes this purchase, as a task tracked by `tasks`. After `cut`, its caller waits no
/// longer and is told what is known.
pub(super) async fn run(
    tasks: &TaskTracker,
    cut: &CancellationToken,
    purchase: &Purchase,
    call: impl Future<Output = Outcome> + Send + 'static,
) -> Outcome {
    // Goes with this future, that is, with the caller.
    let waiting = purchase.waiters.wait(purchase.standing.clone());
    let mut task = tasks.spawn(call.in_current_span());
    let ended = tokio::select! {
        biased;
        ended = &mut task => ended,
        () = cut.cancelled() => return cut_off(task, waiting, &purchase.progress).await,
    };
    match outcome(ended, &purchase.progress) {
        // It was given up for want of anybody who may buy it.
        Err(given_up) if given_up.kind() == &OVERLOADED && waiting.is_barred() => {
            Err(Problem::new(&INVALID_CREDENTIALS)
                .detail("the credentials ended while this waited for its turn: nothing was sent"))
        }
        outcome => outcome,
    }
}

/// How a purchase ended. After a panic or the runtime's end in the middle, its phase says how far it came.
fn outcome(ended: Result<Outcome, JoinError>, progress: &Progress) -> Outcome {
    ended.unwrap_or_else(|_stopped| {
        Err(Problem::new(match progress.phase() {
            Phase::Queued => &INTERNAL,
            Phase::AtRisk | Phase::Sent | Phase::Settled => &OUTCOME_UNKNOWN,
        }))
    })
}

/// What is known of a purchase that its caller waits for no longer.
async fn cut_off(task: JoinHandle<Outcome>, waiting: Waiting, progress: &Progress) -> Outcome {
    let may_be_sent = || matches!(progress.phase(), Phase::AtRisk | Phase::Sent);
    // What nobody waits for is not sent any more. What was just leaving is known to be at risk soon.
    drop(waiting);
    if !may_be_sent()
        && let Ok(ended) = timeout(LEAVING, task).await
    {
        return outcome(ended, progress);
    }
    match progress.phase() {
        Phase::Queued => Err(Problem::new(&DRAINING).retry_after(COME_BACK)),
        Phase::AtRisk | Phase::Sent | Phase::Settled => Err(Problem::new(&OUTCOME_UNKNOWN)
            .detail("the server stopped before the gateway's reply came")),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time;

    use super::*;
    use crate::purchase::tests::{purchase, receipt};

    #[tokio::test(start_paused = true)]
    async fn somebody_waits_until_the_last_one_is_gone() {
        let (first, second) = (Waiters::default(), Waiters::default());
        let (one, two) = (first.wait(Standing::default()), second.wait(Standing::default()));
        first.join(&second);
        drop(one);
        assert!(first.any());
        timeout(Duration::from_secs(1), first.none()).await.expect_err("one is left");
        let alone = first.clone();
        let left = tokio::spawn(async move { alone.none().await });
        tokio::task::yield_now().await;
        drop(two);
        left.await.expect("told");
        assert!(!first.any());
    }

    #[tokio::test(start_paused = true)]
    async fn whose_credentials_ended_waits_no_more_and_its_companion_does() {
        let standings = [(); 2].map(|()| {
            let ended = Some(CancellationToken::new());
            Standing { ended, ..Standing::default() }
        });
        let end = |which: usize| standings[which].ended.as_ref().unwrap().cancel();
        let waiters = Waiters::default();
        let [one, two] = standings.each_ref().map(|standing| waiters.wait(standing.clone()));
        end(0);
        assert!((one.is_barred(), two.is_barred(), waiters.any()) == (true, false, true));
        let alone = waiters.clone();
        let left = tokio::spawn(async move { alone.none().await });
        tokio::task::yield_now().await;
        assert!(!left.is_finished());
        end(1);
        left.await.expect("told");
        assert!(!waiters.any());
    }

    /// The outcome of a purchase that this call makes.
    async fn made(
        purchase: &Purchase,
        call: impl Future<Output = Outcome> + Send + 'static,
    ) -> Outcome {
        run(&TaskTracker::new(), &CancellationToken::new(), purchase, call).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_hang_up_does_not_stop_the_purchase_and_a_shutdown_waits_for_it() {
        let finished = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&finished);
        let slow = async move {
            time::sleep(Duration::from_secs(40)).await;
            flag.store(true, Ordering::SeqCst);
            Ok(receipt())
        };
        let (tasks, cut, purchase) = (TaskTracker::new(), CancellationToken::new(), purchase());
        let answer = run(&tasks, &cut, &purchase, slow);
        timeout(Duration::from_secs(1), answer).await.expect_err("the caller gives up");

        tasks.close();
        tasks.wait().await;
        assert!(finished.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_panic_is_an_unknown_outcome_once_money_may_have_been_spent() {
        for (phase, code) in [
            (Phase::Queued, "internal"),
            (Phase::AtRisk, "outcome_unknown"),
            (Phase::Sent, "outcome_unknown"),
            (Phase::Settled, "outcome_unknown"),
        ] {
            let purchase = purchase();
            let progress = purchase.progress.clone();
            let broken = async move {
                progress.enter(phase);
                panic!("a bug")
            };
            assert_eq!(made(&purchase, broken).await.unwrap_err().kind().code, code, "{phase:?}");
        }
    }

    #[tokio::test]
    async fn only_what_was_given_up_for_want_of_credentials_is_told_so() {
        for (kind, has_ended, code) in [
            (&OVERLOADED, true, "invalid_credentials"),
            (&OVERLOADED, false, "overloaded"),
            // What may have been charged is never told as a refusal.
            (&OUTCOME_UNKNOWN, true, "outcome_unknown"),
            (&OUTCOME_UNKNOWN, false, "outcome_unknown"),
        ] {
            let ended = CancellationToken::new();
            let standing = Standing { ended: Some(ended.clone()), ..Standing::default() };
            let ends = async move {
                if has_ended {
                    ended.cancel();
                }
                Err(Problem::new(kind))
            };
            let outcome = made(&purchase().by(standing), ends).await;
            assert_eq!(outcome.unwrap_err().kind().code, code, "{has_ended}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn caller_of_a_purchase_that_is_cut_is_told_what_is_known() {
        for (phase, code) in [
            (Phase::AtRisk, "outcome_unknown"),
            (Phase::Sent, "outcome_unknown"),
            (Phase::Queued, "draining"),
        ] {
            let purchase = purchase();
            let progress = purchase.progress.clone();
            let hangs = async move {
                progress.enter(phase);
                pending().await
            };
            let (tasks, cut) = (TaskTracker::new(), CancellationToken::new());
            let mut answer = Box::pin(run(&tasks, &cut, &purchase, hangs));
            timeout(Duration::from_secs(40), &mut answer).await.expect_err("it waits");
            cut.cancel();
            assert_eq!(answer.await.unwrap_err().kind().code, code);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_that_was_leaving_when_it_was_cut_is_an_unknown_outcome() {
        let purchase = purchase();
        let (waiters, progress) = (purchase.waiters.clone(), purchase.progress.clone());
        let hangs = async move {
            waiters.none().await;
            time::sleep(LEAVING / 2).await;
            progress.enter(Phase::AtRisk);
            pending().await
        };
        let cut = CancellationToken::new();
        cut.cancel();
        let outcome = run(&TaskTracker::new(), &cut, &purchase, hangs).await;
        assert_eq!(outcome.unwrap_err().kind().code, "outcome_unknown");
    }
}
