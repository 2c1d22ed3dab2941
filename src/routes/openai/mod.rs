//! `/v1/…`: the same purchases in OpenAI's dialect, so that its SDKs work unchanged (`docs/guide/openai.md`).

pub(super) mod chat;
mod reply;
pub(super) mod videos;

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::contract::catalog::Catalog;
use crate::contract::money::Usd;
use crate::problem::{NOT_FOUND, Problem};

const PREFIX: &str = "/v1/models/";

#[derive(Serialize)]
struct Models<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    /// Nobody knows; strict clients want a number.
    created: u64,
    owned_by: &'static str,
    /// Ours: which endpoint takes it.
    kind: &'static str,
    toll: String,
}

pub(super) fn models(catalog: &Catalog) -> Answer {
    answer::json(StatusCode::OK, &Models { object: "list", data: all_models(catalog).collect() })
}

pub(super) fn model(catalog: &Catalog, path: &str) -> Result<Answer, Problem> {
    let id = path.strip_prefix(PREFIX).unwrap_or_default();
    let id = percent_decode_str(id).decode_utf8_lossy();
    let model = all_models(catalog).find(|model| model.id == id).ok_or_else(|| {
        Problem::new(&NOT_FOUND)
            .detail("there is no such model; GET /v1/models lists those on offer")
    })?;
    Ok(answer::json(StatusCode::OK, &model))
}

fn all_models(catalog: &Catalog) -> impl Iterator<Item = Model<'_>> {
    let model = |id, kind, toll: Usd| Model {
        id,
        object: "model",
        created: 0,
        owned_by: "gateway",
        kind,
        toll: toll.to_string(),
    };
    let chats = catalog.chat.iter().map(move |row| model(&*row.id, "chat", row.toll()));
    chats.chain(catalog.video.iter().map(move |row| model(&*row.id, "video", row.toll)))
}
