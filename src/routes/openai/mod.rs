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
use tower::util::BoxCloneSyncService;

use super::Parts;
use crate::answer::Answer;
use crate::downstream::Call;
use crate::downstream::route::OpenAi;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};

type Purchases = BoxCloneSyncService<Purchase, Receipt, Problem>;

/// Answers a call in the dialect.
pub(super) async fn answer(
    which: OpenAi,
    parts: &Parts,
    purchases: Purchases,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let catalog = &parts.rules.catalog;
    match which {
        OpenAi::Models => Ok(models::list(catalog)),
        OpenAi::Model => models::one(catalog, call.head.uri.path()),
        OpenAi::Chat => chat::buy(&parts.rules, purchases, call).await,
        OpenAi::Video => videos::buy(parts, purchases, call).await,
        OpenAi::Videos => videos::list(parts, call).await,
        OpenAi::VideoNamed => videos::named(parts, call).await,
    }
}
