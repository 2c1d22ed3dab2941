//! Refuses heads that two parsers could read differently, before anybody acts on them.
//!
//! hyper has refused the worst (two lengths, obs-fold, bare CR). What it lets through and we do not:
//! more or fewer than one `Host`, a target that is not a path, transfer codings other than `chunked`,
//! bodies where none belongs.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::header::{HOST, TRANSFER_ENCODING};
use http::{Method, Request, Version};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::refuse;
use crate::answer::Answer;
use crate::problem::{MALFORMED_REQUEST, Problem};

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct PlainHead<S> {
    inner: S,
}

/// Lets plain heads through.
pub fn layer<S>() -> impl Layer<S, Service = PlainHead<S>> + Clone {
    layer_fn(|inner| PlainHead { inner })
}

impl<S, B> Service<Request<B>> for PlainHead<S>
where
    S: Service<Request<B>, Response = Answer, Error = Infallible>,
    B: http_body::Body,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Answer, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match fault(&request) {
            None => Either::Left(self.inner.call(request)),
            Some(expected) => {
                let problem = Problem::new(&MALFORMED_REQUEST).detail(expected);
                Either::Right(ready(Ok(refuse(problem, request.headers(), request.body()))))
            }
        }
    }
}

/// What was expected, where the head is not plain.
fn fault<B: http_body::Body>(request: &Request<B>) -> Option<&'static str> {
    let headers = request.headers();
    let uri = request.uri();
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        // HTTP/1.0 has none; whether that will do is `host`'s to say.
        (None, _) if request.version() == Version::HTTP_10 => {}
        (None, _) => return Some("expected a Host header"),
        (Some(_), Some(_)) => return Some("expected one Host header, not several"),
        (Some(_), None) => {}
    }
    if uri.scheme().is_some() || uri.authority().is_some() || !uri.path().starts_with('/') {
        return Some("expected a target that is a path, such as /api/v1/chat");
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Some("expected Transfer-Encoding to be chunked, if anything");
    }
    let bodyless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if bodyless && !request.body().is_end_stream() {
        return Some("expected no body with this method");
    }
    None
}
