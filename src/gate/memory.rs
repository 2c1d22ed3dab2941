//! Bounds the memory of requests: of their heads while they wait, and of what has arrived of their
//! bodies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};

use crate::gate::problem::{OVERLOADED, Problem};
use crate::gate::response::EXPECTED_HEADERS;
use crate::ledger::Caller;
use crate::sync::{Bounds, KeyedLimit, KeyedPermit};

/// A caller may use this part of the memory, and the same part is kept for small bodies.
const SHARE: usize = 8;
/// The memory of a request without its head: its stream or connection, and its task.
const REQUEST_COST: usize = 16 * 1_024;
/// A body of a known length up to this is small.
const SMALL_BODY: u64 = 64 * 1_024;
/// With a head of 16 KiB, the largest.
const MAX_HEAD_COST: usize = 3 * REQUEST_COST;
/// The heads of an address, if its part of the memory is smaller.
const MIN_HEADS: usize = 2 << 20;
/// The headers that handlers of routes with a body read.
const HANDLER_HEADERS: [HeaderName; 14] = [
    ACCEPT,
    AUTHORIZATION,
    CONTENT_TYPE,
    COOKIE,
    HOST,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("tollgate-ledger"),
    HeaderName::from_static("tollgate-proof"),
    HeaderName::from_static("tollgate-replay"),
    HeaderName::from_static("x-stainless-retry-count"),
    HeaderName::from_static("x-tollgate"),
];
/// The `Retry-After` when no memory is left.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The memory in use by requests, shared by all cores. It outlives a reload.
#[derive(Clone, Debug, Default)]
pub struct RequestMemory(Arc<KeyedLimit<Caller>>);

impl RequestMemory {
    /// Holds memory for a head, in the name of its address: the caller is not known yet.
    pub(crate) fn head<B>(
        &self,
        all: usize,
        address: &Caller,
        request: &Request<B>,
    ) -> Result<KeyedPermit<Caller>, Problem> {
        let mut permit = self.0.permit(address.clone());
        let each = (all / SHARE).max(MIN_HEADS);
        let is_free =
            permit.try_grow(cost(request.uri(), request.headers()), Bounds { each, total: all });
        is_free.then_some(permit).ok_or_else(full)
    }

    /// Returns a permit for a body of at most `max` bytes, of which nothing has arrived. All bodies
    /// together may have `all`.
    pub(super) fn body(
        &self,
        all: usize,
        caller: &Caller,
        (max, length): (usize, Option<u64>),
    ) -> BodyPermit {
        let share = all / SHARE;
        let is_small = length.is_some_and(|length| length <= SMALL_BODY);
        let total = if is_small { all } else { all - share };
        // A request of the largest size always has room if there is no other.
        let whole = max + MAX_HEAD_COST;
        let bounds = Bounds { each: share.max(whole), total: total.max(whole) };
        BodyPermit { memory: self.0.permit(caller.clone()), bounds }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.0.total()
    }
}

fn full() -> Problem {
    let detail = "requests take up all of server.max_body_memory, or the caller's share of it";
    Problem::new(&OVERLOADED).detail(detail).retry_after(RETRY_DELAY)
}

/// Returns what a request takes. The text of its head is there twice: in the buffer that it was read
/// into, and in tables.
fn cost(uri: &Uri, headers: &HeaderMap) -> usize {
    let target = uri.path().len() + uri.query().map_or(0, str::len);
    let text = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    REQUEST_COST + 2 * (target + text.sum::<usize>())
}

/// Drops the headers that no handler reads, before the body is waited for.
pub(super) fn drop_unread(head: &mut Parts) {
    if head.headers.keys().all(|name| HANDLER_HEADERS.contains(name)) {
        return;
    }
    // The kept parts of a large head are copied, because each holds the buffer that it was read into.
    let is_large = cost(&head.uri, &head.headers) > 2 * REQUEST_COST;
    if is_large && let Ok(uri) = head.uri.to_string().parse() {
        head.uri = uri;
    }
    let mut kept = HeaderMap::with_capacity(EXPECTED_HEADERS);
    for (name, value) in head.headers.iter().filter(|(name, _)| HANDLER_HEADERS.contains(name)) {
        let copy = is_large.then(|| HeaderValue::from_bytes(value.as_bytes()).ok()).flatten();
        kept.append(name, copy.unwrap_or_else(|| value.clone()));
    }
    head.headers = kept;
}

#[derive(Debug)]
pub(super) struct BodyPermit {
    memory: KeyedPermit<Caller>,
    bounds: Bounds,
}

impl BodyPermit {
    pub(super) fn grow(&mut self, more: usize) -> Result<(), Problem> {
        if self.memory.try_grow(more, self.bounds) {
            return Ok(());
        }
        Err(full())
    }

    /// Returns the payload, whose last copy releases the memory.
    pub(super) fn guard(self, payload: Bytes) -> Bytes {
        Bytes::from_owner(GuardedPayload { payload, _memory: self.memory })
    }
}

struct GuardedPayload {
    payload: Bytes,
    _memory: KeyedPermit<Caller>,
}

impl AsRef<[u8]> for GuardedPayload {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn caller(last: u8) -> Caller {
        Caller::Address([192, 0, 2, last].into())
    }

    /// Tries to hold this much of a body, with a length or without one.
    fn hold(
        memory: &RequestMemory,
        last: u8,
        bytes: usize,
        length: Option<usize>,
    ) -> Option<BodyPermit> {
        let length = length.map(|length| length as u64);
        let mut permit = memory.body(32 * MIB, &caller(last), (2 * MIB, length));
        permit.grow(bytes).is_ok().then_some(permit)
    }

    #[test]
    fn caller_has_a_share_and_small_bodies_have_room_of_their_own() {
        let memory = RequestMemory::default();
        let mut held: Vec<_> = (0..7).map(|n| hold(&memory, n, 4 * MIB, None).unwrap()).collect();
        assert!(hold(&memory, 0, 1, None).is_none(), "beyond its share");
        assert!(hold(&memory, 0, 1, Some(1)).is_none(), "also for small bodies");
        assert!(hold(&memory, 9, 1, None).is_none(), "beyond what unknown lengths may have");
        assert!(hold(&memory, 9, 1, Some(MIB)).is_none());
        let one = |n| hold(&memory, n, 64 << 10, Some(64 << 10));
        let small: Vec<_> = (10..).map_while(one).collect();
        assert_eq!(small.len(), 64);
        held.pop();
        assert!(hold(&memory, 9, MIB, None).is_none(), "small bodies count, too");
        drop(small);
        assert!(hold(&memory, 9, 4 * MIB, None).is_some());
        drop(held);
        assert!(memory.0.is_empty());
    }

    #[test]
    fn largest_request_has_room_if_it_is_alone() {
        let memory = RequestMemory::default();
        let head = memory.head(MIB, &caller(1), &head(&"x".repeat(16_000), &["a"])).ok();
        let mut permit = memory.body(MIB, &caller(1), (MIB, None));
        assert!(head.is_some() && permit.grow(MIB).is_ok());
    }

    fn head(value: &str, names: &[&'static str]) -> Request<()> {
        let mut request = Request::get("/mcp");
        for name in names {
            request = request.header(*name, value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn waiting_heads_of_an_address_and_of_all_are_bounded_by_their_bytes() {
        let (memory, all) = (RequestMemory::default(), 64 * MIB);
        let (small, large) = (head("x", &["host"]), head(&"x".repeat(8_000), &["a", "b"]));
        let hold = |last, head: &Request<()>| memory.head(all, &caller(last), head).ok();
        let many =
            |last, head: &Request<()>| (0..).map_while(|_| hold(last, head)).collect::<Vec<_>>();
        assert_eq!(many(1, &small).len(), 511);
        assert_eq!(many(1, &large).len(), 173);
        let eight: Vec<_> = (1..=8).flat_map(|last| many(last, &large)).collect();
        assert_eq!(eight.len(), 8 * 173);
        assert_eq!(many(9, &large).len(), 2, "together, they have all of it");
        drop(eight);
        assert!(memory.0.is_empty());
    }

    #[test]
    fn head_without_what_no_handler_reads_is_the_same_to_handlers() {
        for length in [1, 16_000] {
            let value = "x".repeat(length);
            let (mut head, ()) =
                head(&value, &["x-pad", "host", "cookie", "tollgate-ledger", "cookie"])
                    .into_parts();
            head.headers.insert("user-agent", HeaderValue::from_static("x"));
            drop_unread(&mut head);
            let kept: Vec<_> =
                head.headers.iter().map(|(name, value)| (name.as_str(), value.len())).collect();
            assert_eq!(
                kept,
                [
                    ("host", length),
                    ("cookie", length),
                    ("cookie", length),
                    ("tollgate-ledger", length)
                ]
            );
            assert_eq!(head.uri.path(), "/mcp");
        }
    }

    #[test]
    fn memory_is_released_with_last_copy_of_payload() {
        let memory = RequestMemory::default();
        let payload = hold(&memory, 1, 5, None).unwrap().guard(Bytes::from_static(b"hello"));
        let (start, copy) = (payload.slice(..2), payload.clone());
        drop(payload);
        drop(copy);
        assert!(!memory.0.is_empty(), "a part of it is still there");
        drop(start);
        assert!(memory.0.is_empty());
    }
}
