//! Picks the key for each ask: the one that it prefers, else the first that the gateway is not known
//! to refuse.
//!
//! A 401 is taken to be free (a guess that the contract's rules for keys suggest: 5.8, 5.9), so the
//! same ask goes on with the next key. A refused key is parked and probed again later, ever less
//! often, by one ask at a time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::warn;

use super::{Ask, Attempt, Error, Reply};
use crate::clock::{self, Instant};

const FIRST_PARK: Duration = Duration::from_secs(1);
const LONGEST_PARK: Duration = Duration::from_secs(60);

/// The state of every key, shared by every core. Decisions only: the time is passed in.
#[derive(Debug)]
pub struct Ring {
    keys: Vec<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Good,
    Parked { until: Instant, next_park: Duration },
}

impl Ring {
    /// A ring of `keys` keys that nobody has refused yet.
    pub fn new(keys: usize) -> Self {
        Self { keys: vec![State::Good; keys] }
    }

    /// The first key from `from` on that may be tried. A parked key whose time has come is handed
    /// out once, and parked again until its probe has an outcome.
    fn pick(&mut self, from: usize, now: Instant) -> Option<usize> {
        let (place, state) =
            self.keys.iter_mut().enumerate().skip(from).find(|(_, state)| match state {
                State::Good => true,
                State::Parked { until, .. } => *until <= now,
            })?;
        if let State::Parked { until, next_park } = state {
            *until = now + *next_park;
        }
        Some(place)
    }

    /// Whether this key is there, and nobody has refused it.
    fn is_good(&self, place: usize) -> bool {
        matches!(self.keys.get(place), Some(State::Good))
    }

    fn refused(&mut self, place: usize, now: Instant) {
        if let Some(state) = self.keys.get_mut(place) {
            let park = match *state {
                State::Good => FIRST_PARK,
                State::Parked { next_park, .. } => next_park,
            };
            *state = State::Parked { until: now + park, next_park: (park * 2).min(LONGEST_PARK) };
        }
    }

    fn accepted(&mut self, place: usize) {
        if let Some(state) = self.keys.get_mut(place) {
            *state = State::Good;
        }
    }

    /// How many keys are not known to be refused.
    pub fn good(&self) -> usize {
        self.keys.iter().filter(|state| matches!(state, State::Good)).count()
    }
}

/// See the file's documentation.
#[derive(Clone, Debug)]
pub struct Keyring<S> {
    inner: S,
    ring: Arc<Mutex<Ring>>,
}

/// Asks with the keys of `ring`.
pub fn layer<S>(ring: Arc<Mutex<Ring>>) -> impl Layer<S, Service = Keyring<S>> + Clone {
    layer_fn(move |inner| Keyring { inner, ring: Arc::clone(&ring) })
}

impl<S> Service<Ask> for Keyring<S>
where
    S: Service<Attempt, Response = Reply, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Reply;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, ask: Ask) -> Self::Future {
        // Take the service that was polled ready, and leave its clone behind.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let ring = Arc::clone(&self.ring);
        let decide = move |decision: &mut dyn FnMut(&mut Ring)| {
            decision(&mut ring.lock().unwrap_or_else(PoisonError::into_inner));
        };
        Box::pin(async move {
            let (mut from, since) = (0, clock::now());
            let mut prefer = ask.prefer;
            loop {
                let mut picked = None;
                decide(&mut |ring| {
                    let preferred = prefer.take().filter(|place| ring.is_good(*place));
                    picked = preferred.or_else(|| {
                        let picked = ring.pick(from, clock::now())?;
                        from = picked + 1;
                        Some(picked)
                    });
                });
                let Some(key) = picked else { return Err(Error::NoKeyLeft) };
                std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
                let outcome = inner.call(Attempt { ask: ask.clone(), key, since }).await;
                match outcome {
                    Err(Error::KeyRefused { .. }) => {
                        decide(&mut |ring| ring.refused(key, clock::now()));
                        warn!(key = key + 1, "the gateway refuses this key of the ring");
                    }
                    Ok(reply) => {
                        decide(&mut |ring| ring.accepted(key));
                        return Ok(reply);
                    }
                    Err(other) => return Err(other),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::upstream::What;

    /// The keys that were tried for an ask that prefers one, where the gateway refuses these.
    async fn tried(
        ring: &Arc<Mutex<Ring>>,
        prefer: usize,
        refuses: &'static [usize],
    ) -> Vec<usize> {
        let tried = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&tried);
        let gateway = service_fn(move |Attempt { key, .. }: Attempt| {
            seen.lock().unwrap().push(key);
            let reply = Reply { status: StatusCode::OK, is_json: true, body: Bytes::new(), key };
            let refused = refuses.contains(&key);
            async move { if refused { Err(Error::KeyRefused { key }) } else { Ok(reply) } }
        });
        let ask = Ask { prefer: Some(prefer), ..Ask::free(What::Billing) };
        layer(Arc::clone(ring)).layer(gateway).oneshot(ask).await.ok();
        let tried = tried.lock().unwrap();
        tried.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn the_preferred_key_is_tried_first_while_it_is_good_and_then_any_other() {
        let ring = Arc::new(Mutex::new(Ring::new(3)));
        assert_eq!(tried(&ring, 2, &[]).await, [2]);
        assert_eq!(tried(&ring, 7, &[]).await, [0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [1, 0]);
        assert_eq!(tried(&ring, 1, &[1]).await, [0], "it is parked");
        assert_eq!(tried(&ring, 2, &[0, 1, 2]).await, [2, 0]);
        assert_eq!(ring.lock().unwrap().good(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_key_is_parked_probed_once_and_taken_back() {
        let start = clock::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut ring = Ring::new(2);
        assert_eq!(ring.pick(0, start), Some(0));
        ring.refused(0, start);
        assert_eq!(ring.pick(0, start), Some(1));
        ring.refused(1, start);
        assert_eq!((ring.pick(0, start), ring.good()), (None, 0));

        // One probe when its time has come, none beside it.
        assert_eq!(ring.pick(0, after(1)), Some(0));
        assert_eq!(ring.pick(1, after(1)), Some(1));
        assert_eq!(ring.pick(0, after(1)), None);
        ring.refused(0, after(1));
        assert_eq!(ring.pick(0, after(2)), None);
        ring.accepted(1);
        assert_eq!((ring.pick(0, after(2)), ring.good()), (Some(1), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_stays_refused_is_probed_once_a_minute() {
        let mut now = clock::now();
        let mut ring = Ring::new(1);
        let mut probes = 0;
        for _ in 0..600 {
            if ring.pick(0, now).is_some() {
                probes += 1;
                ring.refused(0, now);
            }
            now += Duration::from_secs(1);
        }
        assert!((10..=16).contains(&probes), "{probes} probes in ten minutes");
    }
}
