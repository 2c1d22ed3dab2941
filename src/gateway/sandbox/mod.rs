//! A fake gateway on a real socket, with play money, and with faults to test error handling.
//!
//! Invariant: it validates payloads with its own code. If it shared the proxy's validator, tests
//! against it would prove nothing.

mod account;
mod chat;
mod reply;
mod video;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap,
};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::gateway::contract::catalog::Catalog;
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::wire::{self, REPORTED_RATE_LIMIT};
use crate::sync::lock;

pub use account::ChargeCounts;
pub use reply::SANDBOX_FAULTS;

use account::{SandboxAccount, Seed};
use reply::{Rejection, SandboxResponse, SandboxResult, refuse, refuse_key, refuse_method};

#[derive(Clone)]
pub struct SandboxSettings {
    /// Determines ids, replies and the default key.
    pub seed: u64,
    /// Makes ids of videos differ from those of an earlier run that a ledger still knows.
    pub run: Option<Duration>,
    pub balance: Usd,
    /// How long a video job takes; some models take a little more or less.
    pub job_time: Duration,
    pub window: (u32, Duration),
    /// At most five (3.1), each starting with `svc_sk_`. If empty, one is derived from the seed.
    pub keys: Vec<String>,
    pub reply_delay: Duration,
    pub slow: Duration,
    pub hang: Duration,
    /// How long a connection may be idle, or a request body take to arrive.
    pub idle: Duration,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        let (requests, seconds) = REPORTED_RATE_LIMIT;
        Self {
            seed: 0,
            run: None,
            balance: Usd::dollars(50),
            job_time: Duration::from_secs(30),
            window: (requests, Duration::from_secs(seconds)),
            keys: Vec::new(),
            reply_delay: Duration::from_millis(400),
            slow: Duration::from_secs(10),
            hang: Duration::from_secs(600),
            idle: Duration::from_secs(75),
        }
    }
}

impl fmt::Debug for SandboxSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxSettings").field("seed", &self.seed).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub struct Sandbox(Arc<FakeGateway>);

struct FakeGateway {
    settings: SandboxSettings,
    catalog: Catalog,
    seed: Seed,
    account: Mutex<SandboxAccount>,
    /// Bounded by the balance, because each job was paid for.
    jobs: Mutex<HashMap<String, video::SandboxJob>>,
    refused_once: reply::RefusedOnce,
    requests: AtomicU64,
}

impl Sandbox {
    pub fn new(settings: SandboxSettings) -> Self {
        let seed = Seed::new(settings.seed);
        Self(Arc::new(FakeGateway {
            account: Mutex::new(SandboxAccount::open(&settings, &seed)),
            catalog: Catalog::published(),
            seed,
            jobs: Mutex::default(),
            refused_once: reply::RefusedOnce::default(),
            requests: AtomicU64::new(0),
            settings,
        }))
    }

    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve_connection(self.0.clone(), stream));
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_BACKOFF).await,
                },
            }
        }
        connections.shutdown().await;
    }

    pub fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }
}

const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

async fn serve_connection(gateway: Arc<FakeGateway>, stream: TcpStream) {
    let Ok(local) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    let idle = gateway.settings.idle;
    let service = service_fn(move |request| {
        let gateway = gateway.clone();
        async move { respond(&gateway, local, request).await }
    });
    // The header timeout also limits how long a connection may be idle.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Any web origin may call paths below this one (4, note 6).
const CROSS_ORIGIN: &str = "/api/v1/";
/// Guess: the contract shows no limit.
const MAX_BODY: usize = 4 * 1024 * 1024;

async fn respond(
    gateway: &FakeGateway,
    local: SocketAddr,
    request: Request<Incoming>,
) -> io::Result<SandboxResponse> {
    let (head, body) = request.into_parts();
    let is_cross_origin = head.uri.path().starts_with(CROSS_ORIGIN);
    let mut answer = match route(gateway, local, &head, body).await {
        Ok(answer) => answer,
        Err(Rejection::Refused(answer)) => *answer,
        // hyper closes the connection without a reply.
        Err(Rejection::Dropped) => return Err(io::ErrorKind::ConnectionAborted.into()),
    };
    if is_cross_origin {
        answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    Ok(answer)
}

async fn route(
    gateway: &FakeGateway,
    local: SocketAddr,
    head: &Parts,
    body: Incoming,
) -> SandboxResult {
    // Read before any refusal, because closing with an unread body could lose the refusal.
    let body = read(gateway, body).await?;
    let path = head.uri.path();
    if path.starts_with(video::CLIP_FOLDER) {
        return match head.method {
            Method::GET | Method::HEAD => video::clip(path, &head.headers),
            _ => Err(refuse_method("GET, HEAD")),
        };
    }
    gateway.requests.fetch_add(1, Ordering::Relaxed);
    let method = match path {
        wire::CHAT | wire::VIDEO => "POST",
        wire::VIDEO_STATUS | wire::API_KEYS => "GET",
        _ => return Err(refuse(StatusCode::NOT_FOUND, "There is no such endpoint")),
    };
    if head.method == Method::OPTIONS && path.starts_with(CROSS_ORIGIN) {
        return Ok(preflight(method));
    }
    if head.method != method {
        return Err(refuse_method(method));
    }
    admit(gateway, &head.headers)?;
    if method == "POST" && !is_json(&head.headers) {
        let message = "Send Content-Type: application/json";
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    match path {
        wire::CHAT => chat::answer(gateway, &body).await,
        wire::VIDEO => video::order(gateway, &body).await,
        wire::API_KEYS => Ok(account::list(gateway)),
        _ => {
            let origin = origin(&head.headers, local);
            video::status(gateway, head.uri.query().unwrap_or_default(), &origin)
        }
    }
}

fn admit(gateway: &FakeGateway, headers: &HeaderMap) -> Result<(), Rejection> {
    let bearer = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let missing =
        || refuse_key(wire::MISSING_API_KEY, "Send Authorization: Bearer with an API key");
    let (_, key) = bearer.ok_or_else(missing)?;
    lock(&gateway.account).admit(key.trim())
}

async fn read(gateway: &FakeGateway, body: Incoming) -> Result<Bytes, Rejection> {
    let whole = Limited::new(body, MAX_BODY).collect();
    match tokio::time::timeout(gateway.settings.idle, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"))
        }
        Ok(Err(_)) | Err(_) => Err(Rejection::Dropped),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

fn origin(headers: &HeaderMap, local: SocketAddr) -> String {
    let host = headers.get(HOST).and_then(|value| Authority::try_from(value.as_bytes()).ok());
    host.map_or_else(|| format!("http://{local}"), |host| format!("http://{host}"))
}

fn preflight(method: &'static str) -> SandboxResponse {
    let mut answer = SandboxResponse::default();
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let allowed = HeaderValue::from_static("authorization, content-type");
    answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    answer.headers_mut().insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(method));
    answer
}

#[cfg(test)]
mod tests;
