//! Lets a purchase run to its end although the caller has hung up.
//!
//! hyper drops a request's future when its connection closes; a purchase cut in half would leave the
//! money spent and the receipt unknown. A shutdown waits for the tracker that these tasks run on.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::Instrument;

use super::waiters::Waiting;
use super::{Purchase, Receipt, Risk};
use crate::problem::{
    DRAINING, INTERNAL, INVALID_CREDENTIALS, OUTCOME_UNKNOWN, OVERLOADED, Problem,
};

/// What a purchase that nobody waits for any longer still needs to leave its queue.
const LEAVING: Duration = Duration::from_millis(100);
/// When another server may have taken this one's place.
const COME_BACK: Duration = Duration::from_secs(5);

type Outcome = Result<Receipt, Problem>;

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Detached<S> {
    inner: S,
    tasks: TaskTracker,
    cut: CancellationToken,
}

/// Runs each purchase as a task of its own, tracked by `tasks`. After `cut`, its caller waits no longer
/// and is told what is known.
pub fn layer<S>(
    tasks: TaskTracker,
    cut: CancellationToken,
) -> impl Layer<S, Service = Detached<S>> + Clone {
    layer_fn(move |inner| Detached { inner, tasks: tasks.clone(), cut: cut.clone() })
}

impl<S> Service<Purchase> for Detached<S>
where
    S: Service<Purchase, Response = Receipt, Error = Problem>,
    S::Future: Send + 'static,
{
    type Response = Receipt;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Outcome> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, purchase: Purchase) -> Self::Future {
        // Goes with this future, that is, with the caller.
        let waiting = purchase.waiters.wait(purchase.standing.clone());
        let risk = purchase.risk.clone();
        let mut task = self.tasks.spawn(self.inner.call(purchase).in_current_span());
        let cut = self.cut.clone();
        Box::pin(async move {
            let ended = tokio::select! {
                biased;
                ended = &mut task => ended,
                () = cut.cancelled() => return given_up(task, waiting, &risk).await,
            };
            match outcome(ended, &risk) {
                // It was given up for want of anybody who may buy it.
                Err(given_up) if given_up.kind() == &OVERLOADED && waiting.is_barred() => {
                    Err(Problem::new(&INVALID_CREDENTIALS).detail(
                        "the credentials ended while this waited for its turn: nothing was sent",
                    ))
                }
                outcome => outcome,
            }
        })
    }
}

/// How a purchase ended. After a panic or the runtime's end in the middle, nobody else can say how far
/// it came.
fn outcome(ended: Result<Outcome, JoinError>, risk: &Risk) -> Outcome {
    ended.unwrap_or_else(|_stopped| {
        Err(Problem::new(if risk.has_begun() { &OUTCOME_UNKNOWN } else { &INTERNAL }))
    })
}

/// What is known of a purchase that its caller waits for no longer.
async fn given_up(task: JoinHandle<Outcome>, waiting: Waiting, risk: &Risk) -> Outcome {
    // What nobody waits for is not sent any more. What was just leaving is known to have begun soon.
    drop(waiting);
    if !risk.has_begun()
        && let Ok(ended) = timeout(LEAVING, task).await
    {
        return outcome(ended, risk);
    }
    if risk.has_begun() {
        return Err(Problem::new(&OUTCOME_UNKNOWN)
            .detail("the server stopped before the gateway's reply came"));
    }
    Err(Problem::new(&DRAINING).retry_after(COME_BACK))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::time;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::access::Standing;
    use crate::purchase::tests::{purchase, receipt};

    #[tokio::test(start_paused = true)]
    async fn a_hang_up_does_not_stop_the_purchase_and_a_shutdown_waits_for_it() {
        let finished = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&finished);
        let slow = service_fn(move |_| {
            let flag = Arc::clone(&flag);
            async move {
                time::sleep(Duration::from_secs(40)).await;
                flag.store(true, Ordering::SeqCst);
                Ok(receipt())
            }
        });
        let tasks = TaskTracker::new();
        let answer = layer(tasks.clone(), CancellationToken::new()).layer(slow).oneshot(purchase());
        timeout(Duration::from_secs(1), answer).await.expect_err("the caller gives up");

        tasks.close();
        tasks.wait().await;
        assert!(finished.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_panic_is_an_unknown_outcome_once_money_may_have_been_spent() {
        for (is_risky, code) in [(false, "internal"), (true, "outcome_unknown")] {
            let broken = service_fn(move |purchase: Purchase| async move {
                if is_risky {
                    purchase.risk.begins();
                }
                panic!("a bug")
            });
            let outcome = layer(TaskTracker::new(), CancellationToken::new())
                .layer(broken)
                .oneshot(purchase())
                .await;
            assert_eq!(outcome.unwrap_err().kind().code, code);
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
            let ends = service_fn(move |_: Purchase| {
                if has_ended {
                    ended.cancel();
                }
                std::future::ready(Err::<Receipt, _>(Problem::new(kind)))
            });
            let outcome = layer(TaskTracker::new(), CancellationToken::new())
                .layer(ends)
                .oneshot(purchase().by(standing))
                .await;
            assert_eq!(outcome.unwrap_err().kind().code, code, "{has_ended}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn caller_of_a_purchase_that_is_cut_is_told_what_is_known() {
        for (is_sent, code) in [(true, "outcome_unknown"), (false, "draining")] {
            let hangs = service_fn(move |purchase: Purchase| async move {
                if is_sent {
                    purchase.risk.begins();
                }
                std::future::pending::<Outcome>().await
            });
            let (tasks, cut) = (TaskTracker::new(), CancellationToken::new());
            let mut answer = Box::pin(layer(tasks, cut.clone()).layer(hangs).oneshot(purchase()));
            timeout(Duration::from_secs(40), &mut answer).await.expect_err("it waits");
            cut.cancel();
            assert_eq!(answer.await.unwrap_err().kind().code, code);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn purchase_that_was_leaving_when_it_was_cut_is_an_unknown_outcome() {
        let hangs = service_fn(|purchase: Purchase| async move {
            purchase.waiters.none().await;
            time::sleep(LEAVING / 2).await;
            purchase.risk.begins();
            std::future::pending::<Outcome>().await
        });
        let cut = CancellationToken::new();
        cut.cancel();
        let outcome = layer(TaskTracker::new(), cut).layer(hangs).oneshot(purchase()).await;
        assert_eq!(outcome.unwrap_err().kind().code, "outcome_unknown");
    }
}
