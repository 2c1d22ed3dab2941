//! From a checked order to a receipt. Everything here is typed; no HTTP request comes this far.
//!
//! `Purchases::complete` is the whole way of a purchase, top to bottom. Each file holds one of its steps.

mod budget;
pub mod idempotency;
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
use tower::util::BoxCloneSyncService;

pub use waiters::Waiters;

use crate::access::Session;
use crate::clock;
use crate::contract::money::Usd;
use crate::contract::video::VideoAccepted;
use crate::jobs::JobRegistry;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::store::{
    AccountBinding, Budgets, Caller, ExistingPurchase, KeyId, PurchaseId, RecentRefusals, Service,
    Store,
};
use crate::upstream::{Error, GatewayReply, GatewayRequest};
use crate::validate::{Checked, Order, OrderKind};
use budget::Hold;
use idempotency::RunningPurchases;
use send::Charge;

type Outcome = Result<Receipt, Problem>;

/// What purchases are made with; shared by every core.
#[derive(Clone)]
pub struct PurchaseContext {
    pub ledger: Store,
    /// Whether the gateway's account is the ledger's.
    pub binding: AccountBinding,
    pub running: RunningPurchases,
    pub refusals: Arc<RecentRefusals>,
    pub jobs: JobRegistry,
    /// The keys of the ring, in its order.
    pub keys: Arc<[KeyId]>,
    pub terms: PurchaseTerms,
    pub metrics: Arc<Metrics>,
    /// Cancelled when nobody is to wait any longer for what is under way.
    pub drain_expired: CancellationToken,
}

/// One core's purchases.
#[derive(Clone)]
pub struct Purchases {
    context: Arc<PurchaseContext>,
    gateway: BoxCloneSyncService<GatewayRequest, GatewayReply, Error>,
    tasks: TaskTracker,
}

impl Purchases {
    /// Purchases from `gateway`, each in a task of its own on `tasks`.
    pub fn new(
        context: PurchaseContext,
        gateway: BoxCloneSyncService<GatewayRequest, GatewayReply, Error>,
        tasks: TaskTracker,
    ) -> Self {
        Self { context: Arc::new(context), gateway, tasks }
    }

    /// Buys, or answers a repeat. A purchase goes on when its caller hangs up and this is dropped.
    pub async fn buy(&self, purchase: PurchaseRequest) -> Outcome {
        let (own, bought) = (self.clone(), purchase.clone());
        let call = async move { own.complete(&bought).await };
        waiters::run(&self.tasks, &self.context.drain_expired, &purchase, call).await
    }

    /// The steps of a purchase in their order, on which the guarantees rest. Whatever is dropped half-way
    /// (a panic, the runtime's end) is settled by what is known of it: the hold, and then those who joined
    /// ask the ledger.
    async fn complete(&self, purchase: &PurchaseRequest) -> Outcome {
        let PurchaseContext { running, binding, jobs, terms, .. } = &*self.context;
        let order = purchase.order.get();
        let give_up = clock::now() + terms.join_timeout;
        // The account and its balance are known, if the gateway tells them soon.
        binding.wait_for_check().await;
        // Hold: one step of the ledger recognises a repeat, checks each budget and the balance, and sets the
        // price aside.
        let (open, hold) = loop {
            // Whoever the ledger tells of this purchase finds it running.
            let open = running.register(purchase);
            match Hold::place(&self.context, purchase).await {
                Ok(hold) => break (open, hold),
                Err(HoldError::Problem(problem)) => return open.publish(Err(*problem)),
                Err(HoldError::Duplicate(earlier)) => {
                    drop(open);
                    let answer =
                        idempotency::answer_duplicate(&self.context, purchase, earlier, give_up);
                    if let Some(outcome) = answer.await {
                        return outcome;
                    }
                }
            }
        };
        // The gateway's account is the ledger's. Only now, since a repeat is answered whichever it is.
        if let Err(refusal) = binding.ensure_same_account() {
            hold.settle(Charge::Free, None, None).await;
            return open.publish(Err(refusal));
        }
        // Wait for a slot, authorize, send: the gateway asks `hold` right before each first byte.
        let reply = self.send(purchase, Arc::clone(&hold) as _).await;
        let charge = send::charge(order, &reply);
        // Note the job: it is written down with the charge, so that it outlives a crash.
        let job = self.job(purchase, &reply, charge);
        // Settle: the end is in the ledger before the answer's first byte.
        hold.settle(charge, reply.as_ref().ok(), job.as_ref()).await;
        if let Some(job) = job {
            jobs.track(job);
        }
        // Publish: to those who joined, then to the caller.
        open.publish(match reply {
            Ok(reply) => Ok(Receipt::new(reply, charge, hold.delivery())),
            Err(error) => Err(error.purchase_problem()),
        })
    }
}

/// What a caller wants to buy. Only a [`Checked`] order can be in it.
#[derive(Clone)]
pub struct PurchaseRequest {
    pub id: PurchaseId,
    pub caller: Caller,
    /// What its credentials say of it: its own budget, besides those of the settings, and how long it may
    /// buy.
    pub session: Session,
    pub order: Checked<Order>,
    pub dedupe_by: DedupeBy,
    /// It is not bought: either it repeats an earlier one, or it is refused.
    pub replay_only: bool,
    pub waiters: Waiters,
    pub progress: Progress,
}

/// How a purchase is told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupeBy {
    /// By the caller's `Idempotency-Key`, unquoted.
    IdempotencyKey(Box<str>),
    /// By its fingerprint to an earlier one; a retry where the client says so.
    Fingerprint { is_retry: bool },
}

impl PurchaseRequest {
    /// A purchase that nobody waits for yet, of a caller without credentials.
    pub fn new(caller: Caller, order: Checked<Order>, claim: DedupeBy) -> Self {
        Self {
            id: PurchaseId::new(),
            caller,
            session: Session::default(),
            order,
            dedupe_by: claim,
            replay_only: false,
            waiters: Waiters::default(),
            progress: Progress::default(),
        }
    }

    pub fn with_session(self, standing: Session) -> Self {
        Self { session: standing, ..self }
    }

    fn service(&self) -> Service {
        match self.order.get().kind {
            OrderKind::Chat => Service::Chat,
            OrderKind::Video => Service::Video,
            OrderKind::Other => Service::Other,
        }
    }
}

/// How far a purchase is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Nothing of it was sent.
    #[default]
    Queued,
    /// Money may have been spent: it is about to be sent, or repeats a purchase that may have been.
    AtRisk,
    /// The ledger has it as sent, so its first byte may be out.
    Sent,
    /// The ledger has its end.
    Settled,
}

/// The phase of one purchase. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Progress(watch::Sender<Phase>);

impl Progress {
    /// Resolves once the purchase was sent; never for one that repeats another.
    pub async fn sent(&self) {
        self.0.subscribe().wait_for(|phase| *phase >= Phase::Sent).await.ok();
    }

    fn enter(&self, phase: Phase) {
        self.0.send_replace(phase);
    }

    fn phase(&self) -> Phase {
        *self.0.borrow()
    }
}

/// What purchases are made under, from the settings.
#[derive(Clone, Copy, Debug)]
pub struct PurchaseTerms {
    pub limits: Budgets,
    /// How long an identical purchase without a key joins one whose reply did not arrive.
    pub dedupe_window: Duration,
    /// How long replies are kept.
    pub keep_chats: Duration,
    pub keep_videos: Duration,
    /// How long a repeat waits for the end of the first call.
    pub join_timeout: Duration,
}

impl PurchaseTerms {
    /// How long the reply of what is bought there is kept.
    pub fn keep(&self, service: Service) -> Duration {
        match service {
            Service::Chat => self.keep_chats,
            Service::Video | Service::Other => self.keep_videos,
        }
    }
}

/// The gateway's answer to a purchase, to be passed on.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// A success or a definitive refusal.
    pub status: StatusCode,
    pub is_json: bool,
    pub body: Bytes,
    /// What it cost; nothing for a refusal. A replay repeats it and is not charged again.
    pub cost: Usd,
    /// Whether it is the answer of an earlier or running purchase, given again.
    pub is_replay: bool,
    /// To be told when the caller took the body to its end.
    pub delivery: Option<Delivery>,
    /// The job that a video's order became.
    pub video: Option<VideoAccepted>,
}

impl Receipt {
    fn new(reply: GatewayReply, charge: Charge, delivery: Option<Delivery>) -> Self {
        let cost = match charge {
            Charge::Paid(cost) => cost,
            Charge::Free | Charge::Unknown => Usd::ZERO,
        };
        let GatewayReply { status, is_json, body, video, .. } = reply;
        Self { status, is_json, body, cost, is_replay: false, delivery, video }
    }
}

/// Notes in the ledger that a reply reached its caller.
#[derive(Clone, Debug)]
pub struct Delivery {
    ledger: Store,
    id: PurchaseId,
}

impl Delivery {
    /// The body was taken to its end.
    pub fn record(&self) {
        self.ledger.mark_delivered(self.id);
    }
}

#[derive(Clone, Debug)]
enum HoldError {
    Duplicate(ExistingPurchase),
    Problem(Box<Problem>),
}

impl From<Problem> for HoldError {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}
