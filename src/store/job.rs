//! What the store holds of jobs and of the gateway's window.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::contract::money::Usd;

/// How long the log of the window reaches back; no window is longer.
pub(super) const KEEP_PLACES: Duration = Duration::from_secs(86_400);

/// One request that went to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub Uuid);

impl Place {
    /// A new one; later ones are greater.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// The account's rate limit as the gateway told it (contract 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountLimit {
    /// Requests in any window.
    pub requests: u64,
    /// The length of a window in seconds.
    pub window_seconds: u64,
}

/// Which key of the account made a job: a hash of the key, so that it can be told among the keys of a
/// later ring and tells nothing itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 8]);

/// A video that was ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The gateway's name for it (contract 2.5).
    pub request_id: Arc<str>,
    /// The purchase that it was ordered with, where that is known.
    pub purchase: Option<super::PurchaseId>,
    /// Whose it is, as [`super::Caller`] is written.
    pub owner: Arc<str>,
    /// The key that it was ordered with, where that is known.
    pub key: Option<KeyId>,
    /// The model that makes it.
    pub model: Arc<str>,
    /// What it cost.
    pub toll: Usd,
    /// When it was accepted: wall-clock time since the Unix epoch.
    pub at: Duration,
    /// The gateway's latest word on it.
    pub latest: Option<Word>,
}

impl Job {
    /// Whether it has not ended, as far as we know.
    pub fn is_open(&self) -> bool {
        self.latest.as_ref().is_none_or(|word| word.state == JobState::Open)
    }
}

/// What the gateway said of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// When: wall-clock time since the Unix epoch.
    pub at: Duration,
    /// The status body, unchanged.
    pub body: Bytes,
    /// What the words of `[jobs]` make of it.
    pub state: JobState,
}

/// Where a job is, as far as its status body can be read (see `jobs::reading`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Not at an end that we know.
    Open,
    /// There is a video.
    Finished,
    /// There will be none.
    Failed,
}

impl JobState {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Open, Self::Finished, Self::Failed];

    /// As the store and the answers write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}
