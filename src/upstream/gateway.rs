//! The way of an ask to the gateway: it picks a key, waits for a slot in the rate limit, and sends.
//!
//! The rate limit is inside the ring of keys, so that the next key's attempt takes a slot of its own:
//! every request that leaves is counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use super::keyring::Ring;
use super::window::Window;
use super::{Ask, Attempt, Error, Reply};
use crate::clock;

/// Sends one attempt: the [`Client`](super::client::Client), or what stands in for it in a test.
pub trait Transport: Clone + Send + Sync + 'static {
    /// The gateway's reply.
    fn send(&self, attempt: Attempt) -> impl Future<Output = Result<Reply, Error>> + Send;
}

impl<F, R> Transport for F
where
    F: Fn(Attempt) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Reply, Error>> + Send,
{
    fn send(&self, attempt: Attempt) -> impl Future<Output = Result<Reply, Error>> + Send {
        self(attempt)
    }
}

/// The gateway as one core asks it.
#[derive(Clone, Debug)]
pub struct Gateway<T> {
    /// The keys, shared by every core.
    pub ring: Arc<Mutex<Ring>>,
    /// The account's rate limit, shared by every core.
    pub window: Arc<Window>,
    /// How long an ask waits for slots in all, unless it is patient.
    pub max_wait: Duration,
    /// This core's connections.
    pub transport: T,
}

impl<T: Transport> Gateway<T> {
    /// Asks with the key that the ask prefers, else with the first that is not known to be refused. A
    /// 401 is taken to be free (a guess that the contract's rules for keys suggest: 5.8, 5.9), so the
    /// same ask goes on with the next key.
    ///
    /// # Errors
    /// Why there is no reply that may be passed on.
    pub async fn ask(&self, ask: Ask) -> Result<Reply, Error> {
        let (mut from, since) = (0, clock::now());
        let mut prefer = ask.prefer;
        loop {
            let key = self.ring(|ring| ring.next(prefer.take(), &mut from, clock::now()));
            let key = key.ok_or(Error::NoKeyLeft)?;
            match self.attempt(Attempt { ask: ask.clone(), key, since }).await {
                Err(Error::KeyRefused { .. }) => {
                    self.ring(|ring| ring.refused(key, clock::now()));
                    warn!(key = key + 1, "the gateway refuses this key of the ring");
                }
                Ok(reply) => {
                    self.ring(|ring| ring.accepted(key));
                    return Ok(reply);
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Sends with one key when there is a slot for it; after a 429 once more, within `max_wait` of the
    /// ask's first moment.
    pub(super) async fn attempt(&self, attempt: Attempt) -> Result<Reply, Error> {
        let mut give_up = (!attempt.ask.is_patient).then(|| attempt.since + self.max_wait);
        let mut slot = self.window.slot(&attempt, give_up, false).await?;
        loop {
            slot.sending();
            let outcome = self.transport.send(attempt.clone()).await;
            match &outcome {
                Err(Error::Throttled { retry_after }) => slot.throttled(*retry_after),
                Err(error) if !error.was_sent() => {
                    slot.unsent();
                    return outcome;
                }
                Ok(_) | Err(_) => {
                    slot.replied();
                    return outcome;
                }
            }
            // Patience is for the queue: a gateway that refuses is not asked for ever.
            let give_up = *give_up.get_or_insert_with(|| clock::now() + self.max_wait);
            slot = match self.window.slot(&attempt, Some(give_up), true).await {
                Err(Error::WindowFull { retry_after }) => {
                    return Err(Error::Throttled { retry_after: Some(retry_after) });
                }
                granted => granted?,
            };
        }
    }

    fn ring<R>(&self, decide: impl FnOnce(&mut Ring) -> R) -> R {
        decide(&mut self.ring.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
