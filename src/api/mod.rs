//! The endpoints. [`endpoints`] is the table of them.

mod admin;
mod bff;
pub mod catalog;
mod changes;
pub mod endpoints;
mod links;
mod login;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "openai")]
mod openai;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod ops;
#[cfg(feature = "page")]
pub mod page;
/// Stands in for the page in a build without it.
#[cfg(not(feature = "page"))]
pub mod page {
    pub use std::convert::Infallible as Page;

    use http::request::Parts;

    use crate::gate::problem::{NOT_FOUND, Problem};
    use crate::gate::response::HandlerResult;

    pub(super) async fn answer(_: Option<&Page>, _: &Parts, _: &str) -> HandlerResult {
        Err(Problem::new(&NOT_FOUND))
    }
}
pub mod passthrough;
pub mod people;
pub mod pictures;
mod proof;
mod purchases;
pub mod redirect;
pub mod reports;
mod tokens;
#[cfg(any(feature = "mcp", feature = "openai"))]
mod translation;
pub mod validate;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, VARY};
use http::{HeaderValue, StatusCode};

use self::changes::KeyedChange;
use self::passthrough::Passthrough;
use crate::access::Authenticator;
use crate::api::people::People;
use crate::api::reports::Reports;
use crate::api::reports::me::MeReport;
use crate::api::validate::{ChatRules, Checked, Order};
use crate::gate::problem::{PURCHASE_NOT_FOUND, Problem};
use crate::gate::response::{self, HandlerResult, Response};
use crate::gate::route::Class;
use crate::gate::{Call, RefusalLog};
use crate::gateway::contract::selection::Selection;
use crate::gateway::redact::Redactor;
use crate::purchase::ledger_name::LedgerName;
use crate::purchase::{PurchaseRequest, Purchases, Receipt};
use crate::video::JobRegistry;
use crate::video::media::Videos;

pub struct Handlers {
    pub access: Arc<Authenticator>,
    pub refusal_log: Arc<RefusalLog>,
    /// `server.prefix`.
    pub prefix: String,
    /// `server.public_url`.
    pub public_url: Option<String>,
    pub catalog: catalog::PriceList,
    /// `access.may_buy`.
    pub may_buy: Selection,
    /// The names that a member's own rule may have.
    pub on_sale: Box<[Box<str>]>,
    pub ledger_name: LedgerName,
    #[cfg(feature = "openapi")]
    pub openapi: Bytes,
    /// `None` unless `mcp.enabled` is set.
    #[cfg(feature = "mcp")]
    pub mcp: Option<mcp::Mcp>,
    pub rules: ChatRules,
    pub videos: Videos,
    pub me: MeReport,
    pub people: People,
    pub reports: Reports,
    pub passthrough: Passthrough,
    pub jobs: JobRegistry,
    pub redactor: Redactor,
    /// `None` if only the API is served.
    pub page: Option<page::Page>,
    /// `None` unless `page.pictures` is set.
    pub pictures: Option<pictures::PictureHost>,
}

pub struct HandlerContext {
    handlers: Arc<Handlers>,
    purchases: Purchases,
    call: Call<Bytes>,
}

impl HandlerContext {
    fn query(&self) -> Option<&str> {
        self.call.head.uri.query()
    }

    /// Returns what the caller may buy.
    fn may_buy(&self) -> &Selection {
        self.call.session.may_buy.as_ref().unwrap_or(&self.handlers.may_buy)
    }

    async fn purchase(&self, order: Checked<Order>) -> Result<PurchaseRequest, Problem> {
        let headers = &self.call.head.headers;
        let dedupe_by = purchases::dedupe_key(headers)?;
        let (ledger, name) = &*self.handlers.ledger_name.current();
        purchases::check_ledger(name, headers)?;
        let session = self.call.session.clone();
        let replay_only = headers.contains_key(purchases::TOLLGATE_REPLAY);
        // Even if the caller may not buy it any more, a purchase that it made is replayed.
        let may_buy = validate::may_buy(&order, &self.handlers.rules.catalog, self.may_buy());
        let replay_or = match may_buy {
            _ if replay_only => Some(Box::new(Problem::new(&PURCHASE_NOT_FOUND))),
            Ok(()) => None,
            Err(refusal) => Some(Box::new(refusal)),
        };
        let purchase = PurchaseRequest::new(self.call.caller.clone(), order, dedupe_by);
        let id = self.call.id.purchase();
        let ledger = Some(Arc::clone(ledger));
        let attempt = self.call.attempt();
        let endpoint = self.call.route.path;
        let is_retry = attempt.is_some_and(|attempt| attempt > 0);
        let refused_as = if is_retry { self.call.refused_as() } else { Vec::new() };
        let purchase = PurchaseRequest {
            id,
            session,
            endpoint,
            attempt,
            refused_as,
            ledger,
            replay_or,
            ..purchase
        };
        self.with_proof(purchase).await
    }

    async fn buy(&self, order: Checked<Order>) -> Result<Receipt, Problem> {
        self.purchases.buy(self.purchase(order).await?).await
    }

    /// Marks a response that depends on the caller, so that no cache gives it to another one.
    fn for_this_caller(&self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.append(VARY, HeaderValue::from_static("authorization, cookie"));
        if !self.call.is_anonymous() {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response
    }

    /// Runs a report, which reads many purchases: one at a time per caller.
    async fn report(&self, report: impl Future<Output = HandlerResult>) -> HandlerResult {
        let uri = &self.call.head.uri;
        let request = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
        self.handlers.reports.queue.run(&self.call.caller, request, report).await
    }
}

/// Dispatches calls to the endpoints.
pub struct Routes {
    pub handlers: Arc<Handlers>,
    pub purchases: Purchases,
}

impl Routes {
    pub async fn handle(&self, call: Call<Bytes>) -> Response {
        let handlers = Arc::clone(&self.handlers);
        let purchases = self.purchases.clone();
        let id = call.id.clone();
        let route = call.route;
        // The name that a purchase is held under: the ledger may get another one before the reply comes.
        let ledger_name = handlers.ledger_name.header();
        let endpoint = endpoints::find(route);
        let change = if endpoint.is_change() { KeyedChange::of(&call) } else { Ok(None) };
        let handling = (endpoint.handler)(HandlerContext { handlers, purchases, call });
        let handling = async {
            match change? {
                Some(change) => change.make(self.handlers.people.clone(), handling).await,
                None => handling.await,
            }
        };
        let refuse = |problem| response::from_problem(problem, id.as_str());
        let mut response = handling.await.unwrap_or_else(refuse);
        if !endpoint.is_page() {
            response = response::with_security_headers(response);
        }
        if route.class == Class::Paid {
            // A client that is refused for the old name learns the new one.
            let is_renamed = response.status() == StatusCode::PRECONDITION_FAILED;
            let name = if is_renamed { self.handlers.ledger_name.header() } else { ledger_name };
            response.headers_mut().insert(purchases::TOLLGATE_LEDGER, name);
        }
        response
    }
}
