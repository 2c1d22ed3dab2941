//! Lets a core's stack be exchanged while it serves.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use http::Request;
use tower::Service;

use crate::answer::Answer;
use crate::pipeline::Public;

/// A core's stack that can be exchanged while it is in use: each request takes the one of its moment.
pub struct Current<B>(Arc<ArcSwap<Public<B>>>);

impl<B> Current<B> {
    /// Starts with `stack`.
    pub fn new(stack: Public<B>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(stack)))
    }

    /// Requests from now on are answered by `stack`.
    pub fn exchange(&self, stack: Public<B>) {
        self.0.store(Arc::new(stack));
    }
}

impl<B> Clone for Current<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Service<Request<B>> for Current<B> {
    type Response = Answer;
    type Error = Infallible;
    type Future = <Public<B> as Service<Request<B>>>::Future;

    /// Every layer of the stack is always ready: it refuses rather than making a caller wait.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Public::clone(&self.0.load()).call(request)
    }
}
