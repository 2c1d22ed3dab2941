//! Holds replies for replay, within bounds: those that are kept for the shortest time go first.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::store::{KeptReply, Room};

/// Replies by the number of their purchase.
#[derive(Default)]
pub(super) struct Replies {
    kept: HashMap<u64, (Duration, KeptReply)>,
    /// Until when each is kept.
    times: BTreeSet<(Duration, u64)>,
    bytes: usize,
}

impl Replies {
    pub(super) fn of(&self, number: u64) -> Option<&KeptReply> {
        self.kept.get(&number).map(|(_, reply)| reply)
    }

    pub(super) fn keep(&mut self, number: u64, reply: KeptReply, until: Duration, room: Room) {
        if reply.body.len() > room.reply_bytes {
            return;
        }
        self.bytes += reply.body.len();
        self.times.insert((until, number));
        self.kept.insert(number, (until, reply));
        while self.kept.len() > room.replies || self.bytes > room.reply_bytes {
            let Some((_, next)) = self.times.first().copied() else { return };
            self.drop(next);
        }
    }

    pub(super) fn drop(&mut self, number: u64) {
        if let Some((until, reply)) = self.kept.remove(&number) {
            self.times.remove(&(until, number));
            self.bytes -= reply.body.len();
        }
    }

    /// Drops those whose time has come.
    pub(super) fn forget(&mut self, now: Duration) {
        while let Some((_, number)) = self.times.first().filter(|(until, _)| *until <= now).copied()
        {
            self.drop(number);
        }
    }
}
