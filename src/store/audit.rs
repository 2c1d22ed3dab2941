//! What reconciliation needs of the ledger: checkpoints, evidence, and whose account it is about.

use std::time::Duration;

use super::{JobState, Row};

/// How long after its end a purchase may still be missing from the gateway's counters: from when the
/// wait for its reply ended. Guess: the contract names no deadline. Releasing a purchase frees its key,
/// so this is long.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(300);

/// What the gateway's billing summary said (contract 2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// When the gateway was asked: wall-clock time since the Unix epoch.
    pub at: Duration,
    /// The account's balance, in cents.
    pub balance_cents: u64,
    /// Chats counted so far.
    pub chats: u64,
    /// What these chats cost, in cents.
    pub chat_cents: u64,
    /// What everything cost so far, in cents.
    pub spent_cents: u64,
}

/// A snapshot with its place among the purchases. Purchases are numbered in the order in which they
/// begin; numbers, unlike times, never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// What the gateway said.
    pub snapshot: Snapshot,
    /// Every purchase up to this number had ended at least [`SETTLES_WITHIN`] before the snapshot: the
    /// snapshot counts what was charged for it.
    pub settled: u64,
    /// The last purchase that had begun. The snapshot counts none after it; between the two numbers,
    /// nobody knows.
    pub number: u64,
}

/// A purchase as reconciliation sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The purchase.
    pub row: Row,
    /// Its place in the order in which purchases began, from 1 on.
    pub number: u64,
    /// It counts as charged because reconciliation or the operator says so: no reply was read.
    pub is_assumed: bool,
    /// Whether it was sent to this ledger's account for certain; see [`Account`].
    pub is_recognised: bool,
    /// What is known of the video's job.
    pub job: Option<JobState>,
}

/// Whose account a purchase is sent to. It is fixed when the purchase is sent, and outlives restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// The ledger's: the gateway has listed the account's keys since they last changed here.
    Recognised,
    /// Unknown. The purchase may have been charged to another account, so this account's counters neither
    /// prove nor disprove the charge.
    Unrecognised,
}

/// What to do with the ids of the keys that the gateway lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognise {
    /// Compare them with the noted ones, and write nothing.
    Look,
    /// Compare them, and note all of them if the account is the same. If they are another account's,
    /// earlier checkpoints are no longer used: that account may have been charged for purchases since.
    /// The noted rate limit is forgotten, as that account may have told it.
    Note,
    /// If they are another account's, give the ledger to that account: earlier ids become history, and
    /// earlier checkpoints are no longer used.
    Adopt,
}
