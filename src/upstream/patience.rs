//! Waits out the gateway's 429 for as long as a caller can be asked to wait.
//!
//! Guess: a 429 is free, because nothing was done; so the same ask may be sent again. The exact
//! window, shared fairly, takes this place with the account's issue.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::{Ask, Error, Reply};
use crate::clock;

/// How long to wait where the gateway does not say.
const UNTOLD_PAUSE: Duration = Duration::from_secs(2);

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Patience<S> {
    inner: S,
    max_wait: Duration,
}

/// Waits at most `max_wait` in all.
pub fn layer<S>(max_wait: Duration) -> impl Layer<S, Service = Patience<S>> + Clone {
    layer_fn(move |inner| Patience { inner, max_wait })
}

impl<S> Service<Ask> for Patience<S>
where
    S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Reply;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, ask: Ask) -> Self::Future {
        // Take the service that was polled ready, and leave its clone behind.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let give_up = clock::now() + self.max_wait;
        Box::pin(async move {
            loop {
                std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
                let retry_after = match inner.call(ask.clone()).await {
                    Err(Error::Throttled { retry_after }) => retry_after,
                    outcome => return outcome,
                };
                let pause = retry_after.unwrap_or(UNTOLD_PAUSE).max(Duration::from_millis(100));
                if clock::now() + pause > give_up {
                    return Err(Error::Throttled { retry_after });
                }
                tokio::time::sleep(pause).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::upstream::What;

    async fn calls_until_it_gives_up(retry_after: Option<u64>) -> (u32, Duration) {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let busy = service_fn(move |_: Ask| {
            counted.fetch_add(1, Ordering::SeqCst);
            let retry_after = retry_after.map(Duration::from_secs);
            async move { Err::<Reply, _>(Error::Throttled { retry_after }) }
        });
        let start = clock::now();
        let patient = layer(Duration::from_secs(20)).layer(busy);
        patient.oneshot(Ask::free(What::Billing)).await.unwrap_err();
        (calls.load(Ordering::SeqCst), clock::now() - start)
    }

    #[tokio::test(start_paused = true)]
    async fn a_429_is_waited_out_but_not_for_ever() {
        assert_eq!(calls_until_it_gives_up(Some(60)).await, (1, Duration::ZERO));
        assert_eq!(calls_until_it_gives_up(Some(6)).await, (4, Duration::from_secs(18)));
        assert_eq!(calls_until_it_gives_up(None).await, (11, Duration::from_secs(20)));
        let (calls, _) = calls_until_it_gives_up(Some(0)).await;
        assert!(calls < 300, "{calls}: it must not spin");
    }
}
