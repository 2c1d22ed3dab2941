//! The tools that quote and buy. Everything is bought under a quote.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::Mcp;
use super::call::ToolCall;
use super::reply::{Done, Outcome, Refusal, quoted, quoted_word, raw, raw_bytes};
use crate::access::quote::{OrderId, Quote};
use crate::api::HandlerContext;
use crate::api::translation::{CONTENT_POINTER, ERROR_POINTERS, text_at};
use crate::api::validate::{self, ChatRules, Checked, Order};
use crate::clock::iso8601;
use crate::gate::problem::{
    Charged, IDEMPOTENCY_KEY_REUSED, INVALID_IDEMPOTENCY_KEY, INVALID_REQUEST, OUTCOME_UNKNOWN,
    PURCHASE_NOT_FOUND, Problem,
};
use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::Usd;
use crate::purchase::{DedupeBy, EarlierPurchase, PurchaseRequest, Receipt};

/// The user's answer that confirms a purchase.
const ACCEPT: &str = "accept";
/// The limit for repeated orders within the life of a quote.
const MAX_COPIES: u8 = 32;

/// Returns the price and the quote of an order. With `again`, an order that was bought gets another quote.
pub(super) async fn quote(
    call: &ToolCall,
    order: Checked<Order>,
    again: bool,
) -> Result<Outcome, Refusal> {
    let context = OrderContext::new(call, order)?;
    let mut copy = 0;
    loop {
        let quote = context.current_quote(copy);
        let earlier = context.find(&quote).await?;
        if !again || earlier.is_none() {
            return context.offer(&quote, earlier).await;
        }
        copy += 1;
        if copy > MAX_COPIES {
            let detail = "this order was bought too many times within a few minutes";
            return Err(Problem::new(&INVALID_REQUEST).detail(detail).into());
        }
    }
}

/// Buys the order that `read` reads from the arguments besides the quote.
pub(super) async fn buy(
    call: ToolCall,
    read: fn(&[u8], &ChatRules) -> Result<Checked<Order>, Problem>,
) -> Result<Outcome, Refusal> {
    let (handlers, caller) = (&call.cx.handlers, &call.cx.call.caller);
    handlers.me.limiter.take_purchase(caller)?;
    let arguments = validate::mcp::order(call.arguments.as_deref())?;
    let order = read(&arguments.order, &handlers.rules)?;
    let context = OrderContext::new(&call, order)?;
    let named = call.state.as_deref().or(arguments.quote.as_deref());
    let quote = match named {
        Some(text) => context.read(text)?,
        None => context.current_quote(0),
    };
    // A refusal holds, even if settings have changed meanwhile.
    if call.action.as_deref().is_some_and(|action| action != ACCEPT) {
        return Ok(context.declined());
    }
    if !context.needs_consent() {
        return context.buy(&quote).await;
    }
    // An order that was bought needs no consent: its reply is replayed.
    let earlier = context.find(&quote).await?;
    if earlier.is_some() {
        return context.replay(&quote).await;
    }
    let is_accepted = call.can_ask && call.state.is_some() && call.action.is_some();
    if is_accepted {
        context.buy(&quote).await
    } else if call.can_ask {
        context.ask(&quote).await
    } else if call.state.is_none() && arguments.quote.is_some() {
        context.buy(&quote).await
    } else {
        context.offer(&quote, None).await
    }
}

/// The context of one order of one caller.
struct OrderContext<'a> {
    cx: &'a HandlerContext,
    mcp: &'a Mcp,
    order: Checked<Order>,
    id: OrderId,
    now: Duration,
    /// The ledger's name, which quotes depend on.
    ledger: Arc<str>,
    /// The reason why the caller may not buy the order. An earlier purchase is still replayed.
    refusal: Option<Box<Problem>>,
}

impl<'a> OrderContext<'a> {
    fn new(call: &'a ToolCall, order: Checked<Order>) -> Result<Self, Problem> {
        let (cx, mcp) = (&*call.cx, call.cx.mcp()?);
        let Order { service, price, body, .. } = order.get();
        if !mcp.is_sold(*service) {
            let detail = format!("this service sells no {} to agents", service.name());
            return Err(Problem::new(&INVALID_REQUEST).detail(detail));
        }
        let id = OrderId::new(service.name(), price.as_micros(), body);
        let may_buy = validate::may_buy(&order, &cx.handlers.rules.catalog, cx.may_buy());
        let name = &cx.handlers.ledger_name;
        let (now, ledger) = (name.ledger_time(), name.text());
        Ok(Self { cx, mcp, id, now, ledger, order, refusal: may_buy.err().map(Box::new) })
    }

    fn price(&self) -> Usd {
        self.order.get().price
    }

    fn needs_consent(&self) -> bool {
        self.order.get().service == Service::Video || self.price() >= self.mcp.ask
    }

    fn current_quote(&self, copy: u8) -> Quote {
        self.mcp.quotes.quote(&self.cx.call.caller, self.id, copy, self.now)
    }

    fn read(&self, text: &str) -> Result<Quote, Problem> {
        self.mcp.quotes.read(&self.cx.call.caller, text).ok_or_else(|| {
            Problem::new(&INVALID_IDEMPOTENCY_KEY).detail(
                "this is no quote of this service for you: copy it whole. If something may have been \
                 bought with it, ask the person before you order again",
            )
        })
    }

    fn purchase(&self, quote: &Quote) -> PurchaseRequest {
        let call = &self.cx.call;
        let keys = self.mcp.quotes.keys(&call.caller, quote);
        let dedupe_by = DedupeBy::Quote(keys.into());
        let purchase = PurchaseRequest::new(call.caller.clone(), self.order.clone(), dedupe_by);
        let (session, replay_or) = (call.session.clone(), self.refusal.clone());
        let (id, ledger) = (call.id.purchase(), Some(Arc::clone(&self.ledger)));
        let endpoint = call.route.path;
        PurchaseRequest { id, session, endpoint, ledger, replay_or, ..purchase }
    }

    fn check_allowed(&self) -> Result<(), Problem> {
        self.refusal.as_deref().map_or(Ok(()), |refusal| Err(refusal.clone()))
    }

    /// Returns the outcome of the purchase under this quote, or under another quote for the same order.
    async fn find(&self, quote: &Quote) -> Result<Option<EarlierPurchase>, Problem> {
        match self.cx.purchases.find(&self.purchase(quote)).await {
            Err(problem) if problem.kind() == &IDEMPOTENCY_KEY_REUSED => Err(other_order()),
            found => found,
        }
    }

    async fn buy(&self, quote: &Quote) -> Result<Outcome, Refusal> {
        let is_usable = quote.is_for(self.id) && self.now < quote.expires_at();
        if !is_usable {
            return self.replay(quote).await;
        }
        let purchase = self.cx.with_proof(self.purchase(quote)).await?;
        let receipt = self.cx.purchases.buy(purchase).await;
        self.sold(quote, receipt.map_err(|problem| Refusal::with_quote(problem, quote))?)
    }

    /// Returns the reply of the purchase under a quote. Never buys.
    async fn replay(&self, quote: &Quote) -> Result<Outcome, Refusal> {
        let nothing = Box::new(Problem::new(&PURCHASE_NOT_FOUND));
        let lookup = PurchaseRequest { replay_or: Some(nothing), ..self.purchase(quote) };
        let receipt = self.cx.purchases.buy(lookup).await.map_err(|problem| {
            let problem = match problem.kind() {
                kind if kind == &IDEMPOTENCY_KEY_REUSED => other_order(),
                kind if kind == &PURCHASE_NOT_FOUND && !quote.is_for(self.id) => other_order(),
                kind if kind == &PURCHASE_NOT_FOUND => self.expired(quote, problem),
                _ => problem,
            };
            Refusal::with_quote(problem, quote)
        })?;
        self.sold(quote, receipt)
    }

    fn expired(&self, quote: &Quote, problem: Problem) -> Problem {
        let end = iso8601(quote.expires_at());
        if self.now < quote.expires_at() + self.mcp.keep_replies {
            let detail = format!("the quote expired at {end}, and nothing was bought with it");
            return problem.detail(format!("{detail}; call quote again"));
        }
        problem.charged(Charged::Unknown).detail(format!(
            "the quote expired at {end}, and whether anything was bought with it is no longer known; \
             ask the person before you order again"
        ))
    }

    fn sold(&self, quote: &Quote, receipt: Receipt) -> Result<Outcome, Refusal> {
        let redactor = &self.cx.handlers.redactor;
        if !receipt.status.is_success() {
            return Ok(Outcome::Done(refused_by_gateway(
                receipt.status,
                text_at(redactor, &receipt.body, ERROR_POINTERS),
                receipt,
            )));
        }
        let unreadable = |what: &str| {
            let problem = Problem::new(&OUTCOME_UNKNOWN).charged(Charged::Yes);
            Refusal::with_quote(problem.detail(format!("the gateway's reply has no {what}")), quote)
        };
        let (cost, is_replay) = (receipt.cost, receipt.is_replay);
        let mut document = json!({
            "model": self.order.get().model,
            "cost": cost,
            "replayed": is_replay,
            "quote": quote.to_string(),
        });
        let text = match &receipt.video {
            None if self.order.get().service == Service::Video => {
                return Err(unreadable("request_id"));
            }
            Some(video) => {
                document["request_id"] = json!(&*video.request_id);
                let again = if is_replay {
                    "was ordered already; nothing was charged again"
                } else {
                    "is ordered"
                };
                let id = quoted_word(&video.request_id);
                format!(
                    "The video {again}. It cost {}. Follow it: call get_video with request_id {}.",
                    cost.short(),
                    id.as_deref().unwrap_or("of this result")
                )
            }
            None => {
                let text = text_at(redactor, &receipt.body, &[CONTENT_POINTER]);
                let text = text.ok_or_else(|| unreadable("message.content"))?;
                document["reply"] = json!(text);
                text
            }
        };
        Ok(Outcome::Done(Done { receipt: Some(receipt), ..Done::new(text, &document) }))
    }

    /// Returns a quote with its price. Nothing is bought.
    async fn offer(
        &self,
        quote: &Quote,
        earlier: Option<EarlierPurchase>,
    ) -> Result<Outcome, Refusal> {
        let mut left = None;
        if earlier.is_none() {
            self.check_allowed()?;
            left = self.left_after().await?;
        }
        let (price, tool) = (self.price(), tool_of(self.order.get().service));
        let (state, text) = match earlier {
            None => {
                let left = left.map(|left| format!("; {} is left after it", left.short()));
                let text = format!(
                    "The price is {}{}. Nothing was bought or charged. To buy, call {tool} with the \
                     same arguments and quote {quote}, before {}.",
                    price.short(),
                    left.unwrap_or_default(),
                    iso8601(quote.expires_at()),
                );
                ("open", text)
            }
            Some(EarlierPurchase::Bought(cost)) => {
                let text = format!(
                    "This order was bought already, for {}. To get its answer again for free, call \
                     {tool} with the same arguments and quote {quote}. If a further copy is wanted, \
                     call quote with again: true.",
                    cost.short()
                );
                ("bought", text)
            }
            Some(EarlierPurchase::Running) => {
                ("running", unfinished("is being bought", quote, tool))
            }
            Some(EarlierPurchase::Unknown) => {
                ("unknown", unfinished("may have been bought and charged", quote, tool))
            }
        };
        let document = json!({
            "quote": quote.to_string(),
            "state": state,
            "price": price,
            "left_after": left,
            "expires": iso8601(quote.expires_at()),
            "buy_with": tool,
        });
        Ok(Outcome::Done(Done::new(text, &document)))
    }

    async fn ask(&self, quote: &Quote) -> Result<Outcome, Refusal> {
        if !quote.is_for(self.id) {
            return Err(other_order().into());
        }
        self.check_allowed()?;
        if self.now >= quote.expires_at() {
            return self.replay(quote).await;
        }
        let left = self.left_after().await?;
        let left = left.map(|left| format!(" {} is left after it.", left.short()));
        let Order { service, model, .. } = self.order.get();
        let question = format!(
            "Buy this {} of {model} for {}?{}",
            if *service == Service::Video { "video" } else { "chat reply" },
            self.price().short(),
            left.unwrap_or_default()
        );
        Ok(Outcome::Ask { question, state: quote.to_string() })
    }

    fn declined(&self) -> Outcome {
        let text = "The person declined. Nothing was bought or charged. Do not ask again unless the \
            person wants it.";
        Outcome::Done(Done::new(text, &json!({ "state": "declined", "charged": "no" })))
    }

    /// Returns the remaining budget after this order, or `None` without a budget.
    async fn left_after(&self) -> Result<Option<Usd>, Problem> {
        let call = &self.cx.call;
        let caller = (&call.caller, &call.session);
        self.cx.handlers.me.left_after(self.price(), caller).await
    }
}

fn tool_of(service: Service) -> &'static str {
    match service {
        Service::Chat => "chat",
        Service::Video | Service::Other => "create_video",
    }
}

fn unfinished(what: &str, quote: &Quote, tool: &str) -> String {
    format!(
        "This order {what}. Do not order it again: call {tool} with the same arguments and quote \
         {quote}, which returns its answer once it is known."
    )
}

fn other_order() -> Problem {
    Problem::new(&IDEMPOTENCY_KEY_REUSED)
        .detail("this quote is for another order, or for another price; call quote for this one")
}

fn refused_by_gateway(status: StatusCode, reason: Option<String>, receipt: Receipt) -> Done {
    let reason = reason.map(|text| format!(": {}", quoted(&text))).unwrap_or_default();
    let text = format!(
        "The gateway refused the order with status {}{reason}. Nothing was charged.",
        status.as_u16()
    );
    let document = json!({
        "code": "refused_by_gateway",
        "status": status.as_u16(),
        "charged": "no",
        "gateway": if receipt.is_json { raw_bytes(&receipt.body) } else { raw(&()) },
    });
    Done { is_error: true, receipt: Some(receipt), ..Done::new(text, &document) }
}
