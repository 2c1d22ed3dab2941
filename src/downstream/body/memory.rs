//! Bounds what all payloads take in memory together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// The bytes that payloads may have now, shared by every core. It outlives a change of settings.
#[derive(Debug, Default)]
pub struct Memory {
    taken: AtomicUsize,
}

impl Memory {
    /// Takes memory for one payload, or `None` if all payloads together would then have more than `max`
    /// bytes.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, max: usize) -> Option<Taken> {
        let more = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.taken.fetch_update(order.0, order.1, more).ok()?;
        Some(Taken { memory: Arc::clone(self), bytes })
    }
}

/// Memory of one payload, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Taken {
    /// The payload, which gives the memory back with its last copy.
    pub(super) fn holding(self, payload: Bytes) -> Bytes {
        Bytes::from_owner(Payload { payload, _taken: self })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.memory.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

struct Payload {
    payload: Bytes,
    _taken: Taken,
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_with_the_last_copy_of_the_payload() {
        let memory = Arc::new(Memory::default());
        let first = memory.take(6, 10).unwrap();
        assert!(memory.take(5, 10).is_none());
        assert!(memory.take(usize::MAX, 10).is_none());
        let second = memory.take(4, 10).unwrap();
        drop(second);
        let payload = first.holding(Bytes::from_static(b"hello"));
        let (start, copy) = (payload.slice(..2), payload.clone());
        drop(payload);
        drop(copy);
        assert!(memory.take(5, 10).is_none(), "a part of it is still there");
        drop(start);
        assert!(memory.take(10, 10).is_some());
        assert_eq!(memory.taken.load(Ordering::Acquire), 0);
    }
}
