//! Sets the toll aside before the purchase is sent, and settles it after.
//!
//! Invariant: nothing is sent whose toll is not set aside, durably; and a toll that was set aside is
//! given back only when the gateway provably did not charge.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::SetOnce;
use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::{debug, error};

use super::accepted::Announcement;
use super::{Claim, Delivery, Purchase, Receipt, Risk, Stop, Terms, Waiters};
use crate::clock;
use crate::problem::{
    BUDGET_EXHAUSTED, Charged, IDEMPOTENCY_KEY_REUSED, LEDGER_UNAVAILABLE, Problem,
};
use crate::store::{
    self, Binding, Ending, Identity, KeptReply, Limit, OverBudget, PurchaseId, Refusals, Refused,
    RefusedAs, Reservation, Store, Twin,
};
use crate::upstream::{Departure, Stay};
use crate::validate::Paid;

/// How long after its end a purchase without a key is joined by a request that a stock SDK marks as a
/// retry: SDKs wait up to ten minutes for a reply, and as long as `Retry-After` says before they retry.
const RETRY_WINDOW: Duration = Duration::from_secs(15 * 60);

/// See the file's documentation.
#[derive(Clone)]
pub struct Budget<S> {
    inner: S,
    ledger: Store,
    binding: Binding,
    refusals: Arc<Refusals>,
    terms: Terms,
}

/// Sets tolls aside in `ledger`, if the gateway's account is the ledger's, and notes in `refusals` what
/// was refused for free.
pub fn layer<S>(
    ledger: Store,
    binding: Binding,
    refusals: Arc<Refusals>,
    terms: Terms,
) -> impl Layer<S, Service = Budget<S>> + Clone {
    layer_fn(move |inner| Budget {
        inner,
        ledger: ledger.clone(),
        binding: binding.clone(),
        refusals: Arc::clone(&refusals),
        terms,
    })
}

type Outcome = Result<Receipt, Stop>;

impl<S> Service<Purchase> for Budget<S>
where
    S: Service<Purchase, Response = Receipt, Error = Problem> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Receipt;
    type Error = Stop;
    type Future = Pin<Box<dyn Future<Output = Outcome> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        self.inner.poll_ready(cx).map_err(Stop::from)
    }

    fn call(&mut self, mut purchase: Purchase) -> Self::Future {
        // Take the service that was polled ready, and leave its clone behind.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let (ledger, terms) = (self.ledger.clone(), self.terms);
        let (binding, refusals) = (self.binding.clone(), Arc::clone(&self.refusals));
        Box::pin(async move {
            let reservation = reservation(&purchase, &terms, &refusals);
            let fingerprint = match &reservation.claim {
                store::Claim::Twin(twin) => Some(twin.likeness),
                store::Claim::Key { .. } => None,
            };
            let note_refusal = || {
                if let Some(fingerprint) = fingerprint {
                    refusals.note(RefusedAs::Fingerprint(fingerprint), clock::wall());
                }
            };
            let hold = match Hold::reserve(ledger, reservation).await {
                Ok(hold) => hold,
                Err(stop) => {
                    if matches!(stop, Stop::Problem(_)) {
                        note_refusal();
                    }
                    return Err(stop);
                }
            };
            purchase.departure = Some(Arc::new(LastWord {
                hold: Arc::clone(&hold),
                binding: binding.clone(),
                waiters: purchase.waiters.clone(),
                sent: Arc::clone(&purchase.sent),
                risk: purchase.risk.clone(),
            }));
            let keep = terms.keep(purchase.service());
            // Only now: the ledger answers a repeat, whichever account the key is of.
            let mut outcome = match binding.may_sell().await {
                Ok(()) => inner.call(purchase).await,
                Err(refusal) => Err(refusal),
            };
            let accepted = outcome.as_mut().ok().and_then(|receipt| receipt.accepted.take());
            let ending = ending(&outcome, accepted.as_ref(), keep);
            if ending == Ending::Voided {
                note_refusal();
            }
            hold.settle(ending).await;
            if let Some(accepted) = accepted {
                accepted.tell();
            }
            if let Ok(receipt) = &mut outcome
                && fingerprint.is_some()
            {
                receipt.delivery = Some(Delivery { ledger: hold.ledger.clone(), id: hold.id });
            }
            outcome.map_err(Stop::from)
        })
    }
}

fn ending(
    outcome: &Result<Receipt, Problem>,
    accepted: Option<&Announcement>,
    keep: Duration,
) -> Ending {
    match outcome {
        Ok(receipt) if receipt.status.is_success() => {
            let reply = KeptReply {
                status: receipt.status.as_u16(),
                is_json: receipt.is_json,
                body: receipt.body.clone(),
            };
            let job = accepted.map(|accepted| Box::new(accepted.job().clone()));
            Ending::Posted { cost: receipt.toll, reply: Some(reply), keep, job }
        }
        // A definitive refusal: the toll goes back, and the key is free again.
        Ok(_refusal) => Ending::Voided,
        Err(problem) => match problem.charge() {
            Charged::No => Ending::Voided,
            // Only a reply that was read proves a charge.
            Charged::Yes | Charged::Unknown => Ending::Unknown,
        },
    }
}

fn reservation(purchase: &Purchase, terms: &Terms, refusals: &Refusals) -> Reservation {
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
        Claim::Likeness { is_retry } => {
            let likeness = identity(&[caller.as_bytes(), route.as_bytes(), &order.body]);
            let (now, window) = (clock::wall(), terms.dedupe_window);
            store::Claim::Twin(Twin {
                likeness,
                since: now.saturating_sub(look_back(*is_retry, terms, service)),
                until: now.saturating_add(window),
                delivered_since: is_retry.then(|| refusals.last(&purchase.caller, &likeness)),
            })
        }
    };
    Reservation {
        id: purchase.id,
        caller,
        service,
        model: order.model.clone(),
        toll: order.toll,
        claim,
        limits: terms.limits.and(purchase.standing.own),
    }
}

/// How long ago an identical purchase may have ended to be joined. No reply is looked for that is not
/// kept for so long, and without a window nothing that has ended is joined.
fn look_back(is_retry: bool, terms: &Terms, service: store::Service) -> Duration {
    let window = terms.dedupe_window;
    match is_retry && !window.is_zero() {
        true => window.max(RETRY_WINDOW.min(terms.keep(service))),
        false => window,
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

/// A toll that is set aside. Dropped unsettled (a panic, the runtime's end), it is settled as what is
/// known of it: unknown once it may have been sent, voided before.
struct Hold {
    ledger: Store,
    id: PurchaseId,
    sent: AtomicBool,
    settled: AtomicBool,
}

impl Hold {
    async fn reserve(ledger: Store, reservation: Reservation) -> Result<Arc<Self>, Stop> {
        let id = reservation.id;
        ledger.reserve(&reservation).await.map_err(stop)?;
        let (sent, settled) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Self { ledger, id, sent, settled }))
    }

    async fn settle(&self, ending: Ending) {
        let settled = self.ledger.settle(self.id, ending.clone()).await;
        self.settled.store(true, Ordering::Release);
        if let Err(error) = settled {
            // The answer is worth more than its entry, which follows as soon as the store can take it.
            // Until then the toll stays set aside; after a crash, what is `sent` is unknown.
            error!(id = %self.id, %error, "the end of a purchase could not be recorded yet");
            self.ledger.settle_later(self.id, ending);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.settled.load(Ordering::Acquire) {
            let ending = match self.sent.load(Ordering::Acquire) {
                true => Ending::Unknown,
                false => Ending::Voided,
            };
            self.ledger.settle_later(self.id, ending);
        }
    }
}

/// Asked right before the first byte.
struct LastWord {
    hold: Arc<Hold>,
    binding: Binding,
    waiters: Waiters,
    sent: Arc<SetOnce<()>>,
    risk: Risk,
}

impl Departure for LastWord {
    fn deserted(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.waiters.none())
    }

    fn depart(&self) -> Pin<Box<dyn Future<Output = Result<(), Stay>> + Send + '_>> {
        Box::pin(async move {
            // Asked anew for each attempt: who waited out a 429 may have left meanwhile, or been revoked.
            if !self.waiters.any() {
                return Err(Stay::Abandoned);
            }
            // It may have waited in the queue since it was first asked.
            if self.binding.is_other() {
                return Err(Stay::OtherAccount);
            }
            if self.hold.sent.load(Ordering::Acquire) {
                return Ok(());
            }
            // From here on it counts as sent, even if the mark cannot be made: the safe side.
            self.hold.sent.store(true, Ordering::Release);
            self.risk.begins();
            match self.hold.ledger.sent(self.hold.id, self.binding.account()).await {
                Ok(()) => {
                    // Taken once only: a second attempt, after a 429, comes no further than above.
                    self.sent.set(()).ok();
                    Ok(())
                }
                Err(error) => {
                    error!(id = %self.hold.id, %error, "a purchase is not sent: it cannot be recorded");
                    Err(Stay::Unrecorded)
                }
            }
        })
    }
}

fn stop(refused: Refused) -> Stop {
    match refused {
        Refused::Known(earlier) => Stop::Known(earlier),
        Refused::KeyReused => Problem::new(&IDEMPOTENCY_KEY_REUSED).into(),
        Refused::OverBudget(over) => Problem::new(&BUDGET_EXHAUSTED).detail(words(&over)).into(),
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
