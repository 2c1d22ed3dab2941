//! Sends a purchase to the gateway, and determines its charge and a video's job.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tower::ServiceExt;
use tracing::{error, info, warn};

use super::{PurchaseRequest, Purchases, Timing};
use crate::api::validate::Order;
use crate::gate::problem::Charged;
use crate::gateway::contract::money::Usd;
use crate::gateway::{
    BeforeSend, Error, GatewayCall, GatewayReply, GatewayRequest, GatewayService,
};
use crate::ledger::{Job, Service};
use crate::metrics::Metrics;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    Free,
    Paid(Usd),
    Unknown,
}

impl Purchases {
    /// Sends the purchase of the caller with this name. An unparsable reply is kept in the ledger for the operator.
    pub(super) async fn send(
        &self,
        purchase: &PurchaseRequest,
        caller: Arc<str>,
        before_send: Arc<dyn BeforeSend>,
    ) -> Result<GatewayReply, Error> {
        let order = purchase.order.get();
        let call = match order.service {
            Service::Chat => GatewayCall::Chat(order.body.clone()),
            Service::Video => GatewayCall::Video(order.body.clone()),
            Service::Other => GatewayCall::Passthrough {
                method: http::Method::POST,
                path: (&*order.model).into(),
                body: order.body.clone(),
            },
        };
        let before_send = Some(before_send);
        let request = GatewayRequest { before_send, caller, ..GatewayRequest::free(call) };
        let reply = GatewayService::clone(&self.gateway).oneshot(request).await;
        if let Some(body) = reply.as_ref().err().and_then(Error::unparsable_reply) {
            self.context.ledger.keep_unparsable_reply(purchase.id, body.clone());
        }
        reply
    }

    pub(super) fn job(
        &self,
        purchase: &PurchaseRequest,
        reply: &Result<GatewayReply, Error>,
        charge: Charge,
    ) -> Option<Job> {
        let (Ok(reply), Charge::Paid(cost)) = (reply, charge) else { return None };
        let order = purchase.order.get();
        Some(Job {
            request_id: reply.video.as_ref()?.request_id.clone(),
            purchase: Some(purchase.id),
            owner: purchase.caller.to_string().into(),
            key: self.context.keys.get(reply.key).copied(),
            model: (&*order.model).into(),
            price: cost,
            at: self.context.ledger.now(),
            prompt: self.context.terms.keep_prompts.then(|| prompt(&order.body)).flatten(),
            latest_update: None,
        })
    }
}

fn prompt(body: &[u8]) -> Option<Arc<str>> {
    #[derive(Deserialize)]
    struct Prompt {
        prompt: String,
    }
    serde_json::from_slice::<Prompt>(body).ok().map(|order| order.prompt.into())
}

const MAX_CREDIBLE: Usd = Usd::dollars(50_000);

/// The only place that decides what a purchase cost: what the gateway states (2.5), else the list
/// price. Guess: a refusal is free.
pub(super) fn charge(order: &Order, reply: &Result<GatewayReply, Error>) -> Charge {
    let reply = match reply {
        Ok(reply) if reply.status.is_success() => reply,
        Ok(_refusal) => return Charge::Free,
        Err(error) => {
            return match error.charged() {
                Charged::No => Charge::Free,
                Charged::Yes => Charge::Paid(order.price),
                Charged::Unknown => Charge::Unknown,
            };
        }
    };
    let stated = reply.video.as_ref().and_then(|video| video.charged);
    Charge::Paid(stated.filter(|stated| *stated <= MAX_CREDIBLE).unwrap_or(order.price))
}

/// Logs and counts a purchase that has ended.
pub(super) fn log(
    metrics: &Metrics,
    (purchase, caller): (&PurchaseRequest, &str),
    (charge, job): (Charge, Option<&str>),
    Timing { queue, gateway }: Timing,
) {
    let order = purchase.order.get();
    let (service, model) = (order.service.name(), &*order.model);
    let (outcome, cost) = match charge {
        Charge::Paid(cost) => ("charged", cost),
        Charge::Free => ("refused", Usd::ZERO),
        Charge::Unknown => ("unknown", order.price),
    };
    metrics.purchase(service, outcome, cost.as_micros());
    let PurchaseRequest { id: purchase, endpoint, .. } = purchase;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (queue_ms, gateway_ms) = (millis(queue), millis(gateway));
    if matches!(charge, Charge::Paid(cost) if cost != order.price) {
        error!(%purchase, model, expected = %order.price, charged = %cost,
            "charged price differs from price list");
    }
    if charge == Charge::Unknown {
        warn!(%purchase, endpoint, service, model, %cost, %caller, outcome, queue_ms, gateway_ms,
            "purchase outcome unknown");
    } else {
        info!(%purchase, endpoint, service, model, %cost, %caller, outcome, job, queue_ms, gateway_ms,
            "purchase");
    }
}

#[cfg(test)]
mod tests;
