//! Runs a purchase to its end even if its caller disconnects. If every waiter leaves before the
//! first byte is sent, it is cancelled.
//!
//! hyper drops a request's future when its connection closes, so each purchase runs in a task of
//! its own. A shutdown waits for these tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{Outcome, Phase, Progress, PurchaseRequest};
use crate::access::Session;
use crate::problem::{
    DRAINING, INTERNAL, INVALID_CREDENTIALS, OUTCOME_UNKNOWN, OVERLOADED, Problem,
};
use crate::sync::lock;

/// How long a cancelled purchase may take to leave the queue.
const MAX_LEAVE_TIME: Duration = Duration::from_millis(100);
/// When another process may have replaced this one.
const RETRY_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Default)]
pub struct Waiters(Arc<Mutex<Vec<Arc<Waiter>>>>);

#[derive(Default)]
struct Waiter {
    gone: CancellationToken,
    session: Session,
}

impl Waiter {
    fn counts(&self) -> bool {
        !self.gone.is_cancelled() && !self.session.has_ended()
    }
}

impl Waiters {
    pub(super) fn add(&self, session: Session) -> WaiterGuard {
        let waiter = Arc::new(Waiter { session, ..Waiter::default() });
        lock(&self.0).push(Arc::clone(&waiter));
        WaiterGuard(waiter)
    }

    pub(super) fn merge(&self, other: &Self) {
        let others = lock(&other.0).clone();
        let mut here = lock(&self.0);
        here.retain(|one| !one.gone.is_cancelled());
        here.extend(others);
    }

    pub(super) fn any(&self) -> bool {
        self.first().is_some()
    }

    pub(super) async fn all_gone(&self) {
        while let Some(one) = self.first() {
            tokio::select! {
                biased;
                () = one.gone.cancelled() => {}
                () = one.session.ended() => {}
            }
        }
    }

    fn first(&self) -> Option<Arc<Waiter>> {
        lock(&self.0).iter().find(|one| one.counts()).cloned()
    }
}

pub(super) struct WaiterGuard(Arc<Waiter>);

impl WaiterGuard {
    pub(super) fn session_ended(&self) -> bool {
        self.0.session.has_ended()
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.gone.cancel();
    }
}

/// Runs `call` as a task. Once `cut` is cancelled, it returns what is known so far.
pub(super) async fn run(
    tasks: &TaskTracker,
    cut: &CancellationToken,
    purchase: &PurchaseRequest,
    call: impl Future<Output = Outcome> + Send + 'static,
) -> Outcome {
    // Dropped with this future when the caller disconnects.
    let waiter = purchase.waiters.add(purchase.session.clone());
    let mut task = tasks.spawn(call.in_current_span());
    let ended = tokio::select! {
        biased;
        ended = &mut task => ended,
        () = cut.cancelled() => return cut_off(task, waiter, &purchase.progress).await,
    };
    match outcome(ended, &purchase.progress) {
        Err(given_up) if given_up.kind() == &OVERLOADED && waiter.session_ended() => {
            Err(Problem::new(&INVALID_CREDENTIALS)
                .detail("the credentials ended while the request was queued; nothing was sent"))
        }
        outcome => outcome,
    }
}

/// After a panic or the end of the runtime, the outcome follows from the phase.
fn outcome(ended: Result<Outcome, JoinError>, progress: &Progress) -> Outcome {
    ended.unwrap_or_else(|_stopped| {
        Err(Problem::new(match progress.phase() {
            Phase::Queued => &INTERNAL,
            Phase::AtRisk | Phase::Sent | Phase::Settled => &OUTCOME_UNKNOWN,
        }))
    })
}

/// Returns what is known of a purchase that no longer has time to end.
async fn cut_off(task: JoinHandle<Outcome>, waiter: WaiterGuard, progress: &Progress) -> Outcome {
    let may_be_sent = || matches!(progress.phase(), Phase::AtRisk | Phase::Sent);
    // Without a waiter it is not sent, unless it is being authorized right now.
    drop(waiter);
    if !may_be_sent()
        && let Ok(ended) = timeout(MAX_LEAVE_TIME, task).await
    {
        return outcome(ended, progress);
    }
    match progress.phase() {
        Phase::Queued => Err(Problem::new(&DRAINING).retry_after(RETRY_AFTER)),
        Phase::AtRisk | Phase::Sent | Phase::Settled => {
            Err(Problem::new(&OUTCOME_UNKNOWN)
                .detail("the server stopped before the gateway replied"))
        }
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
        let (one, two) = (first.add(Session::default()), second.add(Session::default()));
        first.merge(&second);
        drop(one);
        assert!(first.any());
        timeout(Duration::from_secs(1), first.all_gone()).await.expect_err("one is left");
        let alone = first.clone();
        let left = tokio::spawn(async move { alone.all_gone().await });
        tokio::task::yield_now().await;
        drop(two);
        left.await.expect("told");
        assert!(!first.any());
    }

    #[tokio::test(start_paused = true)]
    async fn whose_credentials_ended_waits_no_more_and_its_companion_does() {
        let standings = [(); 2].map(|()| {
            let revoked = Some(CancellationToken::new());
            Session { revoked, ..Session::default() }
        });
        let end = |which: usize| standings[which].revoked.as_ref().unwrap().cancel();
        let waiters = Waiters::default();
        let [one, two] = standings.each_ref().map(|standing| waiters.add(standing.clone()));
        end(0);
        assert!((one.session_ended(), two.session_ended(), waiters.any()) == (true, false, true));
        let alone = waiters.clone();
        let left = tokio::spawn(async move { alone.all_gone().await });
        tokio::task::yield_now().await;
        assert!(!left.is_finished());
        end(1);
        left.await.expect("told");
        assert!(!waiters.any());
    }

    /// The outcome of a purchase that this call makes.
    async fn made(
        purchase: &PurchaseRequest,
        call: impl Future<Output = Outcome> + Send + 'static,
    ) -> Outcome {
        run(&TaskTracker::new(), &CancellationToken::new(), purchase, call).await
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_survives_disconnect_and_shutdown_waits_for_it() {
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
    async fn panic_after_send_is_an_unknown_outcome() {
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
            let standing = Session { revoked: Some(ended.clone()), ..Session::default() };
            let ends = async move {
                if has_ended {
                    ended.cancel();
                }
                Err(Problem::new(kind))
            };
            let outcome = made(&PurchaseRequest { session: standing, ..purchase() }, ends).await;
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
            waiters.all_gone().await;
            time::sleep(MAX_LEAVE_TIME / 2).await;
            progress.enter(Phase::AtRisk);
            pending().await
        };
        let cut = CancellationToken::new();
        cut.cancel();
        let outcome = run(&TaskTracker::new(), &cut, &purchase, hangs).await;
        assert_eq!(outcome.unwrap_err().kind().code, "outcome_unknown");
    }
}
