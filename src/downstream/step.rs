//! Layers that are one function each. The function lets a request go on, possibly as something else, or refuses it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::{Either, Ready, ready as at_once};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::answer::Answer;

/// What a layer still has to do to an answer.
pub trait Finish {
    fn finish(self, answer: Answer) -> Answer;
}

/// Leaves the answer as it is.
#[derive(Clone, Copy, Debug)]
pub struct Unchanged;

impl Finish for Unchanged {
    fn finish(self, answer: Answer) -> Answer {
        answer
    }
}

pin_project! {
    /// The future of a layer that touches every answer.
    #[derive(Debug)]
    pub struct After<F, T> {
        #[pin]
        inner: F,
        finish: Option<T>,
    }
}

impl<F, T> After<F, T> {
    pub(super) fn new(inner: F, finish: T) -> Self {
        Self { inner, finish: Some(finish) }
    }
}

impl<F, T> Future for After<F, T>
where
    F: Future<Output = Result<Answer, Infallible>>,
    T: Finish,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Ok(answer) = ready!(this.inner.poll(cx));
        Poll::Ready(Ok(match this.finish.take() {
            Some(finish) => finish.finish(answer),
            None => answer,
        }))
    }
}

/// What a [`Step`] decides: what goes on and what is done to its answer, or a refusal.
pub type Onward<R, T = Unchanged> = Result<(R, T), Box<Answer>>;

/// A layer that is a function from a request to what goes on and what is done to its answer, or to a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Step<F>(pub(super) F);

#[derive(Clone, Copy, Debug)]
pub struct Stepped<S, F> {
    inner: S,
    step: F,
}

impl<S, F: Clone> Layer<S> for Step<F> {
    type Service = Stepped<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Stepped { inner, step: self.0.clone() }
    }
}

impl<S, F, In, Out, T> Service<In> for Stepped<S, F>
where
    F: Fn(In) -> Onward<Out, T>,
    S: Service<Out, Response = Answer, Error = Infallible>,
    T: Finish,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<After<S::Future, T>, Ready<Result<Answer, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: In) -> Self::Future {
        match (self.step)(request) {
            Ok((request, finish)) => Either::Left(After::new(self.inner.call(request), finish)),
            Err(refusal) => Either::Right(at_once(Ok(*refusal))),
        }
    }
}
