//! Holds replies for replay, within bounds: the oldest go first.

use std::collections::BTreeMap;

use crate::store::KeptReply;
use crate::store::Room;

/// Replies by the number of their purchase, oldest first.
#[derive(Default)]
pub(super) struct Replies {
    kept: BTreeMap<u64, KeptReply>,
    bytes: usize,
}

impl Replies {
    pub(super) fn of(&self, number: u64) -> Option<&KeptReply> {
        self.kept.get(&number)
    }

    pub(super) fn keep(&mut self, number: u64, reply: KeptReply, room: Room) {
        if reply.body.len() > room.reply_bytes {
            return;
        }
        self.bytes += reply.body.len();
        self.kept.insert(number, reply);
        while self.kept.len() > room.replies || self.bytes > room.reply_bytes {
            let Some(oldest) = self.kept.keys().next().copied() else { return };
            self.drop(oldest);
        }
    }

    pub(super) fn drop(&mut self, number: u64) {
        if let Some(reply) = self.kept.remove(&number) {
            self.bytes -= reply.body.len();
        }
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.kept.keys().copied()
    }
}
