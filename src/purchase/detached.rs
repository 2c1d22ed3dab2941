//! Lets a purchase run to its end although the caller has hung up.
//!
//! hyper drops a request's future when its connection closes; a purchase cut in half would leave the
//! money spent and the receipt unknown. A shutdown waits for the tracker that these tasks run on.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::task::TaskTracker;
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::Instrument;

use super::{Purchase, Receipt};
use crate::problem::{INTERNAL, INVALID_CREDENTIALS, OUTCOME_UNKNOWN, OVERLOADED, Problem};

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Detached<S> {
    inner: S,
    tasks: TaskTracker,
}

/// Runs each purchase as a task of its own, tracked by `tasks`.
pub fn layer<S>(tasks: TaskTracker) -> impl Layer<S, Service = Detached<S>> + Clone {
    layer_fn(move |inner| Detached { inner, tasks: tasks.clone() })
}

impl<S> Service<Purchase> for Detached<S>
where
    S: Service<Purchase, Response = Receipt, Error = Problem>,
    S::Future: Send + 'static,
{
    type Response = Receipt;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Receipt, Problem>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, purchase: Purchase) -> Self::Future {
        // Goes with this future, that is, with the caller.
        let waiting = purchase.waiters.wait(purchase.standing.clone());
        let risk = purchase.risk.clone();
        let task = self.tasks.spawn(self.inner.call(purchase).in_current_span());
        Box::pin(async move {
            // A panic or the runtime's end in the middle: how far it came, nobody else can say.
            let outcome = task.await.unwrap_or_else(|_stopped| {
                Err(Problem::new(if risk.has_begun() { &OUTCOME_UNKNOWN } else { &INTERNAL }))
            });
            match outcome {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::time;
    use tokio_util::sync::CancellationToken;
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
        let answer = layer(tasks.clone()).layer(slow).oneshot(purchase());
        time::timeout(Duration::from_secs(1), answer).await.expect_err("the caller gives up");

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
            let outcome = layer(TaskTracker::new()).layer(broken).oneshot(purchase()).await;
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
            let outcome =
                layer(TaskTracker::new()).layer(ends).oneshot(purchase().by(standing)).await;
            assert_eq!(outcome.unwrap_err().kind().code, code, "{has_ended}");
        }
    }
}
