//! A request on its way through the layers, and the name under which logs and answers speak of it.

use std::fmt;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, request};
use uuid::Uuid;

use super::route::Route;
use crate::access::Standing;
use crate::access::cookie::Way;
use crate::clock;
use crate::problem::Problem;
use crate::store::Caller;

/// The header that names a request, both ways.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LONGEST_ID: usize = 128;

/// A payload with what the first layer learned of its request: what all layers up to `caller` hand on.
pub struct Arrived<B> {
    pub id: RequestId,
    /// The request's row, or why there is none.
    pub route: Result<&'static Route, Problem>,
    pub body: B,
}

/// A request with its row, its caller, and (after `body`) its payload.
pub struct Call<B = Bytes> {
    pub id: RequestId,
    pub caller: Caller,
    /// What the caller's credentials say besides.
    pub standing: Standing,
    /// How the request came, where there are logins.
    pub way: Way,
    pub route: &'static Route,
    /// The request's head; no header of it is ever copied to the gateway.
    pub head: request::Parts,
    pub body: B,
}

impl<B> Call<B> {
    /// Returns the call with another payload, and the payload that it had.
    pub(super) fn with<T>(self, payload: T) -> (Call<T>, B) {
        let Self { id, caller, standing, way, route, head, body } = self;
        (Call { id, caller, standing, way, route, head, body: payload }, body)
    }
}

/// Neither head nor payload: there are credentials in the one, and people's words in the other.
impl<B> fmt::Debug for Call<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("id", &self.id)
            .field("caller", &self.caller)
            .field("route", &self.route.path)
            .finish_non_exhaustive()
    }
}

/// A request's name: the one that the client sent, or else a new UUIDv7.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Takes the client's id if it is 1 to 128 letters, digits, `.`, `_` or `-` (anything else could
    /// forge log lines), and makes one otherwise.
    pub(super) fn adopt(headers: &HeaderMap) -> Self {
        let plain = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            (1..=LONGEST_ID).contains(&bytes.len())
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        };
        headers.get(X_REQUEST_ID).filter(plain).cloned().map_or_else(Self::new, Self)
    }

    pub(super) fn new() -> Self {
        let wall = clock::wall();
        let stamp =
            uuid::Timestamp::from_unix(uuid::NoContext, wall.as_secs(), wall.subsec_nanos());
        let mut text = Uuid::encode_buffer();
        let text = Uuid::new_v7(stamp).hyphenated().encode_lower(&mut text);
        Self(HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unnamed")))
    }

    /// The id as text; it holds nothing but letters, digits, `.`, `_` and `-`.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn to_header(&self) -> HeaderValue {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::route::{BASE, Path};

    static CHAT: Route = Route { path: Path::Exact("/chat"), ..BASE };

    #[test]
    fn neither_a_credential_nor_a_payload_is_shown_to_those_who_debug() {
        let (head, body) = http::Request::builder()
            .header("cookie", "tollgate=hunter2")
            .header("authorization", "Bearer hunter2")
            .body(Bytes::from_static(b"hunter2"))
            .unwrap()
            .into_parts();
        let call = Call {
            id: RequestId::new(),
            caller: Caller::Member("ann".into()),
            standing: Standing::default(),
            way: Way::Loopback,
            route: &CHAT,
            head,
            body,
        };
        let shown = format!("{call:?}");
        assert!(shown.contains("ann") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_plain_id_is_kept_and_any_other_is_replaced() {
        let mut headers = HeaderMap::new();
        for (sent, kept) in [
            ("abc-1.2_3", true),
            ("", false),
            ("a b", false),
            ("a\u{e9}", false),
            ("\"quoted\"", false),
            (&"x".repeat(128), true),
            (&"x".repeat(129), false),
        ] {
            headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(sent.as_bytes()).unwrap());
            let id = RequestId::adopt(&headers);
            assert_eq!(id.as_str() == sent, kept, "{sent:?}");
            assert!(!id.as_str().is_empty());
        }
    }
}
