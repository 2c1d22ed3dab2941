//! The slots that this process has taken.

use std::collections::HashSet;
use std::sync::Mutex;

use uuid::Uuid;

use crate::store::SlotId;
use crate::sync::lock;

/// Old slots are deleted once per this many new ones.
const PURGE_INTERVAL: usize = 64;

/// The slots that this process has taken and not answered.
#[derive(Debug, Default)]
pub(super) struct OwnSlots(Mutex<OwnSlotsState>);

#[derive(Debug, Default)]
struct OwnSlotsState {
    in_hand: HashSet<SlotId>,
    since_purge: usize,
}

impl OwnSlots {
    pub(super) fn take(&self, slots: impl IntoIterator<Item = SlotId>) {
        let mut state = lock(&self.0);
        let before = state.in_hand.len();
        state.in_hand.extend(slots);
        state.since_purge += state.in_hand.len() - before;
    }

    /// Returns whether it is time to delete old slots.
    pub(super) fn is_purge_due(&self) -> bool {
        let mut state = lock(&self.0);
        let is_due = state.since_purge >= PURGE_INTERVAL;
        if is_due {
            state.since_purge = 0;
        }
        is_due
    }

    pub(super) fn give_up(&self, slot: SlotId) {
        lock(&self.0).in_hand.remove(&slot);
    }

    pub(super) fn ids(&self) -> Vec<Uuid> {
        lock(&self.0).in_hand.iter().map(|slot| slot.0).collect()
    }
}
