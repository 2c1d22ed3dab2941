//! Sends each request to its endpoint: path, then method, then key and window, then the order.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW,
    CONTENT_TYPE, HOST, HeaderMap,
};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use crate::contract::wire::{API_KEYS, CHAT, VIDEO, VIDEO_STATUS};

use super::wire::{self, Answer, Reply, Stop};
use super::{Gateway, chat, clips, keys, video};

/// Paths under which any web origin may call (4, note 6).
const CROSS_ORIGIN: &str = "/api/v1/";
/// The largest body that is read. The contract shows none; a guess.
const LARGEST_BODY: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy)]
enum Endpoint {
    Chat,
    Video,
    Status,
    Keys,
}

const ENDPOINTS: &[(&str, Method, Endpoint)] = &[
    (CHAT, Method::POST, Endpoint::Chat),
    (VIDEO, Method::POST, Endpoint::Video),
    (VIDEO_STATUS, Method::GET, Endpoint::Status),
    (API_KEYS, Method::GET, Endpoint::Keys),
];

/// The answer to one request, or `None` when its connection is to be dropped.
pub(super) async fn answer(
    gateway: &Gateway,
    local: SocketAddr,
    request: Request<Incoming>,
) -> Option<Answer> {
    let (head, body) = request.into_parts();
    let is_cross_origin = head.uri.path().starts_with(CROSS_ORIGIN);
    let mut answer = match route(gateway, local, &head, body).await {
        Ok(answer) => answer,
        Err(Stop::Refused(answer)) => *answer,
        Err(Stop::Dropped) => return None,
    };
    if is_cross_origin {
        let any = HeaderValue::from_static("*");
        answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, any);
    }
    Some(answer)
}

async fn route(gateway: &Gateway, local: SocketAddr, head: &Parts, body: Incoming) -> Reply {
    // Read before any refusal: an early close with an unread body would lose the refusal.
    let body = read(gateway, body).await?;
    let path = head.uri.path();
    if path.starts_with(clips::FOLDER) {
        return match head.method {
            Method::GET | Method::HEAD => clips::send(path, &head.headers),
            _ => Err(bad_method("GET, HEAD")),
        };
    }
    gateway.requests.fetch_add(1, Ordering::Relaxed);
    let Some((_, method, endpoint)) = ENDPOINTS.iter().find(|(known, ..)| *known == path) else {
        return Err(wire::refuse(wire::NOT_FOUND, "There is no such endpoint"));
    };
    if head.method == Method::OPTIONS && path.starts_with(CROSS_ORIGIN) {
        return Ok(preflight(method));
    }
    if head.method != method {
        return Err(bad_method(method.as_str()));
    }
    keys::admit(gateway, &head.headers)?;
    if *method == Method::POST && !is_json(&head.headers) {
        return Err(wire::refuse(wire::NOT_JSON, "Send Content-Type: application/json"));
    }
    match endpoint {
        Endpoint::Chat => chat::answer(gateway, &body).await,
        Endpoint::Video => video::order(gateway, &body).await,
        Endpoint::Status => {
            let origin = origin(&head.headers, local);
            video::status(gateway, head.uri.query().unwrap_or_default(), &origin)
        }
        Endpoint::Keys => keys::list(gateway),
    }
}

async fn read(gateway: &Gateway, body: Incoming) -> Result<Bytes, Stop> {
    let whole = Limited::new(body, LARGEST_BODY).collect();
    match tokio::time::timeout(gateway.settings.idle, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(wire::refuse(wire::TOO_LARGE, "The body is too large"))
        }
        Ok(Err(_)) | Err(_) => Err(Stop::Dropped),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// Where the caller reached us: by the name it used, else by the socket's own address.
fn origin(headers: &HeaderMap, local: SocketAddr) -> String {
    let host = headers.get(HOST).and_then(|value| Authority::try_from(value.as_bytes()).ok());
    match host {
        Some(host) => format!("http://{host}"),
        None => format!("http://{local}"),
    }
}

fn bad_method(allowed: &str) -> Stop {
    let mut stop = wire::refuse(wire::BAD_METHOD, &format!("Use {allowed}"));
    if let (Stop::Refused(answer), Ok(allowed)) = (&mut stop, HeaderValue::from_str(allowed)) {
        answer.headers_mut().insert(ALLOW, allowed);
    }
    stop
}

fn preflight(method: &Method) -> Answer {
    let mut answer = wire::answer(StatusCode::NO_CONTENT, "text/plain", Bytes::new());
    answer.headers_mut().remove(CONTENT_TYPE);
    let allowed = HeaderValue::from_static("authorization, content-type");
    answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    if let Ok(method) = HeaderValue::from_str(method.as_str()) {
        answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_METHODS, method);
    }
    answer
}
