//! The endpoints: a call that passed the gate becomes an answer.

pub mod admin;
mod admin_account;
pub mod assets;
pub mod catalog;
mod chat;
mod claim;
mod compress;
mod embed;
pub mod file;
mod further;
mod jobs;
mod ledger;
mod log_in;
mod openai;
pub mod openapi;
pub mod page;
pub mod passthrough;
mod problems;
mod receipt;
pub mod site;
mod video;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderValue;
use tower::Service;
use tower::util::BoxCloneSyncService;

use crate::access::{Access, Admit};
use crate::answer::{self, Answer};
use crate::downstream::Call;
use crate::downstream::route::Endpoint;
use crate::jobs::Jobs;
use crate::media::Videos;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};
use crate::redact::Redactor;
use crate::reports::Reports;
use crate::reports::admin::Admin;
use crate::reports::me::Me;
use crate::reports::spend::Spend;
use crate::routes::passthrough::Further;
use crate::validate::{self, ChatRules};

/// What the endpoints are made of.
pub struct Parts {
    /// Who may call, and who signs in.
    pub access: Arc<Access>,
    /// How often a member may sign in.
    pub admit: Box<Admit>,
    /// The price list's answer, made once.
    pub catalog: Bytes,
    /// Names the ledger to clients (`Tollgate-Ledger`).
    pub ledger_name: HeaderValue,
    /// The API's description, made once.
    pub openapi: Bytes,
    /// What a chat must be.
    pub rules: ChatRules,
    /// Where finished videos are.
    pub videos: Videos,
    /// What a caller may know of itself and the account.
    pub me: Me,
    /// What a caller has spent.
    pub spend: Spend,
    /// What admins may know of everybody and of the account.
    pub admin: Admin,
    /// Whose reports are being read.
    pub reports: Reports,
    /// `gateway.passthrough`.
    pub further: Further,
    /// How far jobs are.
    pub jobs: Jobs,
    /// Finds keys in text that endpoints decode.
    pub redactor: Redactor,
    /// The page, or the fronted site.
    pub page: page::Page,
}

impl Parts {
    /// What reads many purchases at once: one at a time for each caller.
    async fn report(
        &self,
        call: &Call<Bytes>,
        report: impl Future<Output = Result<Answer, Problem>>,
    ) -> Result<Answer, Problem> {
        let uri = &call.head.uri;
        let question = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
        self.reports.of(&call.caller, question, report).await
    }
}

/// The service at the end of `downstream`.
#[derive(Clone)]
pub struct Routes {
    parts: Arc<Parts>,
    purchases: BoxCloneSyncService<Purchase, Receipt, Problem>,
}

impl Routes {
    /// Routes that buy through `purchases`.
    pub fn new(
        parts: Arc<Parts>,
        purchases: BoxCloneSyncService<Purchase, Receipt, Problem>,
    ) -> Self {
        Self { parts, purchases }
    }
}

impl Service<Call<Bytes>> for Routes {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call<Bytes>) -> Self::Future {
        let Self { parts, purchases } = self.clone();
        Box::pin(async move {
            let purchases = ledger::guard(&parts.ledger_name, &call, purchases);
            let outcome = match call.route.endpoint {
                Endpoint::Chat => chat::buy(&parts.rules, purchases, &call).await,
                Endpoint::Video => video::buy(&parts.rules.catalog, purchases, &call).await,
                Endpoint::VideoStatus => video::status(&parts.jobs, &call).await,
                Endpoint::VideoContent => video::content(&parts.videos, &parts.jobs, &call).await,
                Endpoint::Events => jobs::events(&parts.jobs, &call).await,
                Endpoint::Jobs => jobs::list(&parts.jobs, &call).await,
                Endpoint::Catalog => Ok(catalog::answer(&parts.catalog)),
                Endpoint::Embed => embed::answer(&call.head),
                Endpoint::OpenApi => Ok(openapi::answer(&parts.openapi)),
                Endpoint::Me => parts.me.of(&call.caller, &call.standing).await,
                Endpoint::LogIn => log_in::open(&parts.access, &parts.admit, &call).await,
                Endpoint::LogOut => log_in::end(&parts.access, &call).await,
                Endpoint::Usage => spend(&parts, &call).await,
                Endpoint::AdminUsage => admin_account::usage(&parts, &call).await,
                Endpoint::AdminMembers => admin_account::members(&parts.admin, &call).await,
                Endpoint::AdminJobs => admin_account::jobs(&parts.admin, &call).await,
                Endpoint::AdminBilling => admin_account::billing(&parts, &call).await,
                Endpoint::Buy => further::buy(&parts.further, purchases, &call).await,
                Endpoint::Ask => further::ask(&parts.further, &call).await,
                Endpoint::OpenAi(which) => openai::answer(which, &parts, purchases, &call).await,
                Endpoint::Healthz => Ok(admin::alive()),
                Endpoint::Problem => problems::answer(call.head.uri.path()),
                Endpoint::Page => return Ok(page(&parts.page, &call).await),
            };
            let answer =
                outcome.unwrap_or_else(|problem| answer::refusal(problem, call.id.as_str()));
            Ok(ledger::named(&parts.ledger_name, &call, answer::sealed(answer)))
        })
    }
}

/// `GET /bff/usage`
async fn spend(parts: &Parts, call: &Call<Bytes>) -> Result<Answer, Problem> {
    let query = validate::since(call.head.uri.query())?;
    parts.report(call, parts.spend.of(&call.caller, query)).await
}

async fn page(page: &page::Page, call: &Call<Bytes>) -> Answer {
    match page.answer(&call.head).await {
        Ok(answer) => answer,
        Err(problem) => answer::refusal(problem, call.id.as_str()),
    }
}
