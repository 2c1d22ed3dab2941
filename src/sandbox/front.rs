//! The sandbox's side of HTTP: its sockets, its endpoints (path, then method, then key and rate limit, then
//! the order), and how its answers and refusals look.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW,
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, RETRY_AFTER,
};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Gateway, account, chat, video};
use crate::clock;
use crate::contract::wire;

/// How long to wait when no connection can be accepted, for example for want of descriptors.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Tells hyper to close a connection without a reply.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox dropped the connection")]
struct Dropped;

/// Serves until `shutdown`; open connections end with it, whatever they wait for.
pub(super) async fn serve(
    gateway: Arc<Gateway>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = std::pin::pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(gateway.clone(), stream));
                }
                Err(_) => tokio::time::sleep(BACK_OFF).await,
            },
        }
    }
    connections.shutdown().await;
}

async fn converse(gateway: Arc<Gateway>, stream: TcpStream) {
    let Ok(local) = stream.local_addr() else { return };
    // Replies are small and awaited; a refused option costs some milliseconds, no more.
    let _ = stream.set_nodelay(true);
    let idle = gateway.settings.idle;
    let service = service_fn(move |request| {
        let gateway = gateway.clone();
        async move { serve_one(&gateway, local, request).await }
    });
    // hyper's header timeout also runs while a connection waits for its next request. A connection
    // that ends in an error has told its client all that there is to tell.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

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
    (wire::CHAT, Method::POST, Endpoint::Chat),
    (wire::VIDEO, Method::POST, Endpoint::Video),
    (wire::VIDEO_STATUS, Method::GET, Endpoint::Status),
    (wire::API_KEYS, Method::GET, Endpoint::Keys),
];

async fn serve_one(
    gateway: &Gateway,
    local: SocketAddr,
    request: Request<Incoming>,
) -> Result<Answer, Dropped> {
    let (head, body) = request.into_parts();
    let is_cross_origin = head.uri.path().starts_with(CROSS_ORIGIN);
    let mut answer = match route(gateway, local, &head, body).await {
        Ok(answer) => answer,
        Err(Stop::Refused(answer)) => *answer,
        Err(Stop::Dropped) => return Err(Dropped),
    };
    if is_cross_origin {
        let any = HeaderValue::from_static("*");
        answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, any);
    }
    Ok(answer)
}

async fn route(gateway: &Gateway, local: SocketAddr, head: &Parts, body: Incoming) -> Reply {
    // Read before any refusal: an early close with an unread body would lose the refusal.
    let body = read(gateway, body).await?;
    let path = head.uri.path();
    if path.starts_with(video::CLIP_FOLDER) {
        return match head.method {
            Method::GET | Method::HEAD => video::clip(path, &head.headers),
            _ => Err(bad_method("GET, HEAD")),
        };
    }
    gateway.requests.fetch_add(1, Ordering::Relaxed);
    let Some((_, method, endpoint)) = ENDPOINTS.iter().find(|(known, ..)| *known == path) else {
        return Err(refuse(NOT_FOUND, "There is no such endpoint"));
    };
    if head.method == Method::OPTIONS && path.starts_with(CROSS_ORIGIN) {
        return Ok(preflight(method));
    }
    if head.method != method {
        return Err(bad_method(method.as_str()));
    }
    admit(gateway, &head.headers)?;
    if *method == Method::POST && !is_json(&head.headers) {
        return Err(refuse(NOT_JSON, "Send Content-Type: application/json"));
    }
    match endpoint {
        Endpoint::Chat => chat::answer(gateway, &body).await,
        Endpoint::Video => video::order(gateway, &body).await,
        Endpoint::Status => {
            let origin = origin(&head.headers, local);
            video::status(gateway, head.uri.query().unwrap_or_default(), &origin)
        }
        Endpoint::Keys => account::list(gateway),
    }
}

/// Checks the key (5) and takes a place in the account's rate limit.
fn admit(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Stop> {
    let bearer = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, key)) = bearer else {
        return Err(refuse(NO_KEY, "Send Authorization: Bearer with an API key"));
    };
    gateway.account.admit(key.trim())
}

async fn read(gateway: &Gateway, body: Incoming) -> Result<Bytes, Stop> {
    let whole = Limited::new(body, LARGEST_BODY).collect();
    match tokio::time::timeout(gateway.settings.idle, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(refuse(TOO_LARGE, "The body is too large"))
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
    host.map_or_else(|| format!("http://{local}"), |host| format!("http://{host}"))
}

fn bad_method(allowed: &str) -> Stop {
    refuse_with(BAD_METHOD, &format!("Use {allowed}"), ALLOW, allowed)
}

fn preflight(method: &Method) -> Answer {
    let mut answer = answer(StatusCode::NO_CONTENT, "text/plain", Bytes::new());
    answer.headers_mut().remove(CONTENT_TYPE);
    let allowed = HeaderValue::from_static("authorization, content-type");
    answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    if let Ok(method) = HeaderValue::from_str(method.as_str()) {
        answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_METHODS, method);
    }
    answer
}

pub(super) type Answer = Response<Full<Bytes>>;
/// An answer, or why there is none of the usual kind.
pub(super) type Reply = Result<Answer, Stop>;

#[derive(Debug)]
pub(super) enum Stop {
    /// It is refused, uncharged.
    Refused(Box<Answer>),
    /// The connection is closed without a reply.
    Dropped,
}

/// A kind of refusal. Only the two of 401 are the contract's (7); it shows no other error, so the
/// rest are guesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal(StatusCode, &'static str);

pub(super) const NO_KEY: Refusal = Refusal(StatusCode::UNAUTHORIZED, wire::MISSING_API_KEY);
pub(super) const BAD_KEY: Refusal = Refusal(StatusCode::UNAUTHORIZED, wire::INVALID_API_KEY);
pub(super) const INVALID: Refusal = Refusal(StatusCode::BAD_REQUEST, "invalid_request");
pub(super) const NO_CREDIT: Refusal = Refusal(StatusCode::PAYMENT_REQUIRED, "insufficient_credits");
pub(super) const NOT_FOUND: Refusal = Refusal(StatusCode::NOT_FOUND, "not_found");
pub(super) const BAD_METHOD: Refusal =
    Refusal(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
pub(super) const TOO_LARGE: Refusal = Refusal(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large");
pub(super) const NOT_JSON: Refusal =
    Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");
const LIMITED: Refusal = Refusal(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded");

pub(super) fn json(body: &impl Serialize) -> Answer {
    json_with(StatusCode::OK, body)
}

fn json_with(status: StatusCode, body: &impl Serialize) -> Answer {
    // Plain structs of strings and numbers, for which this cannot fail.
    answer(status, "application/json", serde_json::to_vec(body).unwrap_or_default().into())
}

pub(super) fn answer(status: StatusCode, media_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}

/// A refusal, with what is particular to this request. "Shape of the error body: not shown" (7). Guess:
/// these two fields.
pub(super) fn refuse(Refusal(status, error): Refusal, message: &str) -> Stop {
    let body = json!({ "error": error, "message": message });
    Stop::Refused(Box::new(json_with(status, &body)))
}

/// The refusal of a full window. Guess: a 429 that says when to return, in whole seconds.
pub(super) fn limited(wait: Duration) -> Stop {
    let whole = clock::whole_seconds(wait).max(1);
    let message = format!("Too many requests: try again in {whole} s");
    refuse_with(LIMITED, &message, RETRY_AFTER, &whole.to_string())
}

fn refuse_with(refusal: Refusal, message: &str, name: HeaderName, value: &str) -> Stop {
    let mut stop = refuse(refusal, message);
    if let (Stop::Refused(answer), Ok(value)) = (&mut stop, HeaderValue::from_str(value)) {
        answer.headers_mut().insert(name, value);
    }
    stop
}
