//! Reads the payload, within its size limit and deadline.
//!
//! Media type and length are checked before the first read, so a client that sent
//! `Expect: 100-continue` does not send a body that is refused.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::task::yield_now;

use super::observe::RequestScope;
use super::route::BodyKind;
use super::{Call, DownstreamConfig, sanitize};
use crate::config::MAX_PICTURE;
use crate::problem::{
    MALFORMED_REQUEST, OVERLOADED, PAYLOAD_TOO_LARGE, Problem, REQUEST_TIMEOUT,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::response::BoxError;

const MAX_LOGIN_BODY: usize = 4_096;
const MAX_ADMIN_BODY: usize = 16_384;
const PICTURE_TYPES: &[&str] = &["image/png", "image/jpeg", "image/webp"];
/// A refused body that is not larger is read, if it has arrived.
const MAX_DRAINED: u64 = 16 * 1_024;
/// In how many turns of its task the connection passes it on.
const DRAIN_TURNS: usize = 4;
/// The `Retry-After` when no memory is left for a payload.
const RETRY_DELAY: Duration = Duration::from_secs(5);

pub async fn read<B>(config: &DownstreamConfig, call: Call<B>) -> Result<Call, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let server = &config.server;
    let Call { id, caller, session, transport, route, head, body } = call;
    let limit = match route.body {
        BodyKind::Nothing => {
            let body = Bytes::new();
            return Ok(Call { id, caller, session, transport, route, head, body });
        }
        BodyKind::ChatJson => server.chat_body,
        BodyKind::VideoJson | BodyKind::VideoForm => server.video_body,
        BodyKind::LoginJson => MAX_LOGIN_BODY,
        BodyKind::AdminJson => MAX_ADMIN_BODY,
        BodyKind::Picture => MAX_PICTURE,
    };
    check_headers(&head.headers, limit, route.body)?;
    // A chunked body reserves as much as the route allows.
    let length = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    let length = length.unwrap_or(limit).min(limit);
    let permit = config.body_memory.try_acquire(length, server.max_body_memory);
    let permit = permit.ok_or_else(|| {
        Problem::new(&OVERLOADED)
            .detail("request bodies take up all of server.max_body_memory")
            .retry_after(RETRY_DELAY)
    })?;
    let body = permit.guard(collect(body, limit, server.body_timeout).await?);
    Ok(Call { id, caller, session, transport, route, head, body })
}

fn check_headers(headers: &HeaderMap, limit: usize, kind: BodyKind) -> Result<(), Problem> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (first, more) = (types.next(), types.next());
    let media_type = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let unsupported = |detail: String| Err(Problem::new(&UNSUPPORTED_MEDIA_TYPE).detail(detail));
    let is_form = kind == BodyKind::VideoForm && is_form(media_type);
    let (expected, is_expected) = if kind == BodyKind::Picture {
        ("image/png, image/jpeg or image/webp", PICTURE_TYPES.contains(&media_type))
    } else {
        ("application/json", is_json(media_type) || is_form)
    };
    if more.is_some() || !is_expected {
        let found = match (first, more) {
            (None, _) => "none".to_owned(),
            (Some(_), Some(_)) => "several".to_owned(),
            (found, None) => format!("\"{}\"", sanitize(found)),
        };
        return unsupported(format!("expected Content-Type: {expected}, found {found}"));
    }
    // Any web page can send a form without a preflight, but not with this header.
    if is_form && !headers.contains_key(AUTHORIZATION) {
        return unsupported("a form needs an Authorization header, with any value".to_owned());
    }
    let plain = |coding: &http::HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return unsupported("send the body without Content-Encoding".to_owned());
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|text| text.parse::<u64>().ok()) {
        Some(length) if length > limit as u64 => Err(too_large(limit)),
        Some(_) | None => Ok(()),
    }
}

/// Accepts `application/json` with no parameter other than `charset=utf-8`.
fn is_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    essence.eq_ignore_ascii_case("application/json")
        && parts.all(|parameter| {
            let parameter = parameter.to_ascii_lowercase();
            matches!(parameter.as_str(), "" | "charset=utf-8" | "charset=\"utf-8\"")
        })
}

fn is_form(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("multipart/form-data")
}

async fn collect<B>(body: B, limit: usize, timeout: Duration) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    match tokio::time::timeout(timeout, read_all(Limited::new(body, limit))).await {
        Ok(Ok(payload)) => Ok(payload),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Ok(Err(_broken)) => Err(Problem::new(&MALFORMED_REQUEST)
            .detail("the body ended early, or its chunks are malformed")),
        Err(_elapsed) => Err(Problem::new(&REQUEST_TIMEOUT)),
    }
}

/// Returns an admitted call. If a call is refused, reads its body if that is small and has arrived,
/// so that the connection can stay open.
pub async fn drain_refused<B>(
    scope: &RequestScope,
    call: Call<B>,
    admitted: Result<(), Problem>,
) -> Result<Call<B>, Problem>
where
    B: http_body::Body<Data = Bytes>,
{
    let Err(refusal) = admitted else { return Ok(call) };
    if drain_arrived(call).await {
        scope.mark_body_read();
    }
    Err(refusal)
}

/// Returns whether the body was read to its end.
async fn drain_arrived<B>(call: Call<B>) -> bool
where
    B: http_body::Body<Data = Bytes>,
{
    let is_small = call.body.size_hint().exact().is_some_and(|bytes| bytes <= MAX_DRAINED);
    // hyper would ask for the body with `100 Continue`.
    if !is_small || call.head.headers.contains_key(EXPECT) {
        return false;
    }
    let mut body = pin!(call.body);
    for _ in 0..DRAIN_TURNS {
        let ended = match body.frame().now_or_never() {
            Some(None) => Some(true),
            Some(Some(Err(_broken))) => Some(false),
            Some(Some(Ok(_part))) => body.is_end_stream().then_some(true),
            None => None,
        };
        if let Some(is_read) = ended {
            return is_read;
        }
        yield_now().await;
    }
    false
}

/// Copies only a payload that arrives in several parts.
async fn read_all<B>(body: B) -> Result<Bytes, B::Error>
where
    B: http_body::Body<Data = Bytes>,
{
    let (mut body, mut first, mut all) = (pin!(body), Bytes::new(), BytesMut::new());
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or_default();
    while let Some(frame) = body.frame().await.transpose()? {
        let Ok(part) = frame.into_data() else { continue };
        if first.is_empty() {
            first = part;
            continue;
        }
        if all.is_empty() {
            all.reserve(expected);
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&part);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

fn too_large(limit: usize) -> Problem {
    Problem::new(&PAYLOAD_TOO_LARGE).detail(format!("expected a body of at most {limit} bytes"))
}

/// The memory in use by payloads, shared by all cores. It outlives a reload.
#[derive(Debug, Default)]
pub struct BodyMemory {
    used: AtomicUsize,
}

impl BodyMemory {
    fn try_acquire(self: &Arc<Self>, bytes: usize, max: usize) -> Option<BodyPermit> {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
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
    /// Returns the payload, whose last copy releases the memory.
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
    fn form_needs_a_video_route_and_authorization() {
        let problem_code = |pairs: &[(http::HeaderName, &'static str)], kind| {
            let pairs = pairs.iter().cloned();
            let headers = pairs.map(|(name, value)| (name, http::HeaderValue::from_static(value)));
            check_headers(&headers.collect(), 100, kind).err().map(|problem| problem.kind().code)
        };
        let form = (CONTENT_TYPE, "Multipart/Form-Data; boundary=x");
        let token = (AUTHORIZATION, "Bearer x");
        let both = [form.clone(), token];
        assert_eq!(problem_code(&both, BodyKind::VideoForm), None);
        assert_eq!(problem_code(&[form], BodyKind::VideoForm), Some("unsupported_media_type"));
        for kind in [BodyKind::VideoJson, BodyKind::ChatJson] {
            assert_eq!(problem_code(&both, kind), Some("unsupported_media_type"));
        }
        let json = [(CONTENT_TYPE, "application/json")];
        assert_eq!(problem_code(&json, BodyKind::VideoForm), None);
    }

    #[test]
    fn picture_needs_its_own_media_type() {
        let code = |media_type| {
            let headers = [(CONTENT_TYPE, http::HeaderValue::from_static(media_type))];
            let refused = check_headers(&headers.into_iter().collect(), 100, BodyKind::Picture);
            refused.err().map(|problem| problem.kind().code)
        };
        for media_type in PICTURE_TYPES {
            assert_eq!(code(media_type), None, "{media_type}");
        }
        for media_type in ["image/svg+xml", "image/gif", "application/json", "text/plain", ""] {
            assert_eq!(code(media_type), Some("unsupported_media_type"), "{media_type}");
        }
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
    fn memory_is_released_with_last_copy_of_payload() {
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
