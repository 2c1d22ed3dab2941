//! Asks the gateway for what was ordered, and reads what came of it: the charge, and a video's job.

use std::sync::Arc;

use tower::ServiceExt;
use tracing::{error, info, warn};

use super::{PurchaseRequest, Purchases};
use crate::clock;
use crate::contract::money::Usd;
use crate::metrics::Metrics;
use crate::problem::Charged;
use crate::store::Job;
use crate::upstream::{BeforeSend, Error, GatewayCall, GatewayReply, GatewayRequest};
use crate::validate::{Order, OrderKind};

/// What is known of the money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// The gateway provably charged nothing.
    Free,
    /// The gateway charged this.
    Paid(Usd),
    /// Nobody knows: the whole price counts as spent.
    Unknown,
}

impl Purchases {
    /// The gateway's reply, and one line in the log. What was paid for and cannot be read is left with
    /// the ledger for the operator.
    pub(super) async fn send(
        &self,
        purchase: &PurchaseRequest,
        before_send: Arc<dyn BeforeSend>,
    ) -> Result<GatewayReply, Error> {
        let order = purchase.order.get();
        let what = match order.kind {
            OrderKind::Chat => GatewayCall::Chat(order.body.clone()),
            OrderKind::Video => GatewayCall::Video(order.body.clone()),
            OrderKind::Other => GatewayCall::Passthrough {
                method: http::Method::POST,
                path: order.model.clone(),
                body: order.body.clone(),
            },
        };
        let ask = GatewayRequest {
            call: what,
            before_send: Some(before_send),
            caller: purchase.caller.to_string().into(),
            preferred_key: None,
            is_patient: false,
        };
        let started = clock::now();
        let reply = self.gateway.clone().oneshot(ask).await;
        let millis = clock::now().duration_since(started).as_millis();
        log(&self.context.metrics, purchase, charge(order, &reply), millis);
        if let Some(body) = reply.as_ref().err().and_then(Error::unparsable_reply) {
            self.context.ledger.keep_unparsable_reply(purchase.id, body.clone());
        }
        reply
    }

    /// The job that a video's order became.
    pub(super) fn job(
        &self,
        purchase: &PurchaseRequest,
        reply: &Result<GatewayReply, Error>,
        charge: Charge,
    ) -> Option<Job> {
        let (Ok(reply), Charge::Paid(cost)) = (reply, charge) else { return None };
        Some(Job {
            request_id: reply.video.as_ref()?.request_id.clone(),
            purchase: Some(purchase.id),
            owner: purchase.caller.to_string().into(),
            key: self.context.keys.get(reply.key).copied(),
            model: (&*purchase.order.get().model).into(),
            price: cost,
            at: self.context.ledger.now(),
            latest_update: None,
        })
    }
}

/// Ten thousand times the dearest video.
const MAX_CREDIBLE: Usd = Usd::dollars(50_000);

/// What a purchase cost: the only place that decides it. A refusal costs nothing (a guess: see
/// [`crate::upstream`]). A success costs what the gateway says that it charged, where it says so (2.5), and
/// the price in our list otherwise.
pub(super) fn charge(order: &Order, reply: &Result<GatewayReply, Error>) -> Charge {
    let reply = match reply {
        Ok(reply) if reply.status.is_success() => reply,
        Ok(_refusal) => return Charge::Free,
        Err(error) => {
            return match error.charged() {
                Charged::No => Charge::Free,
                // Only a reply that was read proves a charge.
                Charged::Yes | Charged::Unknown => Charge::Unknown,
            };
        }
    };
    let said = reply.video.as_ref().and_then(|video| video.charged);
    // What no ledger can hold is no amount that anybody was charged.
    Charge::Paid(said.filter(|said| *said <= MAX_CREDIBLE).unwrap_or(order.price))
}

/// One line in the log for each purchase that was tried, and its place in the metrics.
fn log(metrics: &Metrics, purchase: &PurchaseRequest, charge: Charge, millis: u128) {
    let order = purchase.order.get();
    let (service, model) = (purchase.service().name(), &*order.model);
    let (outcome, cost) = match charge {
        Charge::Paid(cost) => ("charged", cost),
        Charge::Free => ("refused", Usd::ZERO),
        Charge::Unknown => ("unknown", order.price),
    };
    metrics.purchase(service, outcome, cost.as_micros());
    let caller = &purchase.caller;
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    if matches!(charge, Charge::Paid(cost) if cost != order.price) {
        error!(model, expected = %order.price, charged = %cost,
            "the gateway's charge differs from the price list");
    }
    if charge == Charge::Unknown {
        warn!(service, model, %cost, %caller, outcome, millis, "purchase: it may have been charged");
    } else {
        info!(service, model, %cost, %caller, outcome, millis, "purchase");
    }
}

#[cfg(test)]
mod tests;
