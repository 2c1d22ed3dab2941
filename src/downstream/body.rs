//! Reads the payload: JSON only (and one form), of a bounded size, within a deadline.
//!
//! What the head tells (media type, length) is refused before the body is touched, so that a client
//! that asked `Expect: 100-continue` sends nothing in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::route::BodyKind;
use super::{Call, DownstreamConfig, sanitize};
use crate::problem::{
    MALFORMED_REQUEST, OVERLOADED, PAYLOAD_TOO_LARGE, Problem, REQUEST_TIMEOUT,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::response::BoxError;

const MAX_LOGIN_BODY: usize = 4_096;
/// When to come back if there is no memory for a payload.
const RETRY_DELAY: Duration = Duration::from_secs(5);

pub async fn read<B>(config: &DownstreamConfig, call: Call<B>) -> Result<Call, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let server = &config.server;
    let Call { id, caller, session: standing, transport: way, route, head, body } = call;
    let limit = match route.body {
        BodyKind::Nothing => None,
        BodyKind::ChatJson => Some(server.chat_body),
        BodyKind::VideoJson | BodyKind::VideoForm => Some(server.video_body),
        BodyKind::LoginJson => Some(MAX_LOGIN_BODY),
    };
    let body = match limit {
        None => Bytes::new(),
        Some(limit) => {
            if let Some(problem) = header_problem(&head.headers, limit, route.body) {
                return Err(problem);
            }
            // If the head does not tell the length, the body may be as long as the row allows.
            let length = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
            let length = length.unwrap_or(limit).min(limit);
            let taken = config.body_memory.try_acquire(length, server.max_body_memory).ok_or_else(
                || {
                    Problem::new(&OVERLOADED)
                    .detail(
                        "the bodies of other requests take all the memory that there is for them",
                    )
                    .retry_after(RETRY_DELAY)
                },
            )?;
            collect(body, limit, server.body_timeout, taken).await?
        }
    };
    Ok(Call { id, caller, session: standing, transport: way, route, head, body })
}

fn header_problem(headers: &HeaderMap, limit: usize, takes: BodyKind) -> Option<Problem> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (first, more) = (types.next(), types.next());
    let media_type = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let unsupported = |detail: String| Some(Problem::new(&UNSUPPORTED_MEDIA_TYPE).detail(detail));
    let is_form = takes == BodyKind::VideoForm && is_form(media_type);
    if more.is_some() || !(is_json(media_type) || is_form) {
        let detail = match (first, more) {
            (None, _) => "expected Content-Type: application/json, found none".to_owned(),
            (Some(_), Some(_)) => "expected one Content-Type, found several".to_owned(),
            (found, None) => {
                format!("expected Content-Type: application/json, found \"{}\"", sanitize(found))
            }
        };
        return unsupported(detail);
    }
    // Any page of the web can send a form unasked, but not with this header.
    if is_form && !headers.contains_key(AUTHORIZATION) {
        let detail = "a form is taken with an Authorization header only, whatever is in it";
        return unsupported(detail.to_owned());
    }
    let plain = |coding: &http::HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return unsupported("send the body without Content-Encoding".to_owned());
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

async fn collect<B>(
    body: B,
    limit: usize,
    timeout: Duration,
    taken: BodyPermit,
) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let whole = tokio::time::timeout(timeout, Limited::new(body, limit).collect());
    match whole.await {
        Ok(Ok(collected)) => Ok(taken.guard(collected.to_bytes())),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Ok(Err(_broken)) => Err(Problem::new(&MALFORMED_REQUEST)
            .detail("the body ended early, or its chunks are malformed")),
        Err(_elapsed) => Err(Problem::new(&REQUEST_TIMEOUT)),
    }
}

fn too_large(limit: usize) -> Problem {
    Problem::new(&PAYLOAD_TOO_LARGE).detail(format!("at most {limit} bytes here"))
}

/// The bytes that payloads may have now, shared by every core. It outlives a change of settings.
#[derive(Debug, Default)]
pub struct BodyMemory {
    used: AtomicUsize,
}

impl BodyMemory {
    fn try_acquire(self: &Arc<Self>, bytes: usize, max: usize) -> Option<BodyPermit> {
        let more = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.used.fetch_update(order.0, order.1, more).ok()?;
        Some(BodyPermit { memory: Arc::clone(self), bytes, payload: Bytes::new() })
    }
}

#[derive(Debug)]
struct BodyPermit {
    memory: Arc<BodyMemory>,
    bytes: usize,
    payload: Bytes,
}

impl BodyPermit {
    /// The payload, which gives the memory back with its last copy.
    fn guard(mut self, payload: Bytes) -> Bytes {
        self.payload = payload;
        Bytes::from_owner(self)
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl AsRef<[u8]> for BodyPermit {
    fn as_ref(&self) -> &[u8] {
        &self.payload
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
            header_problem(&headers.collect(), 100, takes).map(|problem| problem.kind().code)
        };
        let form = (CONTENT_TYPE, "Multipart/Form-Data; boundary=x");
        let token = (AUTHORIZATION, "Bearer x");
        let both = [form.clone(), token];
        assert_eq!(fault(&both, BodyKind::VideoForm), None);
        assert_eq!(fault(&[form], BodyKind::VideoForm), Some("unsupported_media_type"));
        for takes in [BodyKind::VideoJson, BodyKind::ChatJson] {
            assert_eq!(fault(&both, takes), Some("unsupported_media_type"));
        }
        let json = [(CONTENT_TYPE, "application/json")];
        assert_eq!(fault(&json, BodyKind::VideoForm), None);
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

    #[test]
    fn memory_is_given_back_with_the_last_copy_of_the_payload() {
        let memory = Arc::new(BodyMemory::default());
        let first = memory.try_acquire(6, 10).unwrap();
        assert!(memory.try_acquire(5, 10).is_none());
        assert!(memory.try_acquire(usize::MAX, 10).is_none());
        let second = memory.try_acquire(4, 10).unwrap();
        drop(second);
        let payload = first.guard(Bytes::from_static(b"hello"));
        let (start, copy) = (payload.slice(..2), payload.clone());
        drop(payload);
        drop(copy);
        assert!(memory.try_acquire(5, 10).is_none(), "a part of it is still there");
        drop(start);
        assert!(memory.try_acquire(10, 10).is_some());
        assert_eq!(memory.used.load(Ordering::Acquire), 0);
    }
}
