//! Gives each attempt a place in the window, and one more after a 429, within `gateway.max_wait` of
//! the ask's first moment unless the ask is patient.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::Window;
use crate::clock;
use crate::upstream::{Attempt, Error, Reply};

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Windowed<S> {
    inner: S,
    window: Arc<Window>,
    max_wait: Duration,
}

/// Lets an attempt wait for `window`, at most `max_wait` in all unless it is patient.
pub fn layer<S>(
    window: Arc<Window>,
    max_wait: Duration,
) -> impl Layer<S, Service = Windowed<S>> + Clone {
    layer_fn(move |inner| Windowed { inner, window: Arc::clone(&window), max_wait })
}

impl<S> Service<Attempt> for Windowed<S>
where
    S: Service<Attempt, Response = Reply, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Reply;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, attempt: Attempt) -> Self::Future {
        // Take the service that was polled ready, and leave its clone behind.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let window = Arc::clone(&self.window);
        let max_wait = self.max_wait;
        let mut give_up = (!attempt.ask.is_patient).then(|| attempt.since + max_wait);
        Box::pin(async move {
            let mut held = window.place(&attempt, give_up, false).await?;
            loop {
                std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
                held.sending();
                let outcome = inner.call(attempt.clone()).await;
                match &outcome {
                    Err(Error::Throttled { retry_after }) => held.throttled(*retry_after),
                    Err(error) if error.was_never_sent() => {
                        held.unsent();
                        return outcome;
                    }
                    Ok(_) | Err(_) => {
                        held.replied();
                        return outcome;
                    }
                }
                // Patience is for the queue: a gateway that refuses is not asked for ever.
                let give_up = *give_up.get_or_insert_with(|| clock::now() + max_wait);
                held = match window.place(&attempt, Some(give_up), true).await {
                    Ok(held) => held,
                    Err(Error::WindowFull { retry_after }) => {
                        return Err(Error::Throttled { retry_after: Some(retry_after) });
                    }
                    Err(other) => return Err(other),
                };
            }
        })
    }
}
