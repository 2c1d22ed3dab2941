//! The further endpoints of the gateway that the settings let through: what they cost, and the answers
//! of those that cost nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use moka::future::Cache;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use crate::contract::money::Usd;
use crate::problem::{GATEWAY_UNREACHABLE, Problem, UNKNOWN_ENDPOINT};
use crate::upstream::{Ask, Error, Reply, What};

/// For how long an answer serves everybody who asks for the same.
const FRESH: Duration = Duration::from_secs(1);

/// `gateway.passthrough`.
pub struct Further {
    gateway: BoxCloneSyncService<Ask, Reply, Error>,
    tolls: HashMap<String, Usd>,
    latest: Cache<Box<str>, Reply>,
}

impl Further {
    /// Asks through `gateway`; `tolls` are those of what is bought, by path.
    pub fn new<S>(gateway: S, tolls: HashMap<String, Usd>) -> Self
    where
        S: Service<Ask, Response = Reply, Error = Error> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        let latest = Cache::builder().max_capacity(100).time_to_live(FRESH).build();
        Self { gateway: BoxCloneSyncService::new(gateway), tolls, latest }
    }

    /// What a call of the endpoint at `path` costs.
    ///
    /// # Errors
    /// 404 `unknown_endpoint` where nothing is sold at it.
    pub fn toll(&self, path: &str) -> Result<Usd, Problem> {
        self.tolls.get(path).copied().ok_or_else(|| Problem::new(&UNKNOWN_ENDPOINT))
    }

    /// The gateway's answer to a `GET` of `path`, at most a second old: one question for all who ask.
    ///
    /// # Errors
    /// 502 or 503, as of any question.
    pub async fn read(&self, path: &str) -> Result<Reply, Problem> {
        let (method, body) = (Method::GET, Bytes::new());
        let ask = Ask::free(What::Other { method, path: path.into(), body });
        let gateway = self.gateway.clone();
        // In a task of its own: whoever asks first may hang up, and the others still wait for it.
        let asking = async {
            match tokio::spawn(gateway.oneshot(ask)).await {
                Ok(outcome) => outcome.map_err(|error| error.of_read()),
                Err(_stopped) => Err(Problem::new(&GATEWAY_UNREACHABLE)),
            }
        };
        let reply = self.latest.try_get_with(path.into(), asking).await;
        reply.map_err(|problem: Arc<Problem>| (*problem).clone())
    }
}
