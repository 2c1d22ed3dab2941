//! Answers duplicates: they join the running purchase, or get its reply from the ledger.
//!
//! SDKs and browsers retry a lost POST on their own, mostly without a key. The ledger recognises
//! duplicates when it holds the price.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;
use tracing::error;

use super::{
    DedupeBy, Delivery, Outcome, Phase, PurchaseContext, PurchaseRequest, Receipt, Waiters,
};
use crate::clock::Instant;
use crate::gate::problem::{
    Charged, LEDGER_UNAVAILABLE, OUTCOME_UNKNOWN, OVERLOADED, Problem, STILL_RUNNING,
};
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::video::VideoAccepted;
use crate::ledger::{
    Caller, EarlierReply, ExistingPurchase, KeptReply, PurchaseId, PurchaseState, Service,
    Unavailable,
};
use crate::sync::{Bounds, FastMap, KeyedLimit, KeyedPermit, lock};

const RETRY_AFTER: Duration = Duration::from_secs(5);

const MAX_REPLAYS: usize = 64 << 20;
/// A caller's part of it, and the part that is kept for replies of up to `MEDIUM_REPLY`.
const REPLAY_SHARE: usize = MAX_REPLAYS / 8;
const MEDIUM_REPLY: usize = 256 << 10;
/// A smaller reply needs no permit: a connection buffers more than that. The ledger may read it at once.
const SMALL_REPLY: usize = 16 << 10;

/// The running purchases of this process, and the memory for replays; shared by all cores.
#[derive(Clone, Default)]
pub struct RunningPurchases {
    calls: Arc<Mutex<FastMap<PurchaseId, RunningPurchase>>>,
    /// By site: an IPv6 network may be any number of callers.
    replays: Arc<KeyedLimit<Caller>>,
    /// Notifies all who wait, so that a small reply does not wait behind a large one.
    replay_ended: Arc<Notify>,
    pub(super) deliveries: Deliveries,
}

/// The purchases whose replies are on their way to clients of this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries(Arc<Mutex<Vec<PurchaseId>>>);

impl Deliveries {
    pub(super) fn add(&self, id: PurchaseId) {
        lock(&self.0).push(id);
    }

    pub(super) fn remove(&self, id: PurchaseId) {
        let mut ids = lock(&self.0);
        if let Some(at) = ids.iter().position(|one| *one == id) {
            ids.swap_remove(at);
        }
    }

    fn contains(&self, id: PurchaseId) -> bool {
        lock(&self.0).contains(&id)
    }
}

struct RunningPurchase {
    /// Made by the first duplicate that joins: most purchases have none.
    outcome: Option<watch::Sender<Option<Outcome>>>,
    waiters: Waiters,
}

impl RunningPurchases {
    /// Lets duplicates join this purchase until the guard is dropped.
    pub(super) fn register(&self, purchase: &PurchaseRequest) -> RunningGuard {
        let call = RunningPurchase { outcome: None, waiters: purchase.waiters.clone() };
        lock(&self.calls).insert(purchase.id, call);
        RunningGuard { calls: Arc::clone(&self.calls), id: Some(purchase.id) }
    }

    /// Joins a running purchase. Returns where its outcome will be.
    fn join(&self, id: PurchaseId, waiters: &Waiters) -> Option<watch::Receiver<Option<Outcome>>> {
        let mut calls = lock(&self.calls);
        let call = calls.get_mut(&id)?;
        call.waiters.merge(waiters);
        Some(call.outcome.get_or_insert_default().subscribe())
    }

    /// Returns whether a call that is no retry, by its own words, only looks like an earlier purchase: a
    /// client of this process still waits for that one. Any other match may be a resent request, so
    /// each match is judged on its own.
    pub(super) fn is_separate(
        &self,
        purchase: &PurchaseRequest,
        earlier: &ExistingPurchase,
    ) -> bool {
        purchase.attempt == Some(0)
            && purchase.dedupe_by == DedupeBy::Fingerprint
            && earlier.state != PurchaseState::Unknown
            && self.is_awaited(earlier.id)
    }

    fn is_awaited(&self, id: PurchaseId) -> bool {
        let is_running = lock(&self.calls).get(&id).is_some_and(|call| call.waiters.any());
        is_running || self.deliveries.contains(id)
    }

    /// Returns the purchases that clients of this process wait for.
    pub(super) fn awaited(&self) -> Vec<PurchaseId> {
        let calls = lock(&self.calls);
        let running = calls.iter().filter(|(_, call)| call.waiters.any()).map(|(id, _)| *id);
        let mut ids: Vec<_> = running.collect();
        drop(calls);
        ids.extend_from_slice(&lock(&self.deliveries.0));
        ids
    }

    pub fn ids(&self) -> Vec<PurchaseId> {
        lock(&self.calls).keys().copied().collect()
    }

    /// The permit is held until the reply is sent, so slow clients cannot exhaust memory. A caller who
    /// reads slowly has only its share.
    async fn reserve_memory(
        &self,
        purchase: &PurchaseRequest,
        bytes: usize,
        give_up: Instant,
    ) -> Result<Option<ReplayPermit>, Problem> {
        if bytes <= SMALL_REPLY {
            return Ok(None);
        }
        let kept = if bytes <= MEDIUM_REPLY { 0 } else { REPLAY_SHARE };
        let bounds = Bounds { each: REPLAY_SHARE, total: MAX_REPLAYS - kept };
        let mut memory = self.replays.permit(purchase.caller.site());
        loop {
            let mut ended = pin!(self.replay_ended.notified());
            // From here on, no end is missed.
            ended.as_mut().enable();
            if memory.try_grow(bytes.min(REPLAY_SHARE), bounds) {
                let ended = EndNotifier(Arc::clone(&self.replay_ended));
                return Ok(Some(ReplayPermit { _memory: memory, _ended: ended }));
            }
            tokio::select! {
                biased;
                ended = timeout_at(give_up, ended) => ended.map_err(|_elapsed| {
                    still_running().detail(
                        "its reply is kept, but too many kept replies are being read right now",
                    )
                })?,
                () = purchase.waiters.all_gone() => return Err(Problem::new(&OVERLOADED)),
            }
        }
    }
}

/// Memory for a replay. Its fields are dropped in this order.
struct ReplayPermit {
    _memory: KeyedPermit<Caller>,
    _ended: EndNotifier,
}

struct EndNotifier(Arc<Notify>);

impl Drop for EndNotifier {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

/// If the purchase panics, duplicates that joined see no outcome and ask the ledger.
pub(super) struct RunningGuard {
    calls: Arc<Mutex<FastMap<PurchaseId, RunningPurchase>>>,
    /// `None` once its outcome is published.
    id: Option<PurchaseId>,
}

impl RunningGuard {
    pub(super) fn publish(mut self, outcome: Outcome) -> Outcome {
        if let Some(sender) = self.remove().and_then(|call| call.outcome) {
            sender.send_replace(Some(outcome.clone()));
        }
        outcome
    }

    fn remove(&mut self) -> Option<RunningPurchase> {
        lock(&self.calls).remove(&self.id.take()?)
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the outcome of a duplicate, or `None` if it has to ask the ledger again.
pub(super) async fn answer_duplicate(
    context: &PurchaseContext,
    purchase: &PurchaseRequest,
    earlier: ExistingPurchase,
    give_up: Instant,
) -> Option<Outcome> {
    purchase.progress.enter(Phase::MaybeSent);
    let id = earlier.id;
    let (how, outcome) = match earlier.state {
        PurchaseState::Held | PurchaseState::Sent => {
            ("joined", join(context, purchase, id, give_up).await?)
        }
        PurchaseState::Charged | PurchaseState::Released | PurchaseState::Unknown => {
            let how = match purchase.dedupe_by {
                DedupeBy::IdempotencyKey(_) | DedupeBy::Quote(_) => "kept",
                DedupeBy::Fingerprint => "deduped",
            };
            (how, replay(context, purchase, earlier, give_up).await)
        }
    };
    if let Ok(Receipt { cost, .. }) = &outcome {
        context.metrics.replay(how, cost.as_micros());
        if *cost > Usd::ZERO {
            context.ledger.count_replay(id);
        }
    }
    Some(outcome)
}

/// Waits for a running purchase. Returns `None` if the ledger knows more.
async fn join(
    context: &PurchaseContext,
    purchase: &PurchaseRequest,
    earlier: PurchaseId,
    give_up: Instant,
) -> Option<Outcome> {
    let Some(mut published) = context.running.join(earlier, &purchase.waiters) else {
        return match timeout_at(give_up, context.ledger.wait_until_ended(earlier)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Err(unreadable(earlier, &error))),
            Err(_elapsed) => Some(Err(still_running())),
        };
    };
    let Ok(ended) = timeout_at(give_up, published.wait_for(Option::is_some)).await else {
        return Some(Err(still_running()));
    };
    match ended.ok()?.clone()? {
        // It was cancelled just before this one joined.
        Err(problem) if problem.kind() == &OVERLOADED => None,
        Ok(receipt) => Some(Ok(Receipt { is_replay: true, timing: None, ..receipt })),
        Err(problem) => Some(Err(problem.replayed())),
    }
}

async fn replay(
    context: &PurchaseContext,
    purchase: &PurchaseRequest,
    earlier: ExistingPurchase,
    give_up: Instant,
) -> Outcome {
    let ExistingPurchase { id, state, cost, reply } = earlier;
    if state != PurchaseState::Charged {
        return Err(Problem::new(&OUTCOME_UNKNOWN).for_purchase(id).replayed());
    }
    let reply_lost = || reply_lost().for_purchase(id);
    let (permit, reply) = match reply {
        EarlierReply::NotKept => return Err(reply_lost()),
        EarlierReply::Read(reply) => (None, reply),
        EarlierReply::Kept { bytes } => {
            let permit = context.running.reserve_memory(purchase, bytes, give_up).await?;
            let reply = context.ledger.reply(id).await.map_err(|error| unreadable(id, &error))?;
            (permit, reply.ok_or_else(reply_lost)?)
        }
    };
    let KeptReply { status, is_json, body } = reply;
    let is_video = purchase.order.get().service == Service::Video;
    Ok(Receipt {
        id,
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::OK),
        is_json,
        video: is_video.then(|| VideoAccepted::read(&body)).flatten(),
        body: match permit {
            Some(permit) => Bytes::from_owner(ReplayedBody { body, _permit: permit }),
            None => body,
        },
        cost,
        is_replay: true,
        delivery: (purchase.dedupe_by == DedupeBy::Fingerprint)
            .then(|| Delivery::new(context.ledger.clone(), id, context.running.deliveries.clone())),
        timing: None,
    })
}

struct ReplayedBody {
    body: Bytes,
    _permit: ReplayPermit,
}

impl AsRef<[u8]> for ReplayedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

fn unreadable(id: PurchaseId, error: &Unavailable) -> Problem {
    error!(purchase = %id, %error, "earlier purchase unreadable");
    Problem::new(&LEDGER_UNAVAILABLE).retry_after(RETRY_AFTER)
}

fn reply_lost() -> Problem {
    Problem::new(&OUTCOME_UNKNOWN)
        .charged(Charged::Yes)
        .detail("it was bought and charged, but its reply was lost or is no longer kept")
        .replayed()
}

fn still_running() -> Problem {
    Problem::new(&STILL_RUNNING).retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests;
