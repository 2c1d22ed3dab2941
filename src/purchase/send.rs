//! Asks the gateway for what was ordered, and writes the receipt.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::layer::layer_fn;
use tower::{Layer, Service};
use tracing::{error, info, warn};

use super::{Purchase, Receipt};
use crate::clock;
use crate::contract::money::Usd;
use crate::contract::video::VideoAccepted;
use crate::metrics::Metrics;
use crate::problem::{Charged, Problem};
use crate::store::Store;
use crate::upstream::{Ask, Error, Reply, What};
use crate::validate::{Order, Paid};

/// See the file's documentation.
#[derive(Clone)]
pub struct Sender<S> {
    inner: S,
    metrics: Arc<Metrics>,
    ledger: Store,
}

/// Turns a purchase into an ask, and its reply into a receipt. What was paid for and cannot be read is
/// left with `ledger` for the operator.
pub fn layer<S>(
    metrics: Arc<Metrics>,
    ledger: Store,
) -> impl Layer<S, Service = Sender<S>> + Clone {
    layer_fn(move |inner| Sender { inner, metrics: Arc::clone(&metrics), ledger: ledger.clone() })
}

impl<S> Service<Purchase> for Sender<S>
where
    S: Service<Ask, Response = Reply, Error = Error>,
    S::Future: Send + 'static,
{
    type Response = Receipt;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Receipt, Problem>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        self.inner.poll_ready(cx).map_err(|error| error.of_purchase())
    }

    fn call(&mut self, purchase: Purchase) -> Self::Future {
        let order = purchase.order.get();
        let what = match order.paid {
            Paid::Chat => What::Chat(order.body.clone()),
            Paid::Video => What::Video(order.body.clone()),
            Paid::Other => What::Other {
                method: http::Method::POST,
                path: order.model.clone(),
                body: order.body.clone(),
            },
        };
        let asked = self.inner.call(Ask {
            what,
            departure: purchase.departure.clone(),
            caller: purchase.caller.to_string().into(),
            prefer: None,
            is_patient: false,
        });
        let (metrics, ledger) = (Arc::clone(&self.metrics), self.ledger.clone());
        let started = clock::now();
        Box::pin(async move {
            let outcome = asked.await;
            let millis = clock::now().duration_since(started).as_millis();
            let order = purchase.order.get();
            let toll = outcome.as_ref().map_or(order.toll, |reply| cost(order, reply));
            book(&metrics, &purchase, &outcome, toll, millis);
            match outcome {
                Ok(reply) => Ok(Receipt {
                    status: reply.status,
                    is_json: reply.is_json,
                    toll,
                    key: Some(reply.key),
                    body: reply.body,
                    is_replay: false,
                    delivery: None,
                    accepted: None,
                }),
                Err(error) => {
                    if let Some(body) = error.unread() {
                        ledger.keep_unread(purchase.id, body.clone());
                    }
                    Err(error.of_purchase())
                }
            }
        })
    }
}

/// Ten thousand times the dearest video.
const MOST_CREDIBLE: Usd = Usd::dollars(50_000);

/// What the gateway says that it charged, where it says so (2.5), and our price list otherwise. A
/// refusal costs nothing (a guess: see [`crate::upstream`]).
fn cost(order: &Order, reply: &Reply) -> Usd {
    if !reply.status.is_success() {
        return Usd::ZERO;
    }
    let said = match order.paid {
        Paid::Chat | Paid::Other => None,
        Paid::Video => serde_json::from_slice::<VideoAccepted<'_>>(&reply.body)
            .ok()
            .and_then(|accepted| accepted.charged())
            // What no ledger can hold is no amount that anybody was charged.
            .filter(|said| *said <= MOST_CREDIBLE),
    };
    match said {
        Some(said) if said != order.toll => {
            error!(model = &*order.model, expected = %order.toll, charged = %said,
                "the gateway charged another toll than its price list says");
            said
        }
        _ => order.toll,
    }
}

/// One line in the log for each purchase that was tried, and its place in the metrics. `toll` is what it cost
/// if it was charged.
fn book(
    metrics: &Metrics,
    purchase: &Purchase,
    outcome: &Result<Reply, Error>,
    toll: Usd,
    millis: u128,
) {
    let order = purchase.order.get();
    let service = purchase.service().name();
    let charged = match outcome {
        Ok(reply) if reply.status.is_success() => Charged::Yes,
        Ok(_refusal) => Charged::No,
        Err(error) => error.charged(),
    };
    let outcome = match charged {
        Charged::Yes => "charged",
        Charged::No => "refused",
        Charged::Unknown => "unknown",
    };
    // What was refused cost nothing.
    let toll = if charged == Charged::No { Usd::ZERO } else { toll };
    metrics.purchase(service, outcome, toll.as_micros());
    let (model, caller) = (&*order.model, &purchase.caller);
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    match charged {
        Charged::Yes | Charged::No => {
            info!(service, model, %toll, %caller, outcome, millis, "purchase");
        }
        Charged::Unknown => {
            warn!(service, model, %toll, %caller, outcome, millis, "purchase: it may have been charged");
        }
    }
}

#[cfg(test)]
mod tests;
