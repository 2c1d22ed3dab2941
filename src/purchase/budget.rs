//! Sets the price aside before a purchase is sent, and settles it after.
//!
//! Invariant: nothing is sent whose price is not set aside, durably; and what was set aside is given back
//! only when the gateway provably did not charge.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::{debug, error};

use super::send::Charge;
use super::{Claim, Context, Delivery, Phase, Progress, Purchase, Stop, Terms, Waiters};
use crate::clock;
use crate::contract::money::Usd;
use crate::problem::{
    BUDGET_EXHAUSTED, IDEMPOTENCY_KEY_REUSED, INSUFFICIENT_CREDIT, LEDGER_UNAVAILABLE,
    PURCHASE_NOT_FOUND, Problem,
};
use crate::store::{
    self, CreditMark, DuplicateCheck, Ending, Identity, Job, KeptReply, Limit, OverBudget,
    PurchaseId, Refusals, Refused, RefusedAs, Reservation,
};
use crate::upstream::{Abort, BeforeSend, Reply};
use crate::validate::Paid;

/// How long after its end a purchase without a key is joined by a request that a stock SDK marks as a
/// retry: SDKs wait up to ten minutes for a reply, and as long as `Retry-After` says before they retry.
const RETRY_WINDOW: Duration = Duration::from_secs(15 * 60);

/// A price that is set aside. Dropped unsettled (a panic, the runtime's end), it is settled by its phase:
/// released if nothing was sent, else unknown.
pub(super) struct Hold {
    context: Arc<Context>,
    id: PurchaseId,
    /// For how long a reply is kept.
    keep: Duration,
    /// When the price was held, in the account's spending.
    mark: CreditMark,
    /// Of a purchase without a key.
    fingerprint: Option<Identity>,
    waiters: Waiters,
    progress: Progress,
}

impl Hold {
    /// Sets the price aside, unless the purchase repeats another, or a budget or the balance does not cover it.
    pub(super) async fn reserve(
        context: &Arc<Context>,
        purchase: &Purchase,
    ) -> Result<Arc<Self>, Stop> {
        let Context { ledger, refusals, binding, terms, .. } = &**context;
        let reservation = reservation(purchase, terms, refusals);
        let fingerprint = match &reservation.claim {
            store::Claim::Fingerprint(duplicate) => Some(duplicate.fingerprint),
            store::Claim::Key { .. } => None,
        };
        let mark = ledger.reserve(&reservation).await.map_err(|refused| {
            let stop = match (refused, binding.must_not_be_other()) {
                // The balance is not the account's that the ledger is about.
                (Refused::InsufficientCredit, Err(other_account)) => other_account.into(),
                (refused, _) => stop(refused, reservation.price),
            };
            if matches!(stop, Stop::Problem(_)) {
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
            mark,
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
    pub(super) async fn settle(&self, charge: Charge, reply: Option<&Reply>, job: Option<&Job>) {
        let ending = match charge {
            Charge::Paid(cost) => Ending::Charged {
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
            Charge::Free => Ending::Released,
            Charge::Unknown => Ending::Unknown,
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
        if let (Charge::Paid(cost), Some(balance)) = (charge, reply.and_then(Reply::balance)) {
            ledger.learnt(self.mark.with(cost), balance);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let ending = match self.progress.phase() {
            Phase::Settled => return,
            Phase::Queued => Ending::Released,
            Phase::AtRisk | Phase::Sent => Ending::Unknown,
        };
        self.context.ledger.settle_later(self.id, ending);
    }
}

/// The retry of what was refused for free is another purchase than an earlier one that was answered.
fn note_refusal(refusals: &Refusals, fingerprint: Option<Identity>) {
    if let Some(fingerprint) = fingerprint {
        refusals.note(RefusedAs::Fingerprint(fingerprint));
    }
}

impl BeforeSend for Hold {
    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.waiters.none())
    }

    fn authorize(&self) -> BoxFuture<'_, Result<(), Abort>> {
        Box::pin(async move {
            let Context { ledger, binding, .. } = &*self.context;
            // Checked for each attempt: a caller that waited out a 429 may be gone, or revoked.
            if !self.waiters.any() {
                return Err(Abort::Cancelled);
            }
            // The account may have changed while it queued.
            if binding.is_other() {
                return Err(Abort::OtherAccount);
            }
            // A further attempt, after a 401 or 429: it is recorded already.
            if self.progress.phase() == Phase::Sent {
                return Ok(());
            }
            // From here on it counts as sent, even if the mark cannot be made: the safe side.
            self.progress.enter(Phase::AtRisk);
            match ledger.sent(self.id, binding.account()).await {
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

pub(super) fn reservation(purchase: &Purchase, terms: &Terms, refusals: &Refusals) -> Reservation {
    let order = purchase.order.get();
    let caller = purchase.caller.to_string();
    let service = purchase.service();
    let route = match order.paid {
        Paid::Chat | Paid::Video => service.name(),
        // Its path: one key may be used once at each endpoint.
        Paid::Other => &order.model,
    };
    let claim = match &purchase.claim {
        // Addresses move, so an anonymous caller's key stands for itself. A guessable key can collide.
        Claim::Key(key) => store::Claim::Key {
            key: identity(&[
                purchase.caller.namespace().as_bytes(),
                route.as_bytes(),
                key.as_bytes(),
            ]),
            payload: identity(&[&order.body]),
        },
        Claim::Fingerprint { is_retry } => {
            let fingerprint = identity(&[caller.as_bytes(), route.as_bytes(), &order.body]);
            store::Claim::Fingerprint(DuplicateCheck {
                fingerprint,
                within: look_back(*is_retry, terms, service),
                ahead: terms.dedupe_window,
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
        claim,
        limits: terms.limits.and(purchase.standing.own),
        only_repeats: purchase.only_repeats,
    }
}

/// How long ago an identical purchase may have ended to be joined. No reply is looked for that is not
/// kept for so long, and without a window nothing that has ended is joined.
fn look_back(is_retry: bool, terms: &Terms, service: store::Service) -> Duration {
    let window = terms.dedupe_window;
    if is_retry && !window.is_zero() {
        window.max(RETRY_WINDOW.min(terms.keep(service)))
    } else {
        window
    }
}

/// Each part with its length in front, so that no two lists of parts look alike.
fn identity(parts: &[&[u8]]) -> Identity {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn stop(refused: Refused, price: Usd) -> Stop {
    match refused {
        Refused::Known(earlier) => Stop::Known(earlier),
        Refused::KeyReused => Problem::new(&IDEMPOTENCY_KEY_REUSED).into(),
        Refused::NoRepeat => Problem::new(&PURCHASE_NOT_FOUND).into(),
        Refused::OverBudget(over) => Problem::new(&BUDGET_EXHAUSTED).detail(words(&over)).into(),
        // It names no balance: whoever may call reads this, and not everybody may see the account.
        Refused::InsufficientCredit => Problem::new(&INSUFFICIENT_CREDIT)
            .detail(format!(
                "this costs {}, which the account's prepaid balance does not cover; who runs this \
                 service has to add credit",
                price.short(),
            ))
            .into(),
        Refused::Unavailable(error) => {
            // The ledger says so itself, once.
            debug!(%error, "purchase refused by the ledger");
            Problem::new(&LEDGER_UNAVAILABLE).retry_after(Duration::from_secs(5)).into()
        }
    }
}

fn words(over: &OverBudget) -> String {
    let (whose, period) = match over.limit {
        Limit::TotalDay => ("the budget of all callers", "a day"),
        Limit::TotalMonth => ("the budget of all callers", "a month"),
        Limit::CallerDay => ("your budget", "a day"),
        Limit::CallerMonth => ("your budget", "a month"),
    };
    format!(
        "{whose}, {} {period}, has {} left; it renews at {}",
        over.budget.short(),
        over.left.short(),
        clock::iso8601(over.renews)
    )
}

#[cfg(test)]
mod tests;
