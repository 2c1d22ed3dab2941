//! The endpoints: a call that passed the layers becomes an answer. [`endpoints`] is the table of them.

pub mod api;
pub mod assets;
mod bff;
pub mod catalog;
mod compress;
pub mod endpoints;
pub mod file;
mod openai;
pub mod openapi;
pub mod ops;
pub mod page;
mod purchases;
pub mod site;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;

use self::api::Passthrough;
use crate::access::Access;
use crate::answer::{self, Answer};
use crate::downstream::Call;
use crate::downstream::route::{Class, Needs};
use crate::jobs::Jobs;
use crate::media::Videos;
use crate::problem::Problem;
use crate::purchase::{Purchase, Purchases, Receipt};
use crate::redact::Redactor;
use crate::reports::me::Me;
use crate::reports::{Reports, must_be_admin};
use crate::validate::{ChatRules, Checked, Order};

pub struct Handlers {
    pub access: Arc<Access>,
    pub catalog: Bytes,
    pub ledger_name: HeaderValue,
    pub openapi: Bytes,
    pub rules: ChatRules,
    pub videos: Videos,
    pub me: Me,
    pub reports: Reports,
    pub passthrough: Passthrough,
    pub jobs: Jobs,
    pub redactor: Redactor,
    pub page: page::Page,
}

pub struct Context {
    handlers: Arc<Handlers>,
    purchases: Purchases,
    call: Call<Bytes>,
}

impl Context {
    fn query(&self) -> Option<&str> {
        self.call.head.uri.query()
    }

    fn purchase(&self, order: Checked<Order>) -> Result<Purchase, Problem> {
        let headers = &self.call.head.headers;
        let claim = purchases::claim(headers)?;
        purchases::check_ledger(&self.handlers.ledger_name, headers)?;
        let caller = self.call.caller.clone();
        let purchase = Purchase::new(caller, order, claim).by(self.call.standing.clone());
        Ok(Purchase { only_repeats: headers.contains_key(purchases::TOLLGATE_REPLAY), ..purchase })
    }

    async fn buy(&self, order: Checked<Order>) -> Result<Receipt, Problem> {
        let purchase = self.purchase(order)?;
        self.purchases.buy(purchase).await
    }

    /// Answers with what reads many purchases at once: one at a time for each caller.
    async fn report(
        &self,
        report: impl Future<Output = Result<Answer, Problem>>,
    ) -> Result<Answer, Problem> {
        let uri = &self.call.head.uri;
        let question = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
        self.handlers.reports.turns.of(&self.call.caller, question, report).await
    }
}

/// The end of `downstream`: answers calls, and buys through `purchases`.
pub struct Routes {
    pub handlers: Arc<Handlers>,
    pub purchases: Purchases,
}

impl Routes {
    pub async fn answer(&self, call: Call<Bytes>) -> Answer {
        let (handlers, purchases) = (Arc::clone(&self.handlers), self.purchases.clone());
        let (id, route) = (call.id.clone(), call.route);
        let endpoint = endpoints::of(route);
        let admitted = match route.needs {
            // A caller who is no admin learns just that.
            Needs::Admin => must_be_admin(call.standing.role),
            Needs::Caller | Needs::Nobody => Ok(()),
        };
        let outcome = match admitted {
            Ok(()) => (endpoint.answer)(Context { handlers, purchases, call }).await,
            Err(problem) => Err(problem),
        };
        let mut answer = outcome.unwrap_or_else(|problem| answer::refusal(problem, id.as_str()));
        if !endpoint.is_page() {
            answer = answer::sealed(answer);
        }
        if route.class == Class::Paid {
            let name = self.handlers.ledger_name.clone();
            answer.headers_mut().insert(purchases::TOLLGATE_LEDGER, name);
        }
        answer
    }
}
