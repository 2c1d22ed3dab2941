//! Reads the payload, within its size limit and deadline.
//!
//! Media type and length are checked before the first read, so a client that sent
//! `Expect: 100-continue` does not send a body that is refused.

use std::error::Error;
use std::mem;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use super::memory::{self, BodyPermit};
use super::observe::RequestScope;
use super::rate::Refused;
use super::route::{BodyKind, Class};
use super::{Call, DownstreamConfig, sanitize};
use crate::config::MAX_PICTURE;
use crate::gate::problem::{
    MALFORMED_REQUEST, OVERLOADED, PAYLOAD_TOO_LARGE, Problem, REQUEST_TIMEOUT,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::gate::response::BoxError;
use crate::ledger::Caller;

const FORM: &str = "multipart/form-data";
const MAX_LOGIN_BODY: usize = 4_096;
const MAX_ADMIN_BODY: usize = 16_384;
const PICTURE_TYPES: &[&str] = &["image/png", "image/jpeg", "image/webp"];
/// A refused body that is not larger is read, if it arrives within this time.
const MAX_DRAINED: usize = 16 * 1_024;
const MAX_DRAIN_TIME: Duration = Duration::from_secs(1);

pub async fn read<B>(config: &DownstreamConfig, call: Call<B>) -> Result<Call, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let server = &config.server;
    let Call { id, caller, session, transport, route, mut head, body } = call;
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
    memory::drop_unread(&mut head);
    let length = body.size_hint().exact();
    let mut permit = config.memory.body(server.max_body_memory, &caller, (limit, length));
    let reading = collect(body, limit, &mut permit);
    let payload = timeout(server.body_timeout, reading).await;
    let payload = payload.unwrap_or_else(|_elapsed| Err(Problem::new(&REQUEST_TIMEOUT)));
    let payload = payload.inspect_err(|problem| {
        // SDKs retry these.
        if route.class == Class::Paid && [&REQUEST_TIMEOUT, &OVERLOADED].contains(&problem.kind()) {
            config.limiter.note_refusal(&caller, &head, Refused::Unread(length));
        }
    })?;
    let body = permit.guard(payload);
    Ok(Call { id, caller, session, transport, route, head, body })
}

fn check_headers(headers: &HeaderMap, limit: usize, kind: BodyKind) -> Result<(), Problem> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (first, more) = (types.next(), types.next());
    let media_type = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let unsupported = |detail: String| Err(Problem::new(&UNSUPPORTED_MEDIA_TYPE).detail(detail));
    let is_form = kind == BodyKind::VideoForm && is(media_type, FORM);
    let (expected, is_expected) = if kind == BodyKind::Picture {
        (
            "image/png, image/jpeg or image/webp",
            PICTURE_TYPES.iter().any(|kind| is(media_type, kind)),
        )
    } else {
        ("application/json", is(media_type, "application/json") || is_form)
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

/// Compares media types without parameters, which JSON (RFC 8259, 11) and pictures do not have.
fn is(media_type: &str, essence: &str) -> bool {
    media_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(essence)
}

fn has_form(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.is_some_and(|media_type| is(media_type, FORM))
}

/// Copies only a payload that arrives in several parts, into memory that grows with them.
async fn collect<B>(body: B, limit: usize, permit: &mut BodyPermit) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let expected = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    let expected = expected.unwrap_or(limit).min(limit);
    let mut body = pin!(Limited::new(body, limit));
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreadable(&*error, limit))?;
        let Ok(part) = frame.into_data() else { continue };
        if all.is_empty() && first.is_empty() {
            permit.grow(part.len())?;
            first = part;
            continue;
        }
        let (held, needed) =
            (all.capacity().max(first.len()), all.len() + first.len() + part.len());
        if needed > held {
            let capacity = (2 * held).min(expected).max(needed);
            permit.grow(capacity - held)?;
            all.reserve_exact(capacity - all.len());
        }
        all.extend_from_slice(&mem::take(&mut first));
        all.extend_from_slice(&part);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Returns an admitted call. If a call is refused, reads its body if that is small and arrives soon, so
/// that the connection can stay open, and a purchase is remembered as refused.
pub async fn drain_refused<B>(
    config: &DownstreamConfig,
    scope: &RequestScope,
    mut call: Call<B>,
    admitted: Result<(), Problem>,
) -> Result<Call<B>, Problem>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let Err(refusal) = admitted else { return Ok(call) };
    let length = call.body.size_hint().exact();
    let payload = drain(config, &call.caller, &mut call.head, call.body).await;
    if payload.is_some() {
        scope.mark_body_read();
    }
    if call.route.class == Class::Paid {
        // Each attempt separates the parts of a form by another boundary.
        let payload = payload.as_deref().filter(|_| !has_form(&call.head.headers));
        let refused = payload.map_or(Refused::Unread(length), Refused::Payload);
        config.limiter.note_refusal(&call.caller, &call.head, refused);
    }
    Err(refusal)
}

/// Returns the body if it was read to its end.
async fn drain<B>(
    config: &DownstreamConfig,
    caller: &Caller,
    head: &mut Parts,
    body: B,
) -> Option<Bytes>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let length = body.size_hint().exact().filter(|length| *length <= MAX_DRAINED as u64)?;
    // hyper would ask for the body with `100 Continue`.
    if head.headers.contains_key(EXPECT) {
        return None;
    }
    memory::drop_unread(head);
    let all = config.server.max_body_memory;
    let mut permit = config.memory.body(all, caller, (MAX_DRAINED, Some(length)));
    let reading = collect(body, MAX_DRAINED, &mut permit);
    timeout(MAX_DRAIN_TIME, reading).await.ok()?.ok()
}

fn unreadable(error: &(dyn Error + 'static), limit: usize) -> Problem {
    if error.is::<LengthLimitError>() {
        return too_large(limit);
    }
    Problem::new(&MALFORMED_REQUEST).detail("the body ended early, or its chunks are malformed")
}

fn too_large(limit: usize) -> Problem {
    Problem::new(&PAYLOAD_TOO_LARGE).detail(format!("expected a body of at most {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

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
    fn parameters_of_json_are_ignored() {
        for (media_type, is) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;", true),
            ("application/json; charset=utf-16", true),
            ("application/json;odata.metadata=minimal; q=\"a;b\"", true),
            ("application/json, text/plain", false),
            ("application/problem+json", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(super::is(media_type, "application/json"), is, "{media_type}");
        }
    }

    #[tokio::test]
    async fn body_holds_memory_for_what_has_arrived() {
        let memory = memory::RequestMemory::default();
        let caller = Caller::Member("ann".into());
        let mut permit = memory.body(1 << 20, &caller, (100_000, None));
        let (parts, received) = tokio::sync::mpsc::channel::<Result<_, std::io::Error>>(1);
        let stream = futures_util::stream::unfold(received, |mut received| async {
            Some((received.recv().await?, received))
        });
        let body = http_body_util::StreamBody::new(stream);
        let mut reading = Box::pin(collect(body, 100_000, &mut permit));
        let mut sizes = vec![];
        for _ in 0..10 {
            parts.send(Ok(http_body::Frame::data(Bytes::from(vec![b'x'; 9_000])))).await.unwrap();
            assert!(reading.as_mut().now_or_never().is_none());
            sizes.push(memory.used());
        }
        let (first, doubled, most) = (9_000, 72_000, 100_000);
        let grown = [18_000, 36_000, 36_000, doubled, doubled, doubled, doubled, most, most];
        assert_eq!(sizes[0], first);
        assert_eq!(sizes[1..], grown);
        drop(parts);
        let payload = reading.as_mut().await.unwrap();
        drop(reading);
        let payload = permit.guard(payload);
        assert_eq!((payload.len(), memory.used()), (90_000, most));
        drop(payload);
        assert_eq!(memory.used(), 0);
    }
}
