//! A future that finishes an answer on its way out, without a box.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::answer::Answer;

/// What a layer still has to do to an answer.
pub trait Finish {
    /// Gives the answer its last touch.
    fn finish(self, answer: Answer) -> Answer;
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
