//! Sets the price aside before a purchase is sent, and settles it after.
//!
//! Invariant: nothing is sent whose price is not set aside, durably; and what was set aside is given back
//! only when the gateway provably did not charge.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::{debug, error};

use super::send::Charge;
use super::{
    DedupeBy, Delivery, HoldError, Phase, Progress, PurchaseContext, PurchaseRequest,
    PurchaseTerms, Waiters,
};
use crate::clock;
use crate::contract::money::Usd;
use crate::problem::{
    BUDGET_EXHAUSTED, IDEMPOTENCY_KEY_REUSED, INSUFFICIENT_CREDIT, LEDGER_UNAVAILABLE,
    PURCHASE_NOT_FOUND, Problem,
};
use crate::store::{
    self, BudgetKind, CreditWatermark, Digest, DuplicateCheck, Job, KeptReply, OverBudget,
    PurchaseId, RecentRefusals, RefusalKey, Reservation, ReserveError, Settlement,
};
use crate::upstream::{Abort, BeforeSend, GatewayReply};
use crate::validate::OrderKind;

/// How long after its end a purchase without a key is joined by a request that a stock SDK marks as a
/// retry: SDKs wait up to ten minutes for a reply, and as long as `Retry-After` says before they retry.
const RETRY_WINDOW: Duration = Duration::from_secs(15 * 60);

/// A price that is set aside. Dropped unsettled (a panic, the runtime's end), it is settled by its phase:
/// released if nothing was sent, else unknown.
pub(super) struct Hold {
    context: Arc<PurchaseContext>,
    id: PurchaseId,
    /// For how long a reply is kept.
    keep: Duration,
    /// When the price was held, in the account's spending.
    watermark: CreditWatermark,
    /// Of a purchase without a key.
    fingerprint: Option<Digest>,
    waiters: Waiters,
    progress: Progress,
}

impl Hold {
    /// Sets the price aside, unless the purchase repeats another, or a budget or the balance does not cover it.
    pub(super) async fn place(
        context: &Arc<PurchaseContext>,
        purchase: &PurchaseRequest,
    ) -> Result<Arc<Self>, HoldError> {
        let PurchaseContext { ledger, refusals, binding, terms, .. } = &**context;
        let reservation = reservation(purchase, terms, refusals);
        let fingerprint = match &reservation.dedupe_key {
            store::DedupeKey::Fingerprint(duplicate) => Some(duplicate.fingerprint),
            store::DedupeKey::IdempotencyKey { .. } => None,
        };
        let mark = ledger.reserve(&reservation).await.map_err(|refused| {
            let stop = match (refused, binding.ensure_same_account()) {
                // The balance is not the account's that the ledger is about.
                (ReserveError::InsufficientCredit, Err(other_account)) => other_account.into(),
                (refused, _) => hold_error(refused, reservation.price),
            };
            if matches!(stop, HoldError::Problem(_)) {
                note_refusal(refusals, fingerprint);
            }
            stop
        })?;
        // It may have repeated another one that was not sent after all. Nothing of this one was sent.
        purchase.progress.enter(Phase::Queued);
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            id: purchase.id,
            keep: terms.keep(purchase.service()),
            watermark: mark,
            fingerprint,
            waiters: purchase.waiters.clone(),
            progress: purchase.progress.clone(),
        }))
    }

    /// Notes that the caller took the reply, where that decides what a repeat without a key is.
    pub(super) fn delivery(&self) -> Option<Delivery> {
        let ledger = &self.context.ledger;
        self.fingerprint.map(|_| Delivery { ledger: ledger.clone(), id: self.id })
    }

    /// Records the end, with the reply that a repeat gets and the job that a video became.
    pub(super) async fn settle(
        &self,
        charge: Charge,
        reply: Option<&GatewayReply>,
        job: Option<&Job>,
    ) {
        let ending = match charge {
            Charge::Paid(cost) => Settlement::Charged {
                cost,
                reply: reply.map(|reply| KeptReply {
                    status: reply.status.as_u16(),
                    is_json: reply.is_json,
                    body: reply.body.clone(),
                }),
                keep: self.keep,
                job: job.cloned().map(Box::new),
            },
            // The key is free again.
            Charge::Free => Settlement::Released,
            Charge::Unknown => Settlement::Unknown,
        };
        if charge == Charge::Free {
            note_refusal(&self.context.refusals, self.fingerprint);
        }
        let ledger = &self.context.ledger;
        let settled = ledger.settle(self.id, ending.clone()).await;
        self.progress.enter(Phase::Settled);
        if let Err(error) = settled {
            // The answer is worth more than its entry, which follows as soon as the store can take it.
            // Until then the price stays set aside; after a crash, what is `sent` is unknown.
            error!(id = %self.id, %error, "the end of a purchase could not be recorded yet");
            ledger.settle_later(self.id, ending);
        }
        // Guess: the purchase's own charge is in the balance that its reply says, and all that had ended
        // before it was held.
        if let (Charge::Paid(cost), Some(balance)) = (charge, reply.and_then(GatewayReply::balance))
        {
            ledger.record_balance(self.watermark.including(cost), balance);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let ending = match self.progress.phase() {
            Phase::Settled => return,
            Phase::Queued => Settlement::Released,
            Phase::AtRisk | Phase::Sent => Settlement::Unknown,
        };
        self.context.ledger.settle_later(self.id, ending);
    }
}

/// The retry of what was refused for free is another purchase than an earlier one that was answered.
fn note_refusal(refusals: &RecentRefusals, fingerprint: Option<Digest>) {
    if let Some(fingerprint) = fingerprint {
        refusals.record(RefusalKey::Fingerprint(fingerprint));
    }
}

impl BeforeSend for Hold {
    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.waiters.all_gone())
    }

    fn authorize(&self) -> BoxFuture<'_, Result<(), Abort>> {
        Box::pin(async move {
            let PurchaseContext { ledger, binding, .. } = &*self.context;
            // Checked for each attempt: a caller that waited out a 429 may be gone, or revoked.
            if !self.waiters.any() {
                return Err(Abort::Cancelled);
            }
            // The account may have changed while it queued.
            if binding.is_mismatch() {
                return Err(Abort::OtherAccount);
            }
            // A further attempt, after a 401 or 429: it is recorded already.
            if self.progress.phase() == Phase::Sent {
                return Ok(());
            }
            // From here on it counts as sent, even if the mark cannot be made: the safe side.
            self.progress.enter(Phase::AtRisk);
            match ledger.mark_sent(self.id, binding.account_status()).await {
                Ok(()) => {
                    self.progress.enter(Phase::Sent);
                    Ok(())
                }
                Err(error) => {
                    error!(id = %self.id, %error, "a purchase is not sent: it cannot be recorded");
                    Err(Abort::Unrecorded)
                }
            }
        })
    }
}

pub(super) fn reservation(
    purchase: &PurchaseRequest,
    terms: &PurchaseTerms,
    refusals: &RecentRefusals,
) -> Reservation {
    let order = purchase.order.get();
    let caller = purchase.caller.to_string();
    let service = purchase.service();
    let route = match order.kind {
        OrderKind::Chat | OrderKind::Video => service.name(),
        // Its path: one key may be used once at each endpoint.
        OrderKind::Other => &order.model,
    };
    let claim = match &purchase.dedupe_by {
        // Addresses move, so an anonymous caller's key stands for itself. A guessable key can collide.
        DedupeBy::IdempotencyKey(key) => store::DedupeKey::IdempotencyKey {
            key: digest(&[
                purchase.caller.namespace().as_bytes(),
                route.as_bytes(),
                key.as_bytes(),
            ]),
            payload: digest(&[&order.body]),
        },
        DedupeBy::Fingerprint { is_retry } => {
            let fingerprint = digest(&[caller.as_bytes(), route.as_bytes(), &order.body]);
            store::DedupeKey::Fingerprint(DuplicateCheck {
                fingerprint,
                within: look_back(*is_retry, terms, service),
                clock_skew: terms.dedupe_window,
                delivered_since: is_retry.then(|| refusals.last(&purchase.caller, &fingerprint)),
            })
        }
    };
    Reservation {
        id: purchase.id,
        caller,
        service,
        model: order.model.clone(),
        price: order.price,
        dedupe_key: claim,
        budgets: terms.limits.intersect(purchase.session.own_budget),
        replay_only: purchase.replay_only,
    }
}

/// How long ago an identical purchase may have ended to be joined. No reply is looked for that is not
/// kept for so long, and without a window nothing that has ended is joined.
fn look_back(is_retry: bool, terms: &PurchaseTerms, service: store::Service) -> Duration {
    let window = terms.dedupe_window;
    if is_retry && !window.is_zero() {
        window.max(RETRY_WINDOW.min(terms.keep(service)))
    } else {
        window
    }
}

/// Each part with its length in front, so that no two lists of parts look alike.
fn digest(parts: &[&[u8]]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn hold_error(refused: ReserveError, price: Usd) -> HoldError {
    match refused {
        ReserveError::Duplicate(earlier) => HoldError::Duplicate(earlier),
        ReserveError::KeyReused => Problem::new(&IDEMPOTENCY_KEY_REUSED).into(),
        ReserveError::NothingToReplay => Problem::new(&PURCHASE_NOT_FOUND).into(),
        ReserveError::OverBudget(over) => {
            Problem::new(&BUDGET_EXHAUSTED).detail(over_budget_detail(&over)).into()
        }
        // It names no balance: whoever may call reads this, and not everybody may see the account.
        ReserveError::InsufficientCredit => Problem::new(&INSUFFICIENT_CREDIT)
            .detail(format!(
                "this costs {}, which the account's prepaid balance does not cover; who runs this \
                 service has to add credit",
                price.short(),
            ))
            .into(),
        ReserveError::Unavailable(error) => {
            // The ledger says so itself, once.
            debug!(%error, "purchase refused by the ledger");
            Problem::new(&LEDGER_UNAVAILABLE).retry_after(Duration::from_secs(5)).into()
        }
    }
}

fn over_budget_detail(over: &OverBudget) -> String {
    let (whose, period) = match over.kind {
        BudgetKind::TotalDay => ("the budget of all callers", "a day"),
        BudgetKind::TotalMonth => ("the budget of all callers", "a month"),
        BudgetKind::CallerDay => ("your budget", "a day"),
        BudgetKind::CallerMonth => ("your budget", "a month"),
    };
    format!(
        "{whose}, {} {period}, has {} left; it renews at {}",
        over.budget.short(),
        over.remaining.short(),
        clock::iso8601(over.renews_at)
    )
}

#[cfg(test)]
mod tests;
