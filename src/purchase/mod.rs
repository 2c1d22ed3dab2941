//! Turns a checked order into a receipt.
//!
//! `Purchases::complete` lists the steps of a purchase, and each file implements one of them.

mod budget;
pub mod idempotency;
pub mod ledger_name;
mod send;
#[cfg(test)]
mod tests;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use waiters::Waiters;

use crate::access::Session;
use crate::api::validate::{Checked, Order};
use crate::clock;
use crate::gate::problem::{PURCHASE_NOT_FOUND, Problem};
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::video::VideoAccepted;
use crate::gateway::rate_limit::RateLimit;
use crate::gateway::{GatewayReply, GatewayService};
use crate::ledger::{
    AccountBinding, Budgets, Caller, Digest, ExistingPurchase, KeyId, PurchaseId, PurchaseState,
    ReserveError, Service, Store,
};
use crate::metrics::Metrics;
use crate::video::JobRegistry;
use budget::{Hold, Placed};
use idempotency::{Deliveries, RunningPurchases};
use send::Charge;

type Outcome = Result<Receipt, Problem>;

#[derive(Clone)]
pub struct PurchaseContext {
    pub ledger: Store,
    pub rate_limit: Arc<RateLimit>,
    pub binding: AccountBinding,
    pub running: RunningPurchases,
    pub jobs: JobRegistry,
    pub keys: Arc<[KeyId]>,
    pub terms: PurchaseTerms,
    pub metrics: Arc<Metrics>,
    pub drain_expired: CancellationToken,
}

#[derive(Clone)]
pub struct Purchases {
    context: Arc<PurchaseContext>,
    gateway: Arc<GatewayService>,
    tasks: TaskTracker,
}

impl Purchases {
    pub fn new(context: PurchaseContext, gateway: GatewayService, tasks: TaskTracker) -> Self {
        Self { context: Arc::new(context), gateway: Arc::new(gateway), tasks }
    }

    /// Returns how long the reply of such a purchase is kept.
    pub fn keep(&self, service: Service) -> Duration {
        self.context.terms.keep(service)
    }

    /// Buys, or replays the reply of a duplicate. The purchase goes on if this future is dropped.
    pub async fn buy(&self, purchase: PurchaseRequest) -> Outcome {
        let (purchases, purchase) = (self.clone(), Arc::new(purchase));
        let request = Arc::clone(&purchase);
        // Boxed, because each layer of the task moves it.
        let call = Box::pin(async move { purchases.complete(&request).await });
        let outcome = waiters::run(&self.tasks, &self.context.drain_expired, &purchase, call).await;
        outcome.map_err(|problem| problem.for_model(&purchase.order.get().model))
    }

    /// Returns what the ledger knows of an earlier purchase with this key. Nothing is bought.
    pub async fn find(
        &self,
        purchase: &PurchaseRequest,
    ) -> Result<Option<EarlierPurchase>, Problem> {
        let PurchaseContext { ledger, terms, binding, .. } = &*self.context;
        let nothing = Box::new(Problem::new(&PURCHASE_NOT_FOUND));
        let lookup = PurchaseRequest { replay_or: Some(nothing), ..purchase.clone() };
        let reservation = budget::reservation(&lookup, terms);
        match ledger.reserve(&reservation).await {
            Ok(_) | Err(ReserveError::NothingToReplay) => Ok(None),
            Err(error) => match budget::not_held(error, &lookup, binding)? {
                Placed::Held(_) => Ok(None),
                Placed::Duplicate(earlier) => Ok(EarlierPurchase::of(&earlier)),
            },
        }
    }

    /// The guarantees depend on the order of these steps. If a purchase is dropped half-way, by a
    /// panic or the end of the runtime, the hold settles itself by its phase.
    async fn complete(&self, purchase: &Arc<PurchaseRequest>) -> Outcome {
        let PurchaseContext { running, binding, jobs, terms, .. } = &*self.context;
        let give_up = clock::now() + terms.join_timeout;
        let (mut awaited, mut separate_from) = (None, Vec::new());
        // Give the gateway a moment to report its account and balance.
        binding.wait_for_check().await;
        // Hold: one ledger step finds duplicates, checks budgets and balance, and holds the price.
        // If a slot is free, the same step takes it and records the purchase as sent.
        let (open, hold) = loop {
            // Registered first, so that a duplicate found in the ledger finds it running.
            let open = running.register(purchase);
            match Hold::place(&self.context, purchase, awaited, &separate_from).await {
                Err(problem) => return open.publish(Err(problem)),
                Ok(Placed::Held(hold)) => break (open, hold),
                Ok(Placed::Duplicate(earlier)) => {
                    drop(open);
                    if running.is_separate(purchase, &earlier) {
                        separate_from.extend(running.awaited());
                        continue;
                    }
                    awaited = Some(earlier.id);
                    let answer =
                        idempotency::answer_duplicate(&self.context, purchase, earlier, give_up);
                    if let Some(outcome) = answer.await {
                        return outcome;
                    }
                }
            }
        };
        if let Err(refusal) = binding.ensure_same_account() {
            hold.settle(Charge::Free, None, None).await;
            return open.publish(Err(refusal));
        }
        // Send: the gateway waits for a slot, unless the hold has one, and calls `hold.authorize`
        // before the first byte.
        let caller = Arc::clone(&hold.caller);
        let reply = self.send(purchase, caller, Arc::clone(&hold) as _).await;
        let timing = hold.timing();
        let charge = send::charge(purchase.order.get(), &reply);
        // The job is stored with the charge, so that it survives a crash.
        let job = self.job(purchase, &reply, charge);
        let id = job.as_ref().map(|job| &*job.request_id);
        send::log(&self.context.metrics, (purchase, &hold.caller), (charge, id), timing);
        // Settle: the ledger knows the outcome before the caller gets the first byte.
        hold.settle(charge, reply.as_ref().ok(), job.as_ref()).await;
        if let Some(job) = job {
            jobs.track(job);
        }
        // Publish to duplicates that joined, then return to the caller.
        open.publish(match reply {
            Ok(reply) => {
                let receipt = Receipt::new(purchase.id, reply, charge, hold.delivery());
                Ok(Receipt { timing: Some(timing), ..receipt })
            }
            Err(error) => Err(error.purchase_problem().for_purchase(purchase.id)),
        })
    }
}

#[derive(Clone)]
pub struct PurchaseRequest {
    pub id: PurchaseId,
    pub caller: Caller,
    pub session: Session,
    /// The path of the endpoint that was called, as the table of endpoints has it.
    pub endpoint: &'static str,
    pub order: Checked<Order>,
    pub dedupe_by: DedupeBy,
    /// The number of the attempt, from 0, if the client says it. OpenAI's SDKs do.
    pub attempt: Option<u32>,
    /// The digests by which the request may have been refused before its order was read.
    pub refused_as: Vec<Digest>,
    /// The challenge of the caller's proof of work, which pays for one purchase.
    pub challenge: Option<Digest>,
    /// The ledger's name when the request was checked. If the ledger has another one when the price is
    /// held, it may have lost the purchase that this one repeats.
    pub ledger: Option<Arc<str>>,
    /// If set, this replays an earlier purchase or fails with the problem, but never buys.
    pub replay_or: Option<Box<Problem>>,
    pub waiters: Waiters,
    pub progress: Progress,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupeBy {
    /// The caller's `Idempotency-Key`, unquoted.
    IdempotencyKey(Box<str>),
    /// The key of a quote, and then those of the same order's other quotes.
    Quote(Box<[Box<str>]>),
    /// The same caller, endpoint and body.
    Fingerprint,
}

/// The state of an earlier purchase that a caller can ask for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierPurchase {
    Running,
    Bought(Usd),
    Unknown,
}

impl EarlierPurchase {
    /// Returns `None` if nothing was bought.
    fn of(earlier: &ExistingPurchase) -> Option<Self> {
        match earlier.state {
            PurchaseState::Held | PurchaseState::Sent => Some(Self::Running),
            PurchaseState::Charged => Some(Self::Bought(earlier.cost)),
            PurchaseState::Unknown => Some(Self::Unknown),
            PurchaseState::Released => None,
        }
    }
}

impl PurchaseRequest {
    fn is_retry(&self) -> bool {
        self.attempt.is_some_and(|attempt| attempt > 0)
    }

    pub fn new(caller: Caller, order: Checked<Order>, dedupe_by: DedupeBy) -> Self {
        Self {
            id: PurchaseId::generate(),
            caller,
            session: Session::default(),
            endpoint: "none",
            order,
            dedupe_by,
            attempt: None,
            refused_as: Vec::new(),
            challenge: None,
            ledger: None,
            replay_or: None,
            waiters: Waiters::default(),
            progress: Progress::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    #[default]
    Queued,
    /// About to be sent, or a duplicate of a purchase that may have been sent.
    MaybeSent,
    /// Recorded as sent, so any byte may have been written.
    Sent,
    Settled,
}

#[derive(Clone, Debug, Default)]
pub struct Progress(watch::Sender<Phase>);

impl Progress {
    /// Resolves once the purchase was sent. A duplicate is never sent.
    pub async fn sent(&self) {
        self.0.subscribe().wait_for(|phase| *phase >= Phase::Sent).await.ok();
    }

    /// Notifies only if a task waits, which is rare.
    fn enter(&self, phase: Phase) {
        self.0.send_if_modified(|current| {
            *current = phase;
            self.0.receiver_count() > 0
        });
    }

    fn phase(&self) -> Phase {
        *self.0.borrow()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct PurchaseTerms {
    pub limits: Budgets,
    pub dedupe_window: Duration,
    pub keep_chats: Duration,
    pub keep_videos: Duration,
    pub join_timeout: Duration,
    /// Whether a job is stored with its prompt.
    pub keep_prompts: bool,
}

impl PurchaseTerms {
    pub fn keep(&self, service: Service) -> Duration {
        match service {
            Service::Chat => self.keep_chats,
            Service::Video | Service::Other => self.keep_videos,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Receipt {
    /// Of a replay, the first purchase.
    pub id: PurchaseId,
    pub status: StatusCode,
    pub is_json: bool,
    pub body: Bytes,
    /// Zero for a refusal. A replay shows the original cost and is not charged again.
    pub cost: Usd,
    pub is_replay: bool,
    pub delivery: Option<Delivery>,
    pub video: Option<VideoAccepted>,
    /// `None` for a replay.
    pub timing: Option<Timing>,
}

/// Where the time of a purchase went.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Until it was sent, most of it in the queue for a slot.
    pub queue: Duration,
    pub gateway: Duration,
}

impl Receipt {
    fn new(
        id: PurchaseId,
        reply: GatewayReply,
        charge: Charge,
        delivery: Option<Delivery>,
    ) -> Self {
        let cost = match charge {
            Charge::Paid(cost) => cost,
            Charge::Free | Charge::Unknown => Usd::ZERO,
        };
        let GatewayReply { status, is_json, body, video, .. } = reply;
        Self { id, status, is_json, body, cost, is_replay: false, delivery, video, timing: None }
    }
}

/// The delivery of a reply to one of its clients, until it is dropped.
#[derive(Clone, Debug)]
pub struct Delivery(Arc<Delivering>);

#[derive(Debug)]
struct Delivering {
    ledger: Store,
    id: PurchaseId,
    deliveries: Deliveries,
}

impl Delivery {
    fn new(ledger: Store, id: PurchaseId, deliveries: Deliveries) -> Self {
        deliveries.add(id);
        Self(Arc::new(Delivering { ledger, id, deliveries }))
    }

    pub fn record(&self) {
        self.0.ledger.mark_delivered(self.0.id);
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        self.deliveries.remove(self.id);
    }
}
