//! The layers before the endpoints, in the order of `pipeline.rs`.
//!
//! They run before anything is bought, so each of their refusals is `charged: no`.

pub mod body;
pub mod caller;
pub mod cross_site;
pub mod dialect;
pub mod forwarded;
pub mod host;
pub mod log_limit;
pub mod memory;
pub mod observe;
pub mod pipeline;
pub mod problem;
pub mod rate;
pub mod response;
pub mod route;
pub mod source;
mod trace;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, request};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

pub use self::observe::RefusalLog;
use self::route::Route;
use crate::access::cookie::Transport;
use crate::access::{Authenticator, Session};
use crate::config::{self, Network, redact_keys};
use crate::gate::problem::Problem;
use crate::ledger::{Caller, PurchaseId};
use crate::metrics::Metrics;

/// The settings and state of the layers, shared by all cores.
#[derive(Clone)]
pub struct DownstreamConfig {
    pub origins: cross_site::Origins,
    pub hosts: Arc<host::Hosts>,
    pub trusted_proxies: Arc<[Network]>,
    pub access: Arc<Authenticator>,
    pub routes: Arc<route::RouteTable>,
    pub limiter: Arc<rate::Limiter>,
    pub server: config::ServerConfig,
    /// Cancelled when the start has opened the ledger, or has failed to.
    pub ledger_opened: CancellationToken,
    /// How long a request waits for that.
    pub max_opening: Duration,
    /// The value of `Strict-Transport-Security`.
    pub hsts: Option<HeaderValue>,
    /// Whether a 401 for an agent names the login.
    pub names_login: bool,
    pub memory: memory::RequestMemory,
    pub refusal_log: Arc<RefusalLog>,
    pub metrics: Arc<Metrics>,
}

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID_LEN: usize = 128;

/// Refuses every request of a server that is shutting down.
pub fn check_draining(is_draining: bool) -> Result<(), Problem> {
    if is_draining {
        return Err(Problem::draining());
    }
    Ok(())
}

/// A request with its route and caller and, after [`body::read`], its payload.
pub struct Call<B = Bytes> {
    pub id: RequestId,
    pub caller: Caller,
    pub session: Session,
    pub transport: Transport,
    pub route: &'static Route,
    pub head: request::Parts,
    pub body: B,
}

impl<B> Call<B> {
    /// Returns whether the caller is known by its address only.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.caller, Caller::Address(_))
    }
}

/// Omits the head and the payload: they hold credentials and prompts.
impl<B> fmt::Debug for Call<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("id", &self.id)
            .field("caller", &self.caller)
            .field("route", &self.route.path)
            .finish_non_exhaustive()
    }
}

/// The id of a request: the client's `X-Request-Id`, if it sent one, and a unique UUIDv7.
///
/// Answers carry the client's id. It may be used twice, so the log and the ledger use the other.
#[derive(Clone, Debug)]
pub struct RequestId {
    uuid: Uuid,
    unique: HeaderValue,
    client: Option<HeaderValue>,
}

impl RequestId {
    /// Keeps the client's id only if it has 1 to 128 letters, digits, `.`, `_` or `-`: other
    /// characters could forge log lines.
    fn from_headers(headers: &HeaderMap) -> Self {
        let plain = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            (1..=MAX_REQUEST_ID_LEN).contains(&bytes.len())
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        };
        // A copy, which does not keep the whole head.
        let copy = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
        Self { client: headers.get(X_REQUEST_ID).filter(plain).and_then(copy), ..Self::new() }
    }

    fn new() -> Self {
        let PurchaseId(uuid) = PurchaseId::generate();
        let mut text = [0; Hyphenated::LENGTH];
        uuid.hyphenated().encode_lower(&mut text);
        // Shared from the start, so that clones do not allocate.
        let text = HeaderValue::from_maybe_shared(Bytes::from_owner(text));
        let unique = text.unwrap_or(HeaderValue::from_static("unnamed"));
        Self { uuid, unique, client: None }
    }

    pub fn as_str(&self) -> &str {
        self.client_id().unwrap_or_else(|| self.unique())
    }

    /// Returns the id of what this request buys. It is the unique id of the request.
    pub fn purchase(&self) -> PurchaseId {
        PurchaseId(self.uuid)
    }

    fn unique(&self) -> &str {
        self.unique.to_str().unwrap_or_default()
    }

    fn client_id(&self) -> Option<&str> {
        self.client.as_ref()?.to_str().ok()
    }

    fn header(&self) -> HeaderValue {
        self.client.as_ref().unwrap_or(&self.unique).clone()
    }
}

fn bytes(value: Option<&HeaderValue>) -> &[u8] {
    value.map(HeaderValue::as_bytes).unwrap_or_default()
}

/// Makes a refused header safe to log: escaped, truncated, keys redacted.
fn sanitize(value: Option<&HeaderValue>) -> String {
    const MAX_CHARS: usize = 100;
    let text = String::from_utf8_lossy(bytes(value));
    let short: String = redact_keys(&text).chars().take(MAX_CHARS).collect();
    short.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::route::DEFAULT_ROUTE;
    use super::*;

    #[test]
    fn sanitized_header_is_short_escaped_and_holds_no_key() {
        let long = "x".repeat(101);
        for (value, expected) in [
            (&b"evil.example"[..], "evil.example"),
            (b"a\"b\\c", "a\\\"b\\\\c"),
            (b"\xff\t", "\u{fffd}\\t"),
            (b"\xc2\x9b31m", "\\u{9b}31m"),
            (b"https://svc_sk_secret.example", "https://svc_sk_\u{2026}"),
            (long.as_bytes(), &long[..100]),
        ] {
            let value = HeaderValue::from_bytes(value).unwrap();
            assert_eq!(sanitize(Some(&value)), expected);
        }
        assert_eq!(sanitize(None), "");
    }

    static CHAT: Route = Route { path: "/chat", ..DEFAULT_ROUTE };

    #[test]
    fn debug_of_a_call_hides_credentials_and_payload() {
        let (head, body) = Request::builder()
            .header("cookie", "tollgate=hunter2")
            .header("authorization", "Bearer hunter2")
            .body(Bytes::from_static(b"hunter2"))
            .unwrap()
            .into_parts();
        let call = Call {
            id: RequestId::new(),
            caller: Caller::Member("ann".into()),
            session: Session::default(),
            transport: Transport::Loopback,
            route: &CHAT,
            head,
            body,
        };
        let debug = format!("{call:?}");
        assert!(debug.contains("ann") && !debug.contains("hunter2"), "{debug}");
    }

    #[test]
    fn plain_request_id_is_kept_and_any_other_replaced() {
        let mut headers = HeaderMap::new();
        for (sent, is_kept) in [
            ("abc-1.2_3", true),
            ("", false),
            ("a b", false),
            ("a\u{e9}", false),
            ("\"quoted\"", false),
            (&"x".repeat(128), true),
            (&"x".repeat(129), false),
        ] {
            headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(sent.as_bytes()).unwrap());
            let id = RequestId::from_headers(&headers);
            assert_eq!(id.as_str() == sent, is_kept, "{sent:?}");
            assert!(!id.as_str().is_empty());
        }
    }
}
