//! Makes one purchase of all that are the same: a repeat joins the call that is running, or is
//! answered from the ledger.
//!
//! Stock SDKs and browsers send a lost POST again on their own, most without any key. The ledger
//! decides, in the step that sets the price aside, whether a purchase is new; here, those that are
//! not are answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout_at;
use tracing::error;

use super::{
    DedupeBy, Delivery, Outcome, Phase, PurchaseContext, PurchaseRequest, Receipt, Waiters,
};
use crate::clock::Instant;
use crate::contract::video::VideoAccepted;
use crate::problem::{
    Charged, LEDGER_UNAVAILABLE, OUTCOME_UNKNOWN, OVERLOADED, Problem, STILL_RUNNING,
};
use crate::store::{ExistingPurchase, KeptReply, PurchaseId, PurchaseState, Service, Unavailable};
use crate::sync::lock;

/// What a repeat is told to wait for a call that has not ended.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// How much of kept replies is in memory at once because it is being sent again, in KiB.
const MAX_REPLAY_KIB: u32 = 64 * 1_024;
/// A reply of so many bytes takes none of that room: a connection buffers more than that.
const SMALL_REPLY: usize = 16 * 1_024;

/// The purchases that are running in this process, and the room for replies that are sent again;
/// shared by every core.
#[derive(Clone)]
pub struct RunningPurchases {
    calls: Arc<Mutex<HashMap<PurchaseId, RunningPurchase>>>,
    replays: Arc<Semaphore>,
}

impl Default for RunningPurchases {
    fn default() -> Self {
        Self { calls: Arc::default(), replays: Arc::new(Semaphore::new(MAX_REPLAY_KIB as usize)) }
    }
}

#[derive(Clone)]
struct RunningPurchase {
    outcome: watch::Receiver<Option<Outcome>>,
    waiters: Waiters,
}

impl RunningPurchases {
    fn lock(&self) -> MutexGuard<'_, HashMap<PurchaseId, RunningPurchase>> {
        lock(&self.calls)
    }

    /// Lets others join this purchase until the guard is gone.
    pub(super) fn register(&self, purchase: &PurchaseRequest) -> RunningGuard {
        let (sender, outcome) = watch::channel(None);
        let call = RunningPurchase { outcome, waiters: purchase.waiters.clone() };
        self.lock().insert(purchase.id, call);
        RunningGuard { running: self.clone(), id: purchase.id, outcome: sender }
    }

    /// Waits until a kept reply of so many bytes may be read into memory. The room is taken until the
    /// last part of the reply is gone, so clients that do not read hold no more than all of it.
    async fn reserve_memory(
        &self,
        purchase: &PurchaseRequest,
        bytes: usize,
        give_up: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        if bytes <= SMALL_REPLY {
            return Ok(None);
        }
        let size =
            u32::try_from(bytes.div_ceil(1_024)).unwrap_or(MAX_REPLAY_KIB).min(MAX_REPLAY_KIB);
        let room = Arc::clone(&self.replays).acquire_many_owned(size);
        tokio::select! {
            biased;
            room = timeout_at(give_up, room) => match room {
                Ok(Ok(room)) => Ok(Some(room)),
                Ok(Err(_)) | Err(_) => Err(still_running().detail(
                    "its reply is kept, and too many kept replies are being read right now",
                )),
            },
            () = purchase.waiters.all_gone() => Err(Problem::new(&OVERLOADED)),
        }
    }
}

/// A purchase that others can join. It is closed also when its task panics or is stopped: those who
/// joined then see no outcome, and ask the ledger.
pub(super) struct RunningGuard {
    running: RunningPurchases,
    id: PurchaseId,
    outcome: watch::Sender<Option<Outcome>>,
}

impl RunningGuard {
    /// Tells those who joined, and hands the outcome on.
    pub(super) fn publish(self, outcome: Outcome) -> Outcome {
        self.outcome.send_replace(Some(outcome.clone()));
        outcome
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.running.lock().remove(&self.id);
    }
}

/// What a repeat is answered with; `None` where the ledger has to be asked again.
pub(super) async fn answer_duplicate(
    context: &PurchaseContext,
    purchase: &PurchaseRequest,
    earlier: ExistingPurchase,
    give_up: Instant,
) -> Option<Outcome> {
    // The one that it repeats may have been sent.
    purchase.progress.enter(Phase::AtRisk);
    match earlier.state {
        PurchaseState::Held | PurchaseState::Sent => {
            join(context, purchase, earlier.id, give_up).await
        }
        PurchaseState::Charged | PurchaseState::Released | PurchaseState::Unknown => {
            Some(replay(context, purchase, earlier, give_up).await)
        }
    }
}

/// The outcome of a running purchase; `None` when it ended without telling, or ran elsewhere: the ledger
/// knows more.
async fn join(
    context: &PurchaseContext,
    purchase: &PurchaseRequest,
    earlier: PurchaseId,
    give_up: Instant,
) -> Option<Outcome> {
    let call = context.running.lock().get(&earlier).cloned();
    let Some(mut call) = call else {
        return match timeout_at(give_up, context.ledger.wait_until_ended(earlier)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Err(unreadable(earlier, &error))),
            Err(_elapsed) => Some(Err(still_running())),
        };
    };
    call.waiters.merge(&purchase.waiters);
    let Ok(ended) = timeout_at(give_up, call.outcome.wait_for(Option::is_some)).await else {
        return Some(Err(still_running()));
    };
    match ended.ok()?.clone()? {
        // It was given up for want of anybody who waits, just before this one came.
        Err(problem) if problem.kind() == &OVERLOADED => None,
        Ok(receipt) => Some(Ok(Receipt { is_replay: true, ..receipt })),
        Err(problem) => Some(Err(problem.replayed())),
    }
}

async fn replay(
    context: &PurchaseContext,
    purchase: &PurchaseRequest,
    earlier: ExistingPurchase,
    give_up: Instant,
) -> Outcome {
    let ExistingPurchase { id, state, cost, reply_bytes } = earlier;
    if state != PurchaseState::Charged {
        return Err(Problem::new(&OUTCOME_UNKNOWN).replayed());
    }
    let Some(bytes) = reply_bytes else { return Err(reply_lost()) };
    let room = context.running.reserve_memory(purchase, bytes, give_up).await?;
    let reply = context.ledger.reply(id).await.map_err(|error| unreadable(id, &error))?;
    let KeptReply { status, is_json, body } = reply.ok_or_else(reply_lost)?;
    let is_video = purchase.service() == Service::Video;
    Ok(Receipt {
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::OK),
        is_json,
        video: is_video.then(|| VideoAccepted::read(&body)).flatten(),
        body: match room {
            Some(room) => Bytes::from_owner(InRoom { body, _room: room }),
            None => body,
        },
        cost,
        is_replay: true,
        delivery: matches!(purchase.dedupe_by, DedupeBy::Fingerprint { .. })
            .then(|| Delivery { ledger: context.ledger.clone(), id }),
    })
}

/// A reply with the room that it takes.
struct InRoom {
    body: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for InRoom {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

fn unreadable(id: PurchaseId, error: &Unavailable) -> Problem {
    error!(%id, %error, "earlier purchase unreadable");
    Problem::new(&LEDGER_UNAVAILABLE).retry_after(RETRY_AFTER)
}

fn reply_lost() -> Problem {
    Problem::new(&OUTCOME_UNKNOWN)
        .charged(Charged::Yes)
        .detail("it was bought and charged, and its reply is lost or no longer kept")
        .replayed()
}

fn still_running() -> Problem {
    Problem::new(&STILL_RUNNING).retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests;
