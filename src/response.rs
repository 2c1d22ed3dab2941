//! What goes back to a caller: a response whose body is whole or streamed.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use serde::Serialize;

use crate::problem::Problem;

/// The policy of whatever is not the page: nothing in it may be run, loaded, framed or sent.
const API_CSP: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; \
                          frame-ancestors 'none'; sandbox";

/// A module of another origin loads, and a page reads it, only where that origin says so.
pub const CROSS_ORIGIN_HEADERS: [(HeaderName, &str); 2] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    (HeaderName::from_static("cross-origin-resource-policy"), "cross-origin"),
];

pub type Response = http::Response<Body>;
/// What can go wrong while a streamed body is on its way; the connection is closed then.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

const CHUNK_SIZE: usize = 16 * 1_024;

/// The body of a response: an [`http_body::Body`] of [`Bytes`] that is there already, or that comes piece
/// by piece.
///
/// ```
/// use http_body_util::BodyExt;
///
/// async fn text(response: http::Response<tollgate::Body>) -> Option<String> {
///     let whole = response.into_body().collect().await.ok()?;
///     String::from_utf8(whole.to_bytes().into()).ok()
/// }
/// ```
pub struct Body {
    inner: Inner,
    /// What it says, where it is a refusal: somebody further out may say it in other words.
    problem: Option<Box<Problem>>,
    guard: Option<Box<dyn Send>>,
    /// What the last part of a whole body is followed by.
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Inner {
    /// Handed out part by part: a connection that takes all of it at once counts as idle while megabytes
    /// are still to be written.
    Whole(Bytes),
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    pub fn empty() -> Self {
        Self::from(Bytes::new())
    }

    #[doc(hidden)]
    pub fn stream<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self::new(Inner::Stream(body.map_err(Into::into).boxed_unsync()))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_guard(mut self, guard: impl Send + 'static) -> Self {
        self.guard = Some(match self.guard.take() {
            Some(earlier) => Box::new((earlier, guard)),
            None => Box::new(guard),
        });
        self
    }

    /// Does this when the connection has taken the last part of a whole body, shortly before that is written.
    /// The body is handed out in parts, and the connection asks for more as the client takes them, so the end is
    /// not reached long before the client is there; what the system buffers cannot be seen.
    #[doc(hidden)]
    #[must_use]
    pub fn on_end(mut self, then: impl FnOnce() + Send + 'static) -> Self {
        self.on_end = Some(Box::new(then));
        self
    }

    #[doc(hidden)]
    pub fn whole(&self) -> Option<Bytes> {
        match &self.inner {
            Inner::Whole(rest) => Some(rest.clone()),
            Inner::Stream(_) => None,
        }
    }

    #[doc(hidden)]
    pub fn problem(&self) -> Option<&Problem> {
        self.problem.as_deref()
    }

    fn new(inner: Inner) -> Self {
        Self { inner, problem: None, guard: None, on_end: None }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::new(Inner::Whole(bytes))
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match &mut this.inner {
            Inner::Whole(rest) => {
                let part = rest.split_to(rest.len().min(CHUNK_SIZE));
                if rest.is_empty()
                    && let Some(then) = this.on_end.take()
                {
                    then();
                }
                Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
            }
            Inner::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Whole(rest) => rest.is_empty(),
            Inner::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Whole(rest) => SizeHint::with_exact(rest.len() as u64),
            Inner::Stream(body) => body.size_hint(),
        }
    }
}

pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // What tollgate serialises are its own plain structs, for which this cannot fail.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    with_headers(
        from_bytes(status, "application/json", bytes.into()),
        [(CACHE_CONTROL, "no-store")],
    )
}

pub fn from_bytes(status: StatusCode, media_type: &'static str, body: Bytes) -> Response {
    let mut answer = with_headers(Response::new(Body::from(body)), [(CONTENT_TYPE, media_type)]);
    *answer.status_mut() = status;
    answer
}

pub fn event_stream(answer: Response) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    with_headers(answer, headers)
}

pub fn from_problem(problem: Problem, request_id: &str) -> Response {
    let mut answer = problem.clone().into_response(request_id).map(Body::from);
    answer.body_mut().problem = Some(Box::new(problem));
    with_security_headers(answer)
}

/// The answer with what keeps a browser from making of it what no answer of the API is, whatever
/// the gateway put into it: a page, a script, a frame.
pub fn with_security_headers(answer: Response) -> Response {
    with_headers(answer, [(CONTENT_SECURITY_POLICY, API_CSP), (X_CONTENT_TYPE_OPTIONS, "nosniff")])
}

pub fn with_headers<const N: usize>(
    mut answer: Response,
    headers: [(HeaderName, &'static str); N],
) -> Response {
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
