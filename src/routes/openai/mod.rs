//! `/v1/…`: the same purchases in OpenAI's dialect, so that its SDKs work unchanged (`docs/openai.md`).
//!
//! Refusals are made here as everywhere else; `downstream::dialect` says them in OpenAI's shape.

mod chat;
mod form;
mod models;
mod refusal;
mod stream;
mod videos;

use bytes::Bytes;
use http::HeaderValue;
use tower::util::BoxCloneSyncService;

use super::Parts;
use crate::answer::Answer;
use crate::downstream::Call;
use crate::downstream::route::Endpoint;
use crate::problem::{Problem, UNKNOWN_ENDPOINT};
use crate::purchase::{Purchase, Receipt};
use crate::validate::openai::Ignored;

type Purchases = BoxCloneSyncService<Purchase, Receipt, Problem>;

/// Answers a call in the dialect.
pub(super) async fn answer(
    parts: &Parts,
    purchases: Purchases,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let catalog = &parts.rules.catalog;
    match call.route.endpoint {
        Endpoint::OpenAiModels => Ok(models::list(catalog)),
        Endpoint::OpenAiModel => models::one(catalog, call.head.uri.path()),
        Endpoint::OpenAiChat => chat::buy(&parts.rules, purchases, call).await,
        Endpoint::OpenAiVideo => videos::buy(parts, purchases, call).await,
        Endpoint::OpenAiVideos => videos::list(parts, call).await,
        Endpoint::OpenAiVideoNamed => videos::named(parts, call).await,
        Endpoint::Chat
        | Endpoint::Video
        | Endpoint::VideoStatus
        | Endpoint::Events
        | Endpoint::Jobs
        | Endpoint::VideoContent
        | Endpoint::Catalog
        | Endpoint::Me
        | Endpoint::Usage
        | Endpoint::Buy
        | Endpoint::Ask
        | Endpoint::Healthz
        | Endpoint::Problem
        | Endpoint::Page => Err(Problem::new(&UNKNOWN_ENDPOINT)),
    }
}

/// The answer with the names of what was passed over.
fn naming(ignored: &Ignored, mut answer: Answer) -> Answer {
    if let Some(Ok(names)) = ignored.names().map(HeaderValue::try_from) {
        answer.headers_mut().insert("tollgate-ignored", names);
    }
    answer
}
