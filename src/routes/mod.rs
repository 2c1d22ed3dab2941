//! The endpoints: a call that passed the gate becomes an answer.

pub mod admin;
pub mod assets;
pub mod catalog;
mod chat;
pub mod file;
pub mod page;
mod problems;
pub mod site;
mod video;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use tower::Service;
use tower::util::BoxCloneSyncService;

use crate::account::media::Videos;
use crate::answer;
use crate::answer::Answer;
use crate::downstream::Call;
use crate::downstream::route::Endpoint;
use crate::jobs::Jobs;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};
use crate::validate::ChatRules;

/// What the endpoints are made of.
pub struct Parts {
    /// The price list's answer, made once.
    pub catalog: Bytes,
    /// What a chat must be.
    pub rules: ChatRules,
    /// Where finished videos are.
    pub videos: Videos,
    /// How far jobs are.
    pub jobs: Jobs,
    /// The page, or the fronted site.
    pub page: page::Page,
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
            let outcome = match call.route.endpoint {
                Endpoint::Chat => chat::buy(&parts.rules, purchases, &call).await,
                Endpoint::Video => video::buy(&parts.rules.catalog, purchases, &call).await,
                Endpoint::VideoStatus => video::status(&parts.jobs, &call).await,
                Endpoint::VideoContent => video::content(&parts.videos, &parts.jobs, &call).await,
                Endpoint::Catalog => Ok(catalog::answer(&parts.catalog)),
                Endpoint::Healthz => Ok(admin::alive()),
                Endpoint::Problem => problems::answer(call.head.uri.path()),
                Endpoint::Page => return Ok(page(&parts.page, &call).await),
            };
            Ok(answer::sealed(
                outcome.unwrap_or_else(|problem| answer::refusal(problem, call.id.as_str())),
            ))
        })
    }
}

async fn page(page: &page::Page, call: &Call<Bytes>) -> Answer {
    match page.answer(&call.head).await {
        Ok(answer) => answer,
        Err(problem) => answer::refusal(problem, call.id.as_str()),
    }
}

/// The gateway's answer to a purchase, its body unchanged.
fn receipt(receipt: Receipt) -> Answer {
    let mut answer = passed_on(receipt.status, receipt.is_json, receipt.body);
    if let Ok(toll) = HeaderValue::try_from(receipt.toll.to_string()) {
        answer.headers_mut().insert("tollgate-toll", toll);
    }
    answer
}

/// A body of the gateway, labelled as what it was found to be.
fn passed_on(status: StatusCode, is_json: bool, body: Bytes) -> Answer {
    let media_type = match is_json {
        true => "application/json",
        false => "text/plain; charset=utf-8",
    };
    let mut answer = answer::bytes_of(status, media_type, body);
    answer.headers_mut().insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
