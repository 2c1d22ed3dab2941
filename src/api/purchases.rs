//! The common parts of paid endpoints: the dedupe key, the ledger check, and the response to a receipt.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use uuid::Uuid;

use crate::api::validate::IgnoredFields;
use crate::gate::problem::{
    INVALID_IDEMPOTENCY_KEY, LEDGER_CHANGED, Problem, REPLAYED, TOLLGATE_PURCHASE,
};
use crate::gate::response::{self, Response};
use crate::purchase::{DedupeBy, Receipt, Timing};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_KEY_LEN: usize = 255;
const TOLLGATE_COST: HeaderName = HeaderName::from_static("tollgate-cost");
const TOLLGATE_IGNORED: HeaderName = HeaderName::from_static("tollgate-ignored");
/// The name of the ledger. It changes whenever the server may have forgotten purchases.
pub(super) const TOLLGATE_LEDGER: HeaderName = HeaderName::from_static("tollgate-ledger");
/// `only` asks for the reply of an earlier purchase. Any other value means the same, so that a
/// misspelled one cannot buy.
pub(super) const TOLLGATE_REPLAY: HeaderName = HeaderName::from_static("tollgate-replay");

/// Reads the `Idempotency-Key`, where `"k"` and `k` are equal.
pub(super) fn dedupe_key(headers: &HeaderMap) -> Result<DedupeBy, Problem> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(first) = keys.next() else { return Ok(DedupeBy::Fingerprint) };
    if keys.next().is_some() {
        return Err(invalid("expected one Idempotency-Key, not several"));
    }
    let bytes = first.as_bytes();
    let bare = match bytes {
        [b'"', inner @ .., b'"'] => inner,
        _ => bytes,
    };
    let visible = |byte: &u8| byte.is_ascii_graphic() && *byte != b'"';
    if bare.is_empty() || bare.len() > MAX_KEY_LEN || !bare.iter().all(visible) {
        return Err(invalid("expected 1 to 255 visible ASCII characters, bare or in quotes"));
    }
    let text = std::str::from_utf8(bare).map_err(|_| invalid("expected ASCII"))?;
    Ok(DedupeBy::IdempotencyKey(text.into()))
}

fn invalid(expected: &'static str) -> Problem {
    Problem::new(&INVALID_IDEMPOTENCY_KEY).detail(expected)
}

/// Rejects a purchase that names another ledger: that one may already have charged for this key.
pub(super) fn check_ledger(name: &HeaderValue, headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get_all(TOLLGATE_LEDGER).iter().all(|named| named == name) {
        return Ok(());
    }
    Err(Problem::new(&LEDGER_CHANGED).detail(
        "Tollgate-Ledger names another ledger, and this one may not know the key; nothing was sent",
    ))
}

pub(super) fn from_receipt(mut receipt: Receipt) -> Response {
    let body = std::mem::take(&mut receipt.body);
    add_receipt(from_gateway(receipt.status, receipt.is_json, body), receipt)
}

/// [`from_receipt`] in the memory of the request's headers, which the connection then reuses for
/// its next request.
pub(super) fn from_receipt_in(headers: HeaderMap, mut receipt: Receipt) -> Response {
    let body = std::mem::take(&mut receipt.body);
    let media_type = media_type(receipt.is_json);
    let response = response::from_bytes_in(headers, receipt.status, media_type, body);
    add_receipt(uncached(response), receipt)
}

fn add_receipt(mut response: Response, receipt: Receipt) -> Response {
    let headers = response.headers_mut();
    if let Ok(cost) = HeaderValue::try_from(receipt.cost.to_string()) {
        headers.insert(TOLLGATE_COST, cost);
    }
    let mut id = Uuid::encode_buffer();
    if let Ok(id) = HeaderValue::from_str(receipt.id.0.hyphenated().encode_lower(&mut id)) {
        headers.insert(TOLLGATE_PURCHASE, id);
    }
    if receipt.is_replay {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    if let Some(Timing { queue, gateway }) = receipt.timing {
        response::add_timing(&mut response, [("queue", queue), ("gateway", gateway)]);
    }
    match receipt.delivery {
        None => response,
        // If the body is dropped earlier, an identical request soon after counts as a retry.
        Some(delivery) => response.map(|body| body.on_end(move || delivery.record())),
    }
}

pub(super) fn with_ignored(ignored: &IgnoredFields, mut response: Response) -> Response {
    if let Some(Ok(names)) = ignored.names().map(HeaderValue::try_from) {
        response.headers_mut().insert(TOLLGATE_IGNORED, names);
    }
    response
}

pub(super) fn from_gateway(status: StatusCode, is_json: bool, body: Bytes) -> Response {
    uncached(response::from_bytes(status, media_type(is_json), body))
}

fn media_type(is_json: bool) -> &'static str {
    if is_json { "application/json" } else { "text/plain; charset=utf-8" }
}

fn uncached(response: Response) -> Response {
    response::with_headers(response, [(CACHE_CONTROL, "no-store")])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(name: &'static str, values: &[&str]) -> Option<DedupeBy> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        dedupe_key(&headers).ok()
    }

    #[test]
    fn idempotency_key_is_equal_bare_and_quoted_and_others_are_rejected() {
        let key = Some(DedupeBy::IdempotencyKey("a-1_$".into()));
        assert_eq!(read("idempotency-key", &["a-1_$"]), key);
        assert_eq!(read("idempotency-key", &["\"a-1_$\""]), key);
        assert!(read("idempotency-key", &[&"k".repeat(255)]).is_some());
        for wrong in
            [&[""][..], &["\"\""], &["a b"], &["\"a"], &["é"], &["a", "a"], &[&"k".repeat(256)]]
        {
            assert_eq!(read("idempotency-key", wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn idempotency_key_is_visible_ascii_or_rejected(
            bytes in prop_oneof![
                prop::collection::vec(b'!'..=b'~', 0..300),
                prop::collection::vec(any::<u8>(), 0..20),
            ],
        ) {
            let Ok(value) = HeaderValue::from_bytes(&bytes) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY, value);
            let bare = bytes
                .strip_prefix(b"\"")
                .and_then(|rest| rest.strip_suffix(b"\""))
                .unwrap_or(&bytes);
            let is_key = (1..=255).contains(&bare.len())
                && bare.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b'"');
            let text = String::from_utf8_lossy(bare);
            let expected = is_key.then(|| DedupeBy::IdempotencyKey(text.as_ref().into()));
            prop_assert_eq!(dedupe_key(&headers).ok(), expected);
        }

        #[test]
        fn quotes_do_not_change_a_key_and_two_keys_are_rejected(key in "[!#-~]{1,255}") {
            let (bare, quoted) = (key.clone(), format!("\"{key}\""));
            let one = read("idempotency-key", &[&bare]);
            prop_assert_eq!(&one, &Some(DedupeBy::IdempotencyKey(key.into())));
            prop_assert_eq!(&read("idempotency-key", &[&quoted]), &one);
            prop_assert_eq!(read("idempotency-key", &[&bare, &quoted]), None);
        }
    }

    #[test]
    fn ledger_header_must_match_if_present() {
        let name = HeaderValue::from_static("one");
        for (sent, is_another) in [
            (&[][..], false),
            (&["one"], false),
            (&["one", "one"], false),
            (&["two"], true),
            (&["ONE"], true),
            (&[""], true),
            (&["one", "two"], true),
            (&["one, two"], true),
        ] {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append(TOLLGATE_LEDGER, HeaderValue::from_static(value));
            }
            assert_eq!(check_ledger(&name, &headers).is_err(), is_another, "{sent:?}");
        }
    }
}
