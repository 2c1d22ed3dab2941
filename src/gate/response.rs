//! Responses with a buffered or streamed body.

use std::fmt;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use serde::Serialize;

use crate::gate::problem::{ATTEMPT_SUPERSEDED, Problem, SHOULD_RETRY, is_retried_by_sdks};

/// The Content-Security-Policy of everything except the page.
const API_CSP: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox",
);

/// Lets pages of any origin load and read a response.
pub const CROSS_ORIGIN_HEADERS: [(HeaderName, &str); 2] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    (HeaderName::from_static("cross-origin-resource-policy"), "cross-origin"),
];

/// Where the time of a request went, for a browser's developer tools.
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Adds metrics to the [`SERVER_TIMING`] of a response, in milliseconds.
pub fn add_timing<const N: usize>(response: &mut Response, metrics: [(&str, Duration); N]) {
    // On the stack, because each purchase has it.
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    let known = response.headers().get(SERVER_TIMING).and_then(|known| known.to_str().ok());
    let mut separator = if known.is_some() { ", " } else { "" };
    let mut written = rest.write_all(known.unwrap_or_default().as_bytes());
    for (name, duration) in metrics {
        let micros = duration.as_micros();
        let (whole, fraction) = (micros / 1_000, micros % 1_000);
        written = written.and(write!(rest, "{separator}{name};dur={whole}.{fraction:03}"));
        separator = ", ";
    }
    let length = 160 - rest.len();
    if let (Ok(()), Ok(value)) = (written, HeaderValue::from_bytes(&line[..length])) {
        response.headers_mut().insert(SERVER_TIMING, value);
    }
}

pub type Response = http::Response<Body>;
pub type HandlerResult = Result<Response, Problem>;
/// An error of a streamed body, which closes the connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

const CHUNK_SIZE: usize = 16 * 1_024;
/// The answer to a purchase has thirteen headers.
pub(crate) const EXPECTED_HEADERS: usize = 14;

/// The body of a response: an `http_body::Body` of `bytes::Bytes`, buffered or streamed.
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
    guard: Option<Box<dyn Send>>,
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Inner {
    /// Returned in chunks: the idle timeout starts when the connection has taken the last one.
    Whole(Bytes),
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
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

    /// Calls `then` when the connection has taken the last chunk of a buffered body.
    ///
    /// The connection takes chunks as the client reads, so only the socket buffer may be unsent.
    #[doc(hidden)]
    #[must_use]
    pub fn on_end(mut self, then: impl FnOnce() + Send + 'static) -> Self {
        self.on_end = Some(Box::new(then));
        self
    }

    /// Returns what [`on_end`](Self::on_end) was given, and no longer calls it.
    #[doc(hidden)]
    pub fn take_on_end(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        self.on_end.take()
    }

    #[doc(hidden)]
    pub fn whole(&self) -> Option<Bytes> {
        match &self.inner {
            Inner::Whole(rest) => Some(rest.clone()),
            Inner::Stream(_) => None,
        }
    }

    fn new(inner: Inner) -> Self {
        Self { inner, guard: None, on_end: None }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::new(Inner::Whole(bytes))
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::from(Bytes::new())
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
    // Serializing our own plain structs cannot fail.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let response = from_bytes(status, "application/json", bytes.into());
    with_headers(response, [(CACHE_CONTROL, "no-store")])
}

pub fn from_bytes(status: StatusCode, media_type: &'static str, body: Bytes) -> Response {
    // Allocated once for the headers of all layers.
    let headers = HeaderMap::with_capacity(EXPECTED_HEADERS);
    from_bytes_in(headers, status, media_type, body)
}

/// [`from_bytes`] in the memory of `headers`, whose entries are removed.
pub fn from_bytes_in(
    mut headers: HeaderMap,
    status: StatusCode,
    media_type: &'static str,
    body: Bytes,
) -> Response {
    headers.clear();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    with_headers(response, [(CONTENT_TYPE, media_type)])
}

pub fn event_stream(response: Response) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    with_headers(response, headers)
}

/// The problem is an extension of the response, so that outer layers can read it.
pub fn from_problem(problem: Problem, request_id: &str) -> Response {
    with_security_headers(problem.into_response(request_id).map(Body::from))
}

/// Keeps OpenAI's SDKs from retrying, unless they should.
pub fn with_retry_hint(response: Response) -> Response {
    let problem = response.extensions().get::<Problem>();
    let is_final = problem.is_some_and(|problem| problem.kind() == &ATTEMPT_SUPERSEDED);
    if is_retried_by_sdks(response.status()) && !is_final {
        return response;
    }
    with_headers(response, [(SHOULD_RETRY, "false")])
}

/// Keeps browsers from running the body as a page, script or frame, whatever the gateway sent.
pub fn with_security_headers(mut response: Response) -> Response {
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, API_CSP);
    with_headers(response, [(X_CONTENT_TYPE_OPTIONS, "nosniff")])
}

pub fn with_headers<const N: usize>(
    mut response: Response,
    headers: [(HeaderName, &'static str); N],
) -> Response {
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Writes one event. Some clients treat U+0085, U+2028 and U+2029 as line ends, so these are
/// escaped, which JSON strings allow.
pub fn write_event(text: &mut Vec<u8>, json: &[u8]) {
    let mut line = String::from_utf8_lossy(json);
    for end in ['\u{85}', '\u{2028}', '\u{2029}'] {
        if line.contains(end) {
            line = line.replace(end, &format!("\\u{:04x}", u32::from(end))).into();
        }
    }
    for part in ["data: ", &line, "\n\n"] {
        text.extend_from_slice(part.as_bytes());
    }
}
