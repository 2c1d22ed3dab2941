//! Holds the price before a purchase is sent, and settles it afterwards.
//!
//! Invariant: nothing is sent before its price is held durably. A hold is released only if the
//! gateway provably did not charge.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either};
use tracing::{debug, error};

use super::send::Charge;
use super::{DedupeBy, Delivery, Phase, PurchaseContext, PurchaseRequest, PurchaseTerms, Timing};
use crate::api::validate::Order;
use crate::clock::{self, Instant};
use crate::gate::problem::{
    ATTEMPT_SUPERSEDED, IDEMPOTENCY_KEY_REUSED, LEDGER_CHANGED, LEDGER_UNAVAILABLE,
    PURCHASE_NOT_FOUND, Problem, ShortBudget,
};
use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::SpendLimit;
use crate::gateway::{Abort, Authorization, BeforeSend, GatewayReply, Slot};
use crate::ledger::{
    self, AccountBinding, AccountStatus, CreditWatermark, Digest, DuplicateCheck, ExistingPurchase,
    Job, KeptReply, OverBudget, Precondition, PurchaseId, Reservation, ReserveError, Settlement,
    Store,
};
use crate::sync::lock;

/// How long SDKs may wait before they retry: ten minutes for a reply, then `Retry-After`.
const RETRY_WINDOW: Duration = Duration::from_secs(15 * 60);

/// A held price. Dropped unsettled, it is released if nothing was sent, else unknown.
pub(super) struct Hold {
    context: Arc<PurchaseContext>,
    purchase: Arc<PurchaseRequest>,
    /// The caller's name in the ledger.
    pub(super) caller: Arc<str>,
    /// The account's spending when the price was held.
    watermark: CreditWatermark,
    fingerprint: Option<Digest>,
    /// If the purchase was recorded as sent in the same step: its slot, until the first attempt
    /// takes it, and the account's status then.
    slot: Mutex<Option<Slot>>,
    recorded_as: Option<AccountStatus>,
    placed_at: Instant,
    /// When the latest attempt was allowed.
    sent_at: Mutex<Option<Instant>>,
}

pub(super) enum Placed {
    Held(Arc<Hold>),
    Duplicate(ExistingPurchase),
}

impl Hold {
    /// Holds the price. Fails if a budget or the balance does not cover it, or if the ledger has lost
    /// the earlier purchase that this one has waited for.
    pub(super) async fn place(
        context: &Arc<PurchaseContext>,
        purchase: &Arc<PurchaseRequest>,
        awaited: Option<PurchaseId>,
        separate_from: &[PurchaseId],
    ) -> Result<Placed, Problem> {
        let PurchaseContext { ledger, rate_limit, binding, terms, .. } = &**context;
        let mut reservation = reservation(purchase, terms);
        reservation.requires.earlier = awaited;
        let fingerprint = match &mut reservation.dedupe_key {
            ledger::DedupeKey::Fingerprint(check) => {
                check.separate_from = separate_from.to_vec();
                Some(check.fingerprint)
            }
            ledger::DedupeKey::IdempotencyKey { .. } | ledger::DedupeKey::Quote { .. } => None,
        };
        // A purchase that has waited for an earlier one takes its turn in the queue.
        let is_first = purchase.progress.phase() == Phase::Queued && !reservation.replay_only;
        let slot = if is_first { rate_limit.try_acquire() } else { None };
        let account = binding.account_status();
        let (held, slot) = match reserve(ledger, &reservation, slot, account).await {
            Ok(held) => held,
            Err(error) => {
                if matches!(error, ReserveError::Unavailable(_)) && reservation.attempt > 0 {
                    ledger.note_attempt(&reservation);
                }
                return not_held(error, purchase, binding)
                    .inspect_err(|_| note_refusal(ledger, purchase, fingerprint));
            }
        };
        // It may have waited for a purchase that was not sent after all.
        purchase.progress.enter(Phase::Queued);
        Ok(Placed::Held(Arc::new(Self {
            context: Arc::clone(context),
            purchase: Arc::clone(purchase),
            caller: Arc::clone(&reservation.caller),
            watermark: held.watermark,
            fingerprint,
            slot: Mutex::new(slot),
            recorded_as: held.is_sent.then_some(account),
            placed_at: clock::now(),
            sent_at: Mutex::default(),
        })))
    }

    pub(super) fn delivery(&self) -> Option<Delivery> {
        let PurchaseContext { ledger, running, .. } = &*self.context;
        self.fingerprint
            .map(|_| Delivery::new(ledger.clone(), self.purchase.id, running.deliveries.clone()))
    }

    /// Returns how long the purchase has waited, and how long the gateway has had it.
    pub(super) fn timing(&self) -> Timing {
        let now = clock::now();
        let sent_at = (*lock(&self.sent_at)).unwrap_or(now);
        Timing { queue: sent_at - self.placed_at, gateway: now - sent_at }
    }

    /// Records the outcome, with the reply for duplicates and the job of a video.
    pub(super) async fn settle(
        &self,
        charge: Charge,
        reply: Option<&GatewayReply>,
        job: Option<&Job>,
    ) {
        let settlement = match charge {
            Charge::Paid(cost) => Settlement::Charged {
                cost,
                reply: reply.map(|reply| KeptReply {
                    status: reply.status.as_u16(),
                    is_json: reply.is_json,
                    body: reply.body.clone(),
                }),
                keep: self.context.terms.keep(self.purchase.order.get().service),
                job: job.cloned().map(Box::new),
            },
            Charge::Free => Settlement::Released,
            Charge::Unknown => Settlement::Unknown,
        };
        if charge == Charge::Free {
            note_refusal(&self.context.ledger, &self.purchase, self.fingerprint);
        }
        let ledger = &self.context.ledger;
        let settled = ledger.settle(self.purchase.id, settlement.clone()).await;
        self.purchase.progress.enter(Phase::Settled);
        if let Err(error) = settled {
            // The caller gets its reply anyway. The price stays held until the retry.
            error!(purchase = %self.purchase.id, %error, "failed to settle purchase; will retry");
            ledger.settle_later(self.purchase.id, settlement);
        }
        // Guess: the reported balance includes this charge and all settled before the hold.
        if let (Charge::Paid(cost), Some(balance)) = (charge, reply.and_then(GatewayReply::balance))
        {
            ledger.record_balance(self.watermark.including(cost), balance);
        }
    }
}

impl Hold {
    /// Decides whether to send. `None` if the purchase has to be recorded as sent first.
    fn may_send(&self) -> Option<Result<(), Abort>> {
        let binding = &self.context.binding;
        // Checked for each attempt: during a 429 a caller may leave or be revoked.
        if !self.purchase.waiters.any() {
            return Some(Err(Abort::Cancelled));
        }
        if binding.is_mismatch() {
            return Some(Err(Abort::OtherAccount));
        }
        let account = binding.account_status();
        let is_recorded = self.purchase.progress.phase() == Phase::Sent
            || self.recorded_as.is_some_and(|recorded| {
                recorded == account || recorded == AccountStatus::Unconfirmed
            });
        is_recorded.then(|| {
            self.purchase.progress.enter(Phase::Sent);
            self.check_lease()
        })
    }

    async fn record_as_sent(&self) -> Result<(), Abort> {
        let PurchaseContext { ledger, binding, .. } = &*self.context;
        // From here on it counts as sent, even if that cannot be recorded.
        self.purchase.progress.enter(Phase::MaybeSent);
        let recorded = ledger.mark_sent(self.purchase.id, binding.account_status()).await;
        recorded.map_err(|error| {
            error!(purchase = %self.purchase.id, %error, "purchase not recorded as sent; not sending it");
            Abort::Unrecorded
        })?;
        self.purchase.progress.enter(Phase::Sent);
        self.check_lease()
    }

    /// Fails if another instance may have given up what this one held.
    fn check_lease(&self) -> Result<(), Abort> {
        if self.context.ledger.may_send(self.purchase.id) {
            return Ok(());
        }
        error!(purchase = %self.purchase.id, "purchase is past its deadline; not sending it");
        Err(Abort::Unrecorded)
    }
}

/// Holds the price, and records the purchase as sent if it comes with a slot.
async fn reserve(
    ledger: &Store,
    reservation: &Reservation,
    slot: Option<Slot>,
    account: AccountStatus,
) -> Result<(ledger::Held, Option<Slot>), ReserveError> {
    let Some(mut slot) = slot else {
        let watermark = ledger.reserve(reservation).await?;
        return Ok((ledger::Held { watermark, is_sent: false }, None));
    };
    // Until the answer is known, the purchase may be recorded as sent, and it is not.
    let unsent = Unsent { ledger, id: Some(reservation.id) };
    let held = ledger.reserve_and_send(reservation, slot.record(), account).await;
    unsent.answered();
    match held {
        Ok(held) if held.is_sent => Ok((held, Some(slot))),
        // The purchase waits in the queue.
        Ok(held) => {
            slot.unrecord();
            Ok((held, None))
        }
        Err(error) => {
            slot.unrecord();
            Err(error)
        }
    }
}

/// Releases a purchase whose task ends before it knows whether the purchase was recorded.
struct Unsent<'a> {
    ledger: &'a Store,
    id: Option<PurchaseId>,
}

impl Unsent<'_> {
    fn answered(mut self) {
        self.id = None;
    }
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.ledger.settle_later(id, Settlement::Released);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let settlement = match self.purchase.progress.phase() {
            Phase::Settled => return,
            Phase::Queued => Settlement::Released,
            Phase::MaybeSent | Phase::Sent => Settlement::Unknown,
        };
        self.context.ledger.settle_later(self.purchase.id, settlement);
    }
}

/// Remembers a free refusal, so that its retry does not join an earlier purchase. That of a retry says
/// nothing about its first attempt, which may have been served.
fn note_refusal(ledger: &Store, purchase: &PurchaseRequest, fingerprint: Option<Digest>) {
    if let Some(fingerprint) = fingerprint.filter(|_| !purchase.is_retry()) {
        ledger.note_refusal(purchase.caller.name(), fingerprint);
    }
}

impl BeforeSend for Hold {
    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.purchase.waiters.all_gone())
    }

    fn purchase(&self) -> Option<PurchaseId> {
        Some(self.purchase.id)
    }

    fn take_slot(&self) -> Option<Slot> {
        let mut slot = lock(&self.slot).take()?;
        slot.use_for_purchase();
        Some(slot)
    }

    fn authorize(&self) -> Authorization<'_> {
        *lock(&self.sent_at) = Some(clock::now());
        match self.may_send() {
            Some(decision) => Either::Left(std::future::ready(decision)),
            None => Either::Right(Box::pin(self.record_as_sent())),
        }
    }
}

pub(super) fn reservation(purchase: &PurchaseRequest, terms: &PurchaseTerms) -> Reservation {
    let order = purchase.order.get();
    let caller = purchase.caller.name();
    let service = order.service;
    let dedupe_key = match &purchase.dedupe_by {
        DedupeBy::IdempotencyKey(key) => ledger::DedupeKey::IdempotencyKey {
            key: key_digest(purchase, &caller, key),
            payload: digest(&[&order.body]),
        },
        DedupeBy::Quote(keys) => {
            let mut keys = keys.iter().map(|key| key_digest(purchase, &caller, key));
            ledger::DedupeKey::Quote {
                key: keys.next().unwrap_or_default(),
                others: keys.collect(),
                payload: digest(&[&order.body]),
            }
        }
        DedupeBy::Fingerprint => {
            let route = route(order);
            let fingerprint = digest(&[caller.as_bytes(), route.as_bytes(), &order.body]);
            let is_retry = purchase.is_retry();
            ledger::DedupeKey::Fingerprint(DuplicateCheck {
                fingerprint,
                within: look_back(is_retry, terms, service),
                refused_as: is_retry.then(|| [&[fingerprint], &*purchase.refused_as].concat()),
                separate_from: Vec::new(),
            })
        }
    };
    let is_lookup = purchase.replay_or.as_ref().is_some_and(|or| or.kind() == &PURCHASE_NOT_FOUND);
    let session = &purchase.session;
    let mut budgets = terms.limits.of(&purchase.caller, session.own_budget);
    budgets.token = session.token.as_ref().map_or(SpendLimit::NONE, |token| token.budget);
    Reservation {
        id: purchase.id,
        caller,
        group: session.group.clone(),
        token: session.token.as_ref().map(|token| Arc::clone(&token.id)),
        service,
        model: order.model.clone(),
        price: order.price,
        dedupe_key,
        budgets,
        attempt: purchase.attempt.unwrap_or_default().max(u32::from(is_lookup)),
        replay_only: purchase.replay_or.is_some(),
        requires: Precondition {
            name: purchase.ledger.clone(),
            earlier: None,
            challenge: purchase.challenge,
        },
    }
}

/// Returns the digest of a key, which is unique per caller (of this name) and endpoint.
pub(super) fn key_digest(purchase: &PurchaseRequest, caller: &str, key: &str) -> Digest {
    // An anonymous caller's address may change, so its key alone identifies the purchase.
    let namespace = purchase.caller.namespace(caller);
    let route = route(purchase.order.get());
    digest(&[namespace.as_bytes(), route.as_bytes(), key.as_bytes()])
}

fn route(order: &Order) -> &str {
    match order.service {
        Service::Chat | Service::Video => order.service.name(),
        // The path.
        Service::Other => &order.model,
    }
}

/// Returns how long ago a duplicate may have ended to be joined, at most as long as replies are
/// kept. A zero `dedupe_window` turns this off.
fn look_back(is_retry: bool, terms: &PurchaseTerms, service: Service) -> Duration {
    let window = terms.dedupe_window;
    if is_retry && !window.is_zero() {
        window.max(RETRY_WINDOW.min(terms.keep(service)))
    } else {
        window
    }
}

/// Hashes each part with its length, so that no two lists of parts are alike.
fn digest(parts: &[&[u8]]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

pub(super) fn not_held(
    error: ReserveError,
    purchase: &PurchaseRequest,
    binding: &AccountBinding,
) -> Result<Placed, Problem> {
    Err(match error {
        ReserveError::Duplicate(earlier) => return Ok(Placed::Duplicate(earlier)),
        ReserveError::NothingToReplay => {
            let refusal = purchase.replay_or.as_deref().cloned();
            refusal.unwrap_or_else(|| Problem::new(&PURCHASE_NOT_FOUND))
        }
        ReserveError::Superseded => Problem::new(&ATTEMPT_SUPERSEDED).detail(
            "a later attempt or a lookup with this key came first; to buy, send \
             X-Stainless-Retry-Count with a higher number than before",
        ),
        ReserveError::LedgerChanged => Problem::new(&LEDGER_CHANGED).detail(
            "the ledger has been replaced since the request came, and may have lost an earlier \
             purchase with its key; nothing was sent",
        ),
        ReserveError::KeyReused => Problem::new(&IDEMPOTENCY_KEY_REUSED),
        ReserveError::OverBudget(over) => {
            let OverBudget { scope, period, budget: limit, remaining: left, renews_at } = over;
            let short = ShortBudget { scope: scope.name(), period, limit, left, renews_at };
            Problem::budget_exhausted(purchase.order.get().price, &short)
        }
        ReserveError::InsufficientCredit => {
            binding.ensure_same_account()?;
            Problem::insufficient_credit(purchase.order.get().price)
        }
        ReserveError::Unavailable(error) => {
            debug!(%error, "purchase refused by ledger");
            Problem::new(&LEDGER_UNAVAILABLE).retry_after(Duration::from_secs(5))
        }
    })
}

#[cfg(test)]
mod tests;
