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
use crate::jobs::reading;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};
use crate::redact::Redactor;

/// The text in the gateway's JSON at the first of `pointers` that leads to one. It is searched for keys
/// after it was decoded, too, as it is written out anew.
fn text_at(redactor: &Redactor, body: &[u8], pointers: &[&str]) -> Option<String> {
    let pointers: Vec<_> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
    reading::text_at(body, &pointers).map(|text| redactor.text(text))
}

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
        OpenAi::Chat => chat::buy(parts, purchases, call).await,
        OpenAi::Video => videos::buy(parts, purchases, call).await,
        OpenAi::Videos => videos::list(parts, call).await,
        OpenAi::VideoNamed => videos::named(parts, call).await,
    }
}
