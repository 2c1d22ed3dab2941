//! The way of an ask to the gateway: it picks a key, waits for a slot in the rate limit, and sends.
//!
//! The rate limit is inside the ring of keys, so that the next key's attempt takes a slot of its own:
//! every request that leaves is counted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::warn;

use super::rate_limit::RateLimit;
use super::{Attempt, Error, GatewayReply, GatewayRequest};
use crate::clock::{self, Instant};
use crate::sync::lock;

/// Sends one attempt: the [`Client`](super::client::Client), or what stands in for it in a test.
pub trait SendAttempt: Clone + Send + Sync + 'static {
    fn send(&self, attempt: Attempt) -> impl Future<Output = Result<GatewayReply, Error>> + Send;
}

impl<F, R> SendAttempt for F
where
    F: Fn(Attempt) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<GatewayReply, Error>> + Send,
{
    fn send(&self, attempt: Attempt) -> impl Future<Output = Result<GatewayReply, Error>> + Send {
        self(attempt)
    }
}

/// The gateway as one core asks it.
#[derive(Clone)]
pub struct Gateway<T> {
    /// Shared by every core, as is the window.
    pub key_ring: Arc<Mutex<KeyRing>>,
    pub rate_limit: Arc<RateLimit>,
    /// How long an ask waits for slots in all, unless it is patient.
    pub max_wait: Duration,
    pub client: T,
}

impl<T: SendAttempt> Gateway<T> {
    /// Asks with the key that the ask prefers, else with the first that is not known to be refused. A
    /// 401 is taken to be free (a guess that the contract's rules for keys suggest: 5.8, 5.9), so the
    /// same ask goes on with the next key.
    pub async fn send(&self, ask: GatewayRequest) -> Result<GatewayReply, Error> {
        let (mut from, since) = (0, clock::now());
        let mut prefer = ask.preferred_key;
        loop {
            let key = lock(&self.key_ring).next(prefer.take(), &mut from, clock::now());
            let key = key.ok_or(Error::AllKeysRejected)?;
            match self.attempt(Attempt { request: ask.clone(), key, since }).await {
                Err(Error::KeyRejected { .. }) => {
                    lock(&self.key_ring).mark_rejected(key, clock::now());
                    warn!(key = key + 1, "the gateway refuses this key of the ring");
                }
                Ok(reply) => {
                    lock(&self.key_ring).mark_accepted(key);
                    return Ok(reply);
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Sends with one key when there is a slot for it; after a 429 once more, within `max_wait` of the
    /// ask's first moment.
    pub(super) async fn attempt(&self, attempt: Attempt) -> Result<GatewayReply, Error> {
        let mut give_up = (!attempt.request.is_patient).then(|| attempt.since + self.max_wait);
        let mut slot = self.rate_limit.acquire(&attempt, give_up, false).await?;
        loop {
            let outcome = self.client.send(attempt.clone()).await;
            slot.finish(&outcome);
            if !matches!(outcome, Err(Error::Throttled { .. })) {
                return outcome;
            }
            // Patience is for the queue: a gateway that refuses is not asked for ever.
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

const FIRST_PARK: Duration = Duration::from_secs(1);
const MAX_PARK: Duration = Duration::from_secs(60);

/// Remembers which keys the gateway refuses. A refused key is parked and probed again later, ever less
/// often, by one ask at a time. Decisions only: the time is passed in.
#[derive(Debug)]
pub struct KeyRing(Vec<Option<Parked>>);

#[derive(Clone, Copy, Debug)]
struct Parked {
    until: Instant,
    next_park: Duration,
}

impl KeyRing {
    pub fn new(keys: usize) -> Self {
        Self(vec![None; keys])
    }

    /// Returns the next key to try: the preferred one while nobody refuses it, else the first from `from` on.
    fn next(&mut self, preferred: Option<usize>, from: &mut usize, now: Instant) -> Option<usize> {
        let is_good = |place: &usize| matches!(self.0.get(*place), Some(None));
        preferred.filter(is_good).or_else(|| {
            let picked = self.pick(*from, now)?;
            *from = picked + 1;
            Some(picked)
        })
    }

    /// The first key from `from` on that may be tried. A parked key whose time has come is handed
    /// out once, and parked again until its probe has an outcome.
    fn pick(&mut self, from: usize, now: Instant) -> Option<usize> {
        let mut keys = self.0.iter_mut().enumerate().skip(from);
        let (place, parked) =
            keys.find(|(_, parked)| parked.is_none_or(|parked| parked.until <= now))?;
        if let Some(Parked { until, next_park }) = parked {
            *until = now + *next_park;
        }
        Some(place)
    }

    fn mark_rejected(&mut self, place: usize, now: Instant) {
        if let Some(parked) = self.0.get_mut(place) {
            let park = parked.map_or(FIRST_PARK, |parked| parked.next_park);
            *parked = Some(Parked { until: now + park, next_park: (park * 2).min(MAX_PARK) });
        }
    }

    fn mark_accepted(&mut self, place: usize) {
        if let Some(parked) = self.0.get_mut(place) {
            *parked = None;
        }
    }

    /// How many keys are not known to be refused.
    pub fn usable(&self) -> usize {
        self.0.iter().filter(|parked| parked.is_none()).count()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;

    use super::*;
    use crate::upstream::GatewayCall;
    use crate::upstream::rate_limit::tests::wide;

    /// The keys that were tried for an ask that prefers one, where the gateway refuses these.
    async fn tried(
        ring: &Arc<Mutex<KeyRing>>,
        prefer: usize,
        refuses: &'static [usize],
    ) -> Vec<usize> {
        let tried = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&tried);
        let transport = move |Attempt { key, .. }: Attempt| {
            seen.lock().unwrap().push(key);
            let (status, body) = (StatusCode::OK, Bytes::new());
            let reply = GatewayReply { status, is_json: true, body, key, video: None };
            let refused = refuses.contains(&key);
            async move { if refused { Err(Error::KeyRejected { key }) } else { Ok(reply) } }
        };
        let (ring, max_wait) = (Arc::clone(ring), Duration::ZERO);
        let gateway = Gateway { key_ring: ring, rate_limit: wide(), max_wait, client: transport };
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

    #[tokio::test(start_paused = true)]
    async fn the_preferred_key_is_tried_first_while_it_is_good_and_then_any_other() {
        let ring = Arc::new(Mutex::new(KeyRing::new(3)));
        assert_eq!(tried(&ring, 2, &[]).await, [2]);
        assert_eq!(tried(&ring, 7, &[]).await, [0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [1, 0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [0], "it is parked");
        assert_eq!(tried(&ring, 2, &[0, 1, 2]).await, [2, 0]);
        assert_eq!(ring.lock().unwrap().usable(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_key_is_parked_probed_once_and_taken_back() {
        let start = clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut ring = KeyRing::new(2);
        assert_eq!(ring.pick(0, start), Some(0));
        ring.mark_rejected(0, start);
        assert_eq!(ring.pick(0, start), Some(1));
        ring.mark_rejected(1, start);
        assert_eq!((ring.pick(0, start), ring.usable()), (None, 0));

        // One probe when its time has come, none beside it.
        assert_eq!(ring.pick(0, after(1)), Some(0));
        assert_eq!(ring.pick(1, after(1)), Some(1));
        assert_eq!(ring.pick(0, after(1)), None);
        ring.mark_rejected(0, after(1));
        assert_eq!(ring.pick(0, after(2)), None);
        ring.mark_accepted(1);
        assert_eq!((ring.pick(0, after(2)), ring.usable()), (Some(1), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_stays_refused_is_probed_once_a_minute() {
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
