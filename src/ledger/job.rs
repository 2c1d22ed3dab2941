//! Video jobs, as the ledger keeps them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::PurchaseId;
use super::model::named_enum;
use crate::gateway::contract::money::Usd;

/// Identifies the key that ordered a job: a hash that reveals nothing about the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 8]);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The gateway's id for it (contract 2.5).
    pub request_id: Arc<str>,
    pub purchase: Option<PurchaseId>,
    pub owner: Arc<str>,
    pub key: Option<KeyId>,
    pub model: Arc<str>,
    pub price: Usd,
    pub at: Duration,
    /// `None` unless `jobs.keep_prompts` is on.
    pub prompt: Option<Arc<str>>,
    pub latest_update: Option<StatusUpdate>,
}

impl Job {
    pub fn is_open(&self) -> bool {
        self.latest_update.as_ref().is_none_or(|update| update.state == JobState::Open)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusUpdate {
    pub at: Duration,
    pub body: Bytes,
    pub state: JobState,
}

named_enum! {
    /// The state of a job, as far as its status body can be read (see `jobs::status`).
    pub enum JobState {
        Open = "open",
        Finished = "finished",
        Failed = "failed",
    }
}

/// A status that some server has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobNews {
    pub request_id: Arc<str>,
    /// Goes up with each status of the job.
    pub revision: u64,
    pub update: StatusUpdate,
}

/// The open jobs that another server polls or watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolledJobs {
    /// Someone watches these at another server.
    pub watched: Vec<Arc<str>>,
    /// Another server polls these.
    pub taken: Vec<Arc<str>>,
}
