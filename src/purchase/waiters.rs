//! Runs a purchase to its end even if its caller disconnects. If every waiter leaves before the
//! first byte is sent, it is cancelled.
//!
//! hyper drops a request's future when its connection closes, so each purchase runs in a task of
//! its own. A shutdown waits for these tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{Outcome, Phase, Progress, PurchaseRequest};
use crate::access::Session;
use crate::gate::problem::{INTERNAL, INVALID_CREDENTIALS, OUTCOME_UNKNOWN, OVERLOADED, Problem};
use crate::sync::lock;

/// How long a cancelled purchase may take to leave the queue.
const MAX_LEAVE_TIME: Duration = Duration::from_millis(100);

#[derive(Clone, Default)]
pub struct Waiters(Arc<Mutex<Vec<Waiter>>>);

#[derive(Clone)]
struct Waiter {
    disconnected: CancellationToken,
    session: Session,
}

impl Waiters {
    /// The waiter counts until the guard is dropped or its session ends.
    pub(super) fn add(&self, session: Session) -> DropGuard {
        let disconnected = CancellationToken::new();
        lock(&self.0).push(Waiter { disconnected: disconnected.clone(), session });
        disconnected.drop_guard()
    }

    pub(super) fn merge(&self, other: &Self) {
        let others = lock(&other.0).clone();
        let mut waiters = lock(&self.0);
        waiters.retain(|waiter| !waiter.disconnected.is_cancelled());
        waiters.extend(others);
    }

    pub(super) fn any(&self) -> bool {
        self.first().is_some()
    }

    pub(super) async fn all_gone(&self) {
        while let Some(Waiter { disconnected, session }) = self.first() {
            disconnected.run_until_cancelled(session.ended()).await;
        }
    }

    fn first(&self) -> Option<Waiter> {
        let is_waiting =
            |one: &&Waiter| !one.disconnected.is_cancelled() && !one.session.has_ended();
        lock(&self.0).iter().find(is_waiting).cloned()
    }
}

/// Runs `call` as a task. Once `stop` is cancelled, it returns what is known so far.
pub(super) async fn run(
    tasks: &TaskTracker,
    stop: &CancellationToken,
    purchase: &PurchaseRequest,
    call: impl Future<Output = Outcome> + Send + 'static,
) -> Outcome {
    // Dropped with this future when the caller disconnects.
    let waiter = purchase.waiters.add(purchase.session.clone());
    let mut task = tasks.spawn(call.in_current_span());
    let ended = tokio::select! {
        biased;
        ended = &mut task => ended,
        () = stop.cancelled() => return abandon(task, waiter, &purchase.progress).await,
    };
    match outcome(ended, &purchase.progress) {
        Err(problem) if problem.kind() == &OVERLOADED && purchase.session.has_ended() => {
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
            Phase::MaybeSent | Phase::Sent | Phase::Settled => &OUTCOME_UNKNOWN,
        }))
    })
}

/// Returns what is known of a purchase that no longer has time to end.
async fn abandon(task: JoinHandle<Outcome>, waiter: DropGuard, progress: &Progress) -> Outcome {
    let may_be_sent = || matches!(progress.phase(), Phase::MaybeSent | Phase::Sent);
    // Without a waiter it is not sent, unless it is being authorized right now.
    drop(waiter);
    if !may_be_sent()
        && let Ok(ended) = timeout(MAX_LEAVE_TIME, task).await
    {
        return outcome(ended, progress);
    }
    match progress.phase() {
        Phase::Queued => Err(Problem::draining()),
        Phase::MaybeSent | Phase::Sent | Phase::Settled => {
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
    async fn purchase_has_waiters_until_the_last_one_leaves() {
        let (first, second) = (Waiters::default(), Waiters::default());
        let (one, two) = (first.add(Session::default()), second.add(Session::default()));
        first.merge(&second);
        drop(one);
        assert!(first.any());
        timeout(Duration::from_secs(1), first.all_gone()).await.expect_err("one is left");
        let waiters = first.clone();
        let all_left = tokio::spawn(async move { waiters.all_gone().await });
        tokio::task::yield_now().await;
        drop(two);
        all_left.await.expect("notified");
        assert!(!first.any());
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_leaves_when_its_session_ends() {
        let sessions = [(); 2].map(|()| {
            let revoked = Some(CancellationToken::new());
            Session { revoked, ..Session::default() }
        });
        let end = |which: usize| sessions[which].revoked.as_ref().unwrap().cancel();
        let waiters = Waiters::default();
        let _guards = sessions.each_ref().map(|session| waiters.add(session.clone()));
        end(0);
        assert!(waiters.any());
        let remaining = waiters.clone();
        let all_left = tokio::spawn(async move { remaining.all_gone().await });
        tokio::task::yield_now().await;
        assert!(!all_left.is_finished());
        end(1);
        all_left.await.expect("notified");
        assert!(!waiters.any());
    }

    /// Runs the purchase as `call` to its end.
    async fn run_call(
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
        let (tasks, stop, purchase) = (TaskTracker::new(), CancellationToken::new(), purchase());
        let answer = run(&tasks, &stop, &purchase, slow);
        timeout(Duration::from_secs(1), answer).await.expect_err("the caller gives up");

        tasks.close();
        tasks.wait().await;
        assert!(finished.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn panic_after_send_is_an_unknown_outcome() {
        for (phase, code) in [
            (Phase::Queued, "internal"),
            (Phase::MaybeSent, "outcome_unknown"),
            (Phase::Sent, "outcome_unknown"),
            (Phase::Settled, "outcome_unknown"),
        ] {
            let purchase = purchase();
            let progress = purchase.progress.clone();
            let broken = async move {
                progress.enter(phase);
                panic!("a bug")
            };
            assert_eq!(
                run_call(&purchase, broken).await.unwrap_err().kind().code,
                code,
                "{phase:?}"
            );
        }
    }

    #[tokio::test]
    async fn cancelled_purchase_names_ended_credentials() {
        for (kind, has_ended, code) in [
            (&OVERLOADED, true, "invalid_credentials"),
            (&OVERLOADED, false, "overloaded"),
            // A purchase that may have been charged is never reported as refused.
            (&OUTCOME_UNKNOWN, true, "outcome_unknown"),
            (&OUTCOME_UNKNOWN, false, "outcome_unknown"),
        ] {
            let ended = CancellationToken::new();
            let session = Session { revoked: Some(ended.clone()), ..Session::default() };
            let ends = async move {
                if has_ended {
                    ended.cancel();
                }
                Err(Problem::new(kind))
            };
            let outcome = run_call(&PurchaseRequest { session, ..purchase() }, ends).await;
            assert_eq!(outcome.unwrap_err().kind().code, code, "{has_ended}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_purchase_reports_what_is_known() {
        for (phase, code) in [
            (Phase::MaybeSent, "outcome_unknown"),
            (Phase::Sent, "outcome_unknown"),
            (Phase::Queued, "draining"),
        ] {
            let purchase = purchase();
            let progress = purchase.progress.clone();
            let hangs = async move {
                progress.enter(phase);
                pending().await
            };
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let mut answer = Box::pin(run(&tasks, &stop, &purchase, hangs));
            timeout(Duration::from_secs(40), &mut answer).await.expect_err("it waits");
            stop.cancel();
            assert_eq!(answer.await.unwrap_err().kind().code, code);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_authorized_while_it_is_abandoned_is_an_unknown_outcome() {
        let purchase = purchase();
        let (waiters, progress) = (purchase.waiters.clone(), purchase.progress.clone());
        let hangs = async move {
            waiters.all_gone().await;
            time::sleep(MAX_LEAVE_TIME / 2).await;
            progress.enter(Phase::MaybeSent);
            pending().await
        };
        let stop = CancellationToken::new();
        stop.cancel();
        let outcome = run(&TaskTracker::new(), &stop, &purchase, hangs).await;
        assert_eq!(outcome.unwrap_err().kind().code, "outcome_unknown");
    }
}
