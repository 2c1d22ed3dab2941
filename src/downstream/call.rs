//! A request that passed the gate, and the name under which logs and answers speak of it.

use std::fmt;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, request};
use uuid::Uuid;

use super::route::Route;
use crate::access::Standing;
use crate::access::cookie::Way;
use crate::clock;
use crate::store::Caller;

/// The header that names a request, both ways.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LONGEST_ID: usize = 128;

/// A request with what the gate learned of it: its row, who asks, and (after `body`) its payload.
pub struct Call<B = Bytes> {
    /// The request's name.
    pub id: RequestId,
    /// Who is asking.
    pub caller: Caller,
    /// What its credentials say of it besides.
    pub standing: Standing,
    /// How it came, where there are logins.
    pub way: Way,
    /// The row of [`super::route::ROUTES`] that it belongs to.
    pub route: &'static Route,
    /// The request's head; no header of it is ever copied to the gateway.
    pub head: request::Parts,
    /// The payload.
    pub body: B,
}

/// Neither head nor payload: there are credentials in the one, and people's words in the other.
impl<B> fmt::Debug for Call<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("id", &self.id)
            .field("caller", &self.caller)
            .field("endpoint", &self.route.endpoint)
            .finish_non_exhaustive()
    }
}

/// A request's name: the caller's own where it sent a plain one, else a new UUIDv7.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Takes the caller's id when it is 1 to 128 letters, digits, `.`, `_` or `-` (anything else
    /// could forge log lines), and makes one otherwise.
    pub(super) fn adopt(headers: &HeaderMap) -> Self {
        let plain = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            (1..=LONGEST_ID).contains(&bytes.len())
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        };
        headers.get(X_REQUEST_ID).filter(plain).cloned().map_or_else(Self::new, Self)
    }

    /// The id that `observe` put on the request.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        headers.get(X_REQUEST_ID).cloned().map_or_else(Self::new, Self)
    }

    fn new() -> Self {
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
            route: &crate::downstream::route::ROUTES[0],
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
