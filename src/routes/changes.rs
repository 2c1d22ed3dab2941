//! Makes an admin's change once for each `Idempotency-Key`: it is repeated if its answer was lost.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use blake3::Hash;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use tracing::Instrument;

use super::purchases;
use crate::downstream::Call;
use crate::problem::{IDEMPOTENCY_KEY_REUSED, INTERNAL, Problem, REPLAYED};
use crate::purchase::DedupeBy;
use crate::response::{Body, HandlerResult, Response};

const KEEP_FOR: Duration = Duration::from_secs(60 * 60);
const MAX_KEPT: u64 = 1_000;

/// The answers to this server's latest changes that have a key.
#[derive(Clone)]
pub struct RecentChanges(Cache<Hash, Answer>);

#[derive(Clone)]
struct Answer {
    payload: Hash,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Default for RecentChanges {
    fn default() -> Self {
        Self(
            Cache::builder()
                .eviction_policy(EvictionPolicy::lru())
                .max_capacity(MAX_KEPT)
                .time_to_live(KEEP_FOR)
                .build(),
        )
    }
}

/// A change that has a key.
pub(super) struct KeyedChange {
    /// Of the caller, the method, the path and the key.
    id: Hash,
    payload: Hash,
}

impl KeyedChange {
    pub(super) fn of(call: &Call) -> Result<Option<Self>, Problem> {
        let DedupeBy::IdempotencyKey(key) = purchases::dedupe_key(&call.head.headers)? else {
            return Ok(None);
        };
        let (caller, path) = (call.caller.name(), call.head.uri.path());
        // Only the caller's name may have a space.
        let id = format!("{caller} {} {path} {key}", call.head.method);
        let [id, payload] = [id.as_bytes(), &call.body].map(blake3::hash);
        Ok(Some(Self { id, payload }))
    }
}

impl RecentChanges {
    /// Makes a change, or returns the answer of the same one. A refused change can be repeated.
    pub(super) async fn make(
        &self,
        KeyedChange { id, payload }: KeyedChange,
        handling: Pin<Box<dyn Future<Output = HandlerResult> + Send>>,
    ) -> HandlerResult {
        let made = async move {
            let (parts, body) = handling.await?.into_parts();
            let body = body.whole().unwrap_or_default();
            Ok(Answer { payload, status: parts.status, headers: parts.headers, body })
        };
        let cache = self.0.clone();
        let made = async move { cache.entry(id).or_try_insert_with(made).await };
        // In its own task: if this client disconnects, another one must not begin the change again.
        let made = tokio::spawn(made.in_current_span()).await;
        let made = made.map_err(|_stopped| Problem::new(&INTERNAL))?;
        let made = made.map_err(|refused: Arc<Problem>| (*refused).clone())?;
        let is_replay = !made.is_fresh();
        let answer = made.into_value();
        if answer.payload != payload {
            return Err(Problem::new(&IDEMPOTENCY_KEY_REUSED));
        }
        let mut response = Response::new(Body::from(answer.body));
        (*response.status_mut(), *response.headers_mut()) = (answer.status, answer.headers);
        if is_replay {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        Ok(response)
    }
}
