//! How far a job is: one question to the gateway for all who ask at about the same time.
//!
//! For now a job is asked for when somebody asks us; the poller of each open job, its owner and its
//! event stream join with the account's issue.

pub mod reading;

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use tokio_util::task::TaskTracker;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use crate::problem::{GATEWAY_UNREACHABLE, JOB_NOT_FOUND, Problem};
use crate::upstream::{Ask, Error, Reply, What};
use crate::validate::{Checked, StatusQuery};

/// For how long an answer serves everybody who asks for the same job.
const FRESH: Duration = Duration::from_secs(1);
/// Jobs whose latest answer is kept.
const MOST_KEPT: u64 = 1_000;

/// Asks the gateway about jobs.
#[derive(Clone)]
pub struct Jobs {
    gateway: BoxCloneSyncService<Ask, Reply, Error>,
    latest: Cache<Box<str>, Reply>,
    tasks: TaskTracker,
}

impl Jobs {
    /// Asks through `gateway`, in tasks that `tasks` tracks.
    pub fn new<S>(gateway: S, tasks: TaskTracker) -> Self
    where
        S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        let latest = Cache::builder().max_capacity(MOST_KEPT).time_to_live(FRESH).build();
        Self { gateway: BoxCloneSyncService::new(gateway), latest, tasks }
    }

    /// The gateway's latest word on a job, at most a second old.
    pub async fn status(&self, query: Checked<StatusQuery>) -> Result<Reply, Problem> {
        let request_id = query.get().request_id.clone();
        let gateway = self.gateway.clone();
        let ask = Ask { what: What::VideoStatus { request_id: request_id.clone() } };
        // In a task of its own: whoever asks first may hang up, and the others still wait for it.
        let asking = async {
            let task = self.tasks.spawn(gateway.oneshot(ask));
            match task.await {
                Ok(outcome) => outcome.map_err(|error| error.of_read()),
                Err(_stopped) => Err(Problem::new(&GATEWAY_UNREACHABLE)),
            }
        };
        let reply = self.latest.try_get_with(request_id, asking).await;
        let reply = reply.map_err(|problem: Arc<Problem>| (*problem).clone())?;
        match reply.status {
            http::StatusCode::NOT_FOUND => Err(Problem::new(&JOB_NOT_FOUND)),
            _ => Ok(reply),
        }
    }
}
