//! Turns a panic while answering into a 500, so that it stays in the request that caused it. A purchase
//! is not affected: it runs in a task of its own.

use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{CatchUnwind, Either, Ready, ready};
use http::Request;
use pin_project_lite::pin_project;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::{Arrived, RequestId};
use crate::answer::{self, Answer};
use crate::problem::{INTERNAL, Problem};

#[derive(Clone, Debug)]
pub struct Catch<S> {
    inner: S,
}

pub fn layer<S>() -> impl Layer<S, Service = Catch<S>> + Clone + use<S> {
    layer_fn(|inner| Catch { inner })
}

impl<S, B> Service<Request<Arrived<B>>> for Catch<S>
where
    S: Service<Request<Arrived<B>>, Response = Answer, Error = Infallible>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<Caught<S::Future>, Ready<Result<Answer, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Arrived<B>>) -> Self::Future {
        let id = request.body().id.clone();
        match catch_unwind(AssertUnwindSafe(|| self.inner.call(request))) {
            Ok(future) => {
                Either::Left(Caught { inner: AssertUnwindSafe(future).catch_unwind(), id })
            }
            Err(panic) => Either::Right(ready(Ok(broke(panic, &id)))),
        }
    }
}

pin_project! {
    pub struct Caught<F> {
        #[pin]
        inner: CatchUnwind<AssertUnwindSafe<F>>,
        id: RequestId,
    }
}

impl<F> Future for Caught<F>
where
    F: Future<Output = Result<Answer, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.inner.poll(cx).map(|outcome| outcome.unwrap_or_else(|panic| Ok(broke(panic, this.id))))
    }
}

/// The panic's payload may hold anything, so it is dropped unread; the hook has logged the place.
fn broke(_panic: Box<dyn Any + Send>, id: &RequestId) -> Answer {
    answer::refusal(Problem::new(&INTERNAL), id.as_str())
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_500_wherever_it_happens() {
        let request = || {
            let problem = Problem::new(&INTERNAL);
            Request::new(Arrived { id: RequestId::new(), route: Err(problem), body: () })
        };
        let at_once = service_fn(|_: Request<Arrived<()>>| -> Ready<Result<Answer, Infallible>> {
            panic!("secret");
        });
        let later = service_fn(|_: Request<Arrived<()>>| async { panic!("secret") });
        let first = layer().layer(at_once).oneshot(request()).await.unwrap();
        let second = layer().layer(later).oneshot(request()).await.unwrap();
        assert_eq!(first.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(second.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
