//! Reads the payload: JSON only (and one form), of a bounded size, within a deadline.
//!
//! What the head tells (media type, length) is refused before the body is touched, so that a client
//! that asked `Expect: 100-continue` sends nothing in vain.

mod memory;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use self::memory::Taken;
use super::route::Takes;
use super::{Call, refuse, shown};
use crate::answer::{Answer, BoxError};
use crate::config;
use crate::problem::{
    MALFORMED_REQUEST, OVERLOADED, PAYLOAD_TOO_LARGE, Problem, REQUEST_TIMEOUT,
    UNSUPPORTED_MEDIA_TYPE,
};

pub use self::memory::Memory;

/// Bytes of a login: a token and what is around it.
const LOGIN: usize = 4_096;
/// When to come back if there is no memory for a payload.
const COME_BACK: Duration = Duration::from_secs(5);

/// How large a payload may be and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a chat.
    pub chat: usize,
    /// Bytes of a video request.
    pub video: usize,
    /// Bytes of all payloads that are in memory.
    pub memory: usize,
    /// From the head to the last byte.
    pub timeout: Duration,
}

impl From<&config::Server> for Limits {
    fn from(server: &config::Server) -> Self {
        Self {
            chat: server.chat_body,
            video: server.video_body,
            memory: server.max_body_memory,
            timeout: server.body_timeout,
        }
    }
}

impl Limits {
    fn bytes(&self, takes: Takes) -> Option<usize> {
        match takes {
            Takes::Nothing => None,
            Takes::ChatJson => Some(self.chat),
            Takes::VideoJson | Takes::VideoForm => Some(self.video),
            Takes::LoginJson => Some(LOGIN),
        }
    }
}

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct ReadBody<S> {
    inner: S,
    limits: Limits,
    memory: Arc<Memory>,
}

/// Reads what the call's row takes, as long as there is `memory` for it.
pub fn layer<S>(
    limits: Limits,
    memory: Arc<Memory>,
) -> impl Layer<S, Service = ReadBody<S>> + Clone {
    layer_fn(move |inner| ReadBody { inner, limits, memory: Arc::clone(&memory) })
}

type Read = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

impl<S, B> Service<Call<B>> for ReadBody<S>
where
    S: Service<Call<Bytes>, Response = Answer, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Either<S::Future, Read>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: Call<B>) -> Self::Future {
        let Call { id, caller, standing, way, route, head, body } = call;
        let Some(limit) = self.limits.bytes(route.takes) else {
            return Either::Left(self.inner.call(Call {
                id,
                caller,
                standing,
                way,
                route,
                head,
                body: Bytes::new(),
            }));
        };
        // Take the service that was polled ready, and leave its clone behind.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let (limits, memory) = (self.limits, Arc::clone(&self.memory));
        Either::Right(Box::pin(async move {
            if let Some(problem) = fault_of_head(&head.headers, limit, route.takes) {
                return Ok(refuse(problem, &head.headers, &body));
            }
            // Where the head does not tell the length, it may be as long as the row allows.
            let length = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
            let Some(taken) = memory.take(length.unwrap_or(limit).min(limit), limits.memory) else {
                return Ok(refuse(no_memory(), &head.headers, &body));
            };
            match read(body, limit, limits.timeout, taken).await {
                Ok(body) => inner.call(Call { id, caller, standing, way, route, head, body }).await,
                // What is left of the body was dropped with it: say so like for an unread one.
                Err(problem) => Ok(refuse(problem, &head.headers, &Unread)),
            }
        }))
    }
}

fn fault_of_head(headers: &HeaderMap, limit: usize, takes: Takes) -> Option<Problem> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (first, more) = (types.next(), types.next());
    let media_type = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_form = takes == Takes::VideoForm && is_form(media_type);
    if more.is_some() || !(is_json(media_type) || is_form) {
        let detail = match (first, more) {
            (None, _) => "expected Content-Type: application/json, found none".to_owned(),
            (Some(_), Some(_)) => "expected one Content-Type, found several".to_owned(),
            (found, None) => {
                format!("expected Content-Type: application/json, found \"{}\"", shown(found))
            }
        };
        return Some(Problem::new(&UNSUPPORTED_MEDIA_TYPE).detail(detail));
    }
    // Any page of the web can send a form unasked, but not with this header.
    if is_form && !headers.contains_key(AUTHORIZATION) {
        return Some(
            Problem::new(&UNSUPPORTED_MEDIA_TYPE)
                .detail("a form is taken with an Authorization header only, whatever is in it"),
        );
    }
    let plain = |coding: &http::HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Some(
            Problem::new(&UNSUPPORTED_MEDIA_TYPE).detail("send the body without Content-Encoding"),
        );
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|text| text.parse::<u64>().ok());
    length.is_some_and(|length| length > limit as u64).then(|| too_large(limit))
}

/// `application/json`, with no parameter but `charset=utf-8`.
fn is_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    essence.eq_ignore_ascii_case("application/json")
        && parts.all(|parameter| {
            let parameter = parameter.to_ascii_lowercase();
            matches!(parameter.as_str(), "" | "charset=utf-8" | "charset=\"utf-8\"")
        })
}

/// `multipart/form-data`; its boundary is looked for where the form is read.
fn is_form(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("multipart/form-data")
}

async fn read<B>(body: B, limit: usize, timeout: Duration, taken: Taken) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let whole = tokio::time::timeout(timeout, Limited::new(body, limit).collect());
    match whole.await {
        Ok(Ok(collected)) => Ok(taken.holding(collected.to_bytes())),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Ok(Err(_broken)) => Err(Problem::new(&MALFORMED_REQUEST)
            .detail("the body ended early, or its chunks are malformed")),
        Err(_elapsed) => Err(Problem::new(&REQUEST_TIMEOUT)),
    }
}

fn too_large(limit: usize) -> Problem {
    Problem::new(&PAYLOAD_TOO_LARGE).detail(format!("at most {limit} bytes here"))
}

fn no_memory() -> Problem {
    Problem::new(&OVERLOADED)
        .detail("the bodies of other requests take all the memory that there is for them")
        .retry_after(COME_BACK)
}

/// Stands for a body that was not read to its end.
struct Unread;

impl http_body::Body for Unread {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_taken_where_it_belongs_and_with_authorization_only() {
        let fault = |pairs: &[(http::HeaderName, &'static str)], takes| {
            let pairs = pairs.iter().cloned();
            let headers = pairs.map(|(name, value)| (name, http::HeaderValue::from_static(value)));
            fault_of_head(&headers.collect(), 100, takes).map(|problem| problem.kind().code)
        };
        let form = (CONTENT_TYPE, "Multipart/Form-Data; boundary=x");
        let token = (AUTHORIZATION, "Bearer x");
        let both = [form.clone(), token];
        assert_eq!(fault(&both, Takes::VideoForm), None);
        assert_eq!(fault(&[form], Takes::VideoForm), Some("unsupported_media_type"));
        for takes in [Takes::VideoJson, Takes::ChatJson] {
            assert_eq!(fault(&both, takes), Some("unsupported_media_type"));
        }
        let json = [(CONTENT_TYPE, "application/json")];
        assert_eq!(fault(&json, Takes::VideoForm), None);
    }

    #[test]
    fn only_json_in_utf8_is_json() {
        for (media_type, is) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;", true),
            ("application/json; charset=utf-16", false),
            ("application/json, text/plain", false),
            ("application/problem+json", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(is_json(media_type), is, "{media_type}");
        }
    }
}
