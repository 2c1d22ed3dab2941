//! Bounds the memory of request bodies. A body counts with what has arrived of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::problem::{OVERLOADED, Problem};
use crate::store::Caller;
use crate::sync::{Bounds, KeyedLimit, KeyedPermit};

/// A caller may use this part of the memory, and the same part is kept for small bodies.
const SHARE: usize = 8;
/// A body of a known length up to this is small.
const SMALL_BODY: u64 = 64 * 1_024;
/// The `Retry-After` when no memory is left.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The memory in use by payloads, shared by all cores. It outlives a reload.
#[derive(Clone, Debug, Default)]
pub struct RequestMemory(Arc<KeyedLimit<Caller>>);

impl RequestMemory {
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
        // A body of the largest size always has room if there is no other.
        let bounds = Bounds { each: share.max(max), total: total.max(max) };
        BodyPermit { memory: self.0.permit(caller.clone()), bounds, payload: Bytes::new() }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.0.total()
    }
}

#[derive(Debug)]
pub(super) struct BodyPermit {
    memory: KeyedPermit<Caller>,
    bounds: Bounds,
    payload: Bytes,
}

impl BodyPermit {
    pub(super) fn grow(&mut self, more: usize) -> Result<(), Problem> {
        if self.memory.try_grow(more, self.bounds) {
            return Ok(());
        }
        let detail = "request bodies take up all of server.max_body_memory, or the caller's share";
        Err(Problem::new(&OVERLOADED).detail(detail).retry_after(RETRY_DELAY))
    }

    /// Returns the payload, whose last copy releases the memory.
    pub(super) fn guard(mut self, payload: Bytes) -> Bytes {
        self.payload = payload;
        Bytes::from_owner(self)
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
        let mut permit = memory.body(16 * MIB, &caller(last), (2 * MIB, length));
        permit.grow(bytes).is_ok().then_some(permit)
    }

    #[test]
    fn caller_has_a_share_and_small_bodies_have_room_of_their_own() {
        let memory = RequestMemory::default();
        let mut held: Vec<_> = (0..7).map(|n| hold(&memory, n, 2 * MIB, None).unwrap()).collect();
        assert!(hold(&memory, 0, 1, None).is_none(), "beyond its share");
        assert!(hold(&memory, 0, 1, Some(1)).is_none(), "also for small bodies");
        assert!(hold(&memory, 9, 1, None).is_none(), "beyond what unknown lengths may have");
        assert!(hold(&memory, 9, 1, Some(MIB)).is_none());
        let small: Vec<_> =
            (10..).map_while(|n| hold(&memory, n, 64 << 10, Some(64 << 10))).collect();
        assert_eq!(small.len(), 32);
        held.pop();
        assert!(hold(&memory, 9, MIB, None).is_none(), "small bodies count, too");
        drop(small);
        assert!(hold(&memory, 9, 2 * MIB, None).is_some());
        drop(held);
        assert!(memory.0.is_empty());
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
