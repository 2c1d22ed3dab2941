//! Sends a request to the gateway: picks a key, waits for a rate-limit slot, sends.
//!
//! Each attempt takes a slot of its own, so a retry with the next key is counted as well.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::warn;

use super::rate_limit::RateLimit;
use super::{Attempt, Error, GatewayReply, GatewayRequest};
use crate::clock::{self, Instant};
use crate::metrics::Metrics;
use crate::sync::lock;

/// Sends one attempt: the [`Client`](super::client::Client), or a closure in a test.
pub trait SendAttempt: Clone + Send + Sync + 'static {
    fn send(&self, attempt: Attempt) -> impl Future<Output = Result<GatewayReply, Error>> + Send;
}

#[cfg(test)]
impl<F, R> SendAttempt for F
where
    F: Fn(Attempt) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<GatewayReply, Error>> + Send,
{
    fn send(&self, attempt: Attempt) -> impl Future<Output = Result<GatewayReply, Error>> + Send {
        self(attempt)
    }
}

type Script = dyn Fn(Attempt) -> BoxFuture<'static, Result<GatewayReply, Error>> + Send + Sync;

/// Stands in for the gateway and the connection to it, for tests on a paused clock.
#[derive(Clone)]
pub struct ScriptedClient(Arc<Script>);

impl ScriptedClient {
    pub fn new<R>(script: impl Fn(Attempt) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = Result<GatewayReply, Error>> + Send + 'static,
    {
        Self(Arc::new(move |attempt| Box::pin(script(attempt))))
    }
}

impl SendAttempt for ScriptedClient {
    fn send(&self, attempt: Attempt) -> impl Future<Output = Result<GatewayReply, Error>> + Send {
        (self.0)(attempt)
    }
}

#[derive(Clone)]
pub struct Gateway<T> {
    pub key_ring: Arc<Mutex<KeyRing>>,
    pub rate_limit: Arc<RateLimit>,
    pub max_wait: Duration,
    pub metrics: Arc<Metrics>,
    pub client: T,
}

impl<T: SendAttempt> Gateway<T> {
    /// Sends with the preferred key, else with the first usable one. After a 401 it tries the next
    /// key. Guess: a 401 is free, as 5.8 and 5.9 suggest.
    pub async fn send(&self, request: GatewayRequest) -> Result<GatewayReply, Error> {
        let (mut from, since) = (0, clock::now());
        let mut preferred = request.preferred_key;
        loop {
            let key = lock(&self.key_ring).next(preferred.take(), &mut from, clock::now());
            let key = key.ok_or(Error::AllKeysRejected)?;
            match self.attempt(Attempt { request: request.clone(), key, since }).await {
                Err(Error::KeyRejected { .. }) => {
                    lock(&self.key_ring).mark_rejected(key, clock::now());
                    warn!(position = key + 1, "gateway key rejected");
                }
                Ok(reply) => {
                    lock(&self.key_ring).mark_answered(key, reply.status.is_success());
                    return Ok(reply);
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Waits for a slot and sends with one key. After a 429 it retries until `max_wait` is over.
    pub(super) async fn attempt(&self, attempt: Attempt) -> Result<GatewayReply, Error> {
        let mut give_up = (!attempt.request.is_patient).then(|| attempt.since + self.max_wait);
        let recorded =
            attempt.request.before_send.as_ref().and_then(|purchase| purchase.take_slot());
        let queued_at = clock::now();
        let acquired = match recorded {
            Some(slot) => Ok(slot),
            None => self.rate_limit.acquire(&attempt, give_up, false).await,
        };
        self.metrics.slot_wait(attempt.request.call.name(), clock::now() - queued_at);
        let mut slot = acquired?;
        loop {
            let sent_at = clock::now();
            let outcome = self.client.send(attempt.clone()).await;
            self.metrics.gateway_call(attempt.request.call.name(), clock::now() - sent_at);
            slot.finish(&outcome);
            if !matches!(outcome, Err(Error::Throttled { .. })) {
                return outcome;
            }
            // Even a patient request gives up if the gateway keeps answering 429.
            let give_up = *give_up.get_or_insert_with(|| clock::now() + self.max_wait);
            slot = match self.rate_limit.acquire(&attempt, Some(give_up), true).await {
                Err(Error::NoSlot { retry_after }) => {
                    return Err(Error::Throttled { retry_after: Some(retry_after) });
                }
                granted => granted?,
            };
        }
    }
}

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Retries rejected keys with exponential backoff, by one request at a time.
#[derive(Debug)]
pub struct KeyRing(Vec<KeyState>);

#[derive(Clone, Copy, Debug)]
enum KeyState {
    Untried,
    Accepted,
    Rejected(Backoff),
}

#[derive(Clone, Copy, Debug)]
struct Backoff {
    until: Instant,
    next: Duration,
}

impl KeyRing {
    pub fn new(keys: usize) -> Self {
        Self(vec![KeyState::Untried; keys])
    }

    /// Returns the preferred key unless it is rejected, else the first one from `from`.
    fn next(&mut self, preferred: Option<usize>, from: &mut usize, now: Instant) -> Option<usize> {
        let is_usable = |index: &usize| self.0.get(*index).is_some_and(KeyState::is_usable);
        preferred.filter(is_usable).or_else(|| {
            let picked = self.pick(*from, now)?;
            *from = picked + 1;
            Some(picked)
        })
    }

    /// A rejected key whose backoff is over is returned once, and waits again until its probe ends.
    fn pick(&mut self, from: usize, now: Instant) -> Option<usize> {
        let mut keys = self.0.iter_mut().enumerate().skip(from);
        let (index, key) = keys.find(|(_, key)| match key {
            KeyState::Untried | KeyState::Accepted => true,
            KeyState::Rejected(backoff) => backoff.until <= now,
        })?;
        if let KeyState::Rejected(Backoff { until, next }) = key {
            *until = now + *next;
        }
        Some(index)
    }

    fn mark_rejected(&mut self, index: usize, now: Instant) {
        if let Some(key) = self.0.get_mut(index) {
            let wait = match key {
                KeyState::Untried | KeyState::Accepted => FIRST_BACKOFF,
                KeyState::Rejected(backoff) => backoff.next,
            };
            let backoff = Backoff { until: now + wait, next: (wait * 2).min(MAX_BACKOFF) };
            *key = KeyState::Rejected(backoff);
        }
    }

    /// Makes a key usable that was not rejected. Only a success proves that the gateway accepts it.
    fn mark_answered(&mut self, index: usize, is_success: bool) {
        if let Some(key) = self.0.get_mut(index) {
            *key = if is_success { KeyState::Accepted } else { KeyState::Untried };
        }
    }

    /// Returns whether each key is usable, in the order of the settings.
    pub fn are_usable(&self) -> Vec<bool> {
        self.0.iter().map(KeyState::is_usable).collect()
    }

    /// Returns whether the gateway rejected each key last; `None` before its first answer.
    pub fn are_rejected(&self) -> Vec<Option<bool>> {
        let is_rejected = |key: &KeyState| match key {
            KeyState::Untried => None,
            KeyState::Accepted => Some(false),
            KeyState::Rejected(_) => Some(true),
        };
        self.0.iter().map(is_rejected).collect()
    }
}

impl KeyState {
    fn is_usable(&self) -> bool {
        !matches!(self, Self::Rejected(_))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;

    use super::*;
    use crate::gateway::GatewayCall;
    use crate::gateway::rate_limit::tests::wide;

    /// Sends a request with a preferred key, and returns the keys tried. The gateway rejects `rejected`.
    async fn tried(
        ring: &Arc<Mutex<KeyRing>>,
        prefer: usize,
        rejected: &'static [usize],
    ) -> Vec<usize> {
        let tried = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&tried);
        let transport = move |Attempt { key, .. }: Attempt| {
            seen.lock().unwrap().push(key);
            let (status, body) = (StatusCode::OK, Bytes::new());
            let reply = GatewayReply { status, is_json: true, body, key, video: None };
            let is_rejected = rejected.contains(&key);
            async move { if is_rejected { Err(Error::KeyRejected { key }) } else { Ok(reply) } }
        };
        let (ring, max_wait) = (Arc::clone(ring), Duration::ZERO);
        let metrics = Arc::default();
        let gateway =
            Gateway { key_ring: ring, rate_limit: wide(), max_wait, metrics, client: transport };
        gateway
            .send(GatewayRequest {
                preferred_key: Some(prefer),
                ..GatewayRequest::free(GatewayCall::Billing)
            })
            .await
            .ok();
        let tried = tried.lock().unwrap();
        tried.clone()
    }

    #[test]
    fn verdict_on_a_key_is_unknown_until_the_gateway_gives_one() {
        let mut ring = KeyRing::new(3);
        assert_eq!(ring.are_rejected(), [None; 3]);
        ring.mark_rejected(0, clock::now());
        ring.mark_answered(1, true);
        ring.mark_answered(2, false);
        assert_eq!(ring.are_rejected(), [Some(true), Some(false), None]);
        assert_eq!(ring.are_usable(), [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn preferred_key_is_tried_first_unless_rejected() {
        let ring = Arc::new(Mutex::new(KeyRing::new(3)));
        assert_eq!(tried(&ring, 2, &[]).await, [2]);
        assert_eq!(tried(&ring, 7, &[]).await, [0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [1, 0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [0], "it waits for its backoff");
        assert_eq!(tried(&ring, 2, &[0, 1, 2]).await, [2, 0]);
        assert_eq!(ring.lock().unwrap().are_usable(), [false; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_key_is_probed_once_and_restored() {
        let start = clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut ring = KeyRing::new(2);
        assert_eq!(ring.pick(0, start), Some(0));
        ring.mark_rejected(0, start);
        assert_eq!(ring.pick(0, start), Some(1));
        ring.mark_rejected(1, start);
        assert_eq!((ring.pick(0, start), ring.are_usable()), (None, vec![false; 2]));

        // One probe when its time has come, none beside it.
        assert_eq!(ring.pick(0, after(1)), Some(0));
        assert_eq!(ring.pick(1, after(1)), Some(1));
        assert_eq!(ring.pick(0, after(1)), None);
        ring.mark_rejected(0, after(1));
        assert_eq!(ring.pick(0, after(2)), None);
        ring.mark_answered(1, true);
        assert_eq!((ring.pick(0, after(2)), ring.are_usable()), (Some(1), vec![false, true]));
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_key_is_probed_once_a_minute() {
        let mut now = clock::now();
        let mut ring = KeyRing::new(1);
        let mut probes = 0;
        for _ in 0..600 {
            if ring.pick(0, now).is_some() {
                probes += 1;
                ring.mark_rejected(0, now);
            }
            now += Duration::from_secs(1);
        }
        assert!((10..=16).contains(&probes), "{probes} probes in ten minutes");
    }
}
