//! The document of `GET /bff/catalog`.

use bytes::Bytes;
use serde::Serialize;

use crate::contract::catalog::{AspectRatioSupport, Catalog, Durations, ImageInput};
use crate::contract::{catalog as contract, video, wire};

/// The facts that are not from the [`Catalog`], as they are served.
#[derive(Clone, Debug, Serialize)]
pub struct CatalogFacts {
    pub mode: &'static str,
    pub access: &'static str,
    pub jobs: JobStatusWords,
    pub sandbox_faults: Vec<FaultWord>,
    pub presets: Vec<Preset>,
    pub replay: Replay,
    pub limits: CatalogLimits,
    /// `page.contact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    /// `page.default_model`.
    #[serde(skip)]
    pub default_model: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FaultWord {
    pub word: &'static str,
    pub does: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub struct CatalogLimits {
    pub prompt_characters: usize,
    pub chat_body_bytes: usize,
    pub video_body_bytes: usize,
}

/// A system message that the page offers (`page.presets`).
#[derive(Clone, Debug, Serialize)]
pub struct Preset {
    pub name: String,
    pub system: String,
}

/// How long replies are kept for replay, and the name of the ledger that keeps them.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    pub chat_seconds: u64,
    pub video_seconds: u64,
    /// If the name changes, keys sent before may be forgotten and could buy again.
    pub ledger: String,
}

/// How to read a job's status body, from `[jobs]`.
#[derive(Clone, Debug, Serialize)]
pub struct JobStatusWords {
    pub finished: Vec<String>,
    pub failed: Vec<String>,
    pub result: Vec<String>,
    pub media_origins: Vec<String>,
}

#[derive(Serialize)]
struct CatalogDocument<'a> {
    #[serde(flatten)]
    facts: &'a CatalogFacts,
    chat: Vec<ChatRow<'a>>,
    video: Vec<VideoRow<'a>>,
    defaults: Defaults<'a>,
    aspect_ratios: &'static [&'static str],
    roles: &'static [&'static str],
}

#[derive(Serialize)]
struct ChatRow<'a> {
    id: &'a str,
    tier: &'static str,
    price: String,
    price_micros: u64,
    best_for: &'static str,
}

#[derive(Serialize)]
struct VideoRow<'a> {
    id: &'a str,
    price: String,
    price_micros: u64,
    durations: DurationRule,
    image: ImageInput,
    aspect_ratio: AspectRatioSupport,
    remarks: &'static str,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum DurationRule {
    OneOf { values: &'static [u32] },
    Range { min: u32, max: u32 },
    Unstated { min: u32, max: u32 },
}

#[derive(Serialize)]
struct Defaults<'a> {
    chat_model: &'a str,
    video_model: &'static str,
    duration: u32,
    aspect_ratio: &'static str,
}

pub fn render(catalog: &Catalog, facts: &CatalogFacts) -> Bytes {
    let chats = catalog.chat.iter().map(|model| ChatRow {
        id: &model.id,
        tier: model.tier.name(),
        price: model.price().to_string(),
        price_micros: model.price().as_micros(),
        best_for: model.best_for,
    });
    let list = CatalogDocument {
        facts,
        chat: chats.collect(),
        video: catalog.video.iter().map(video_row).collect(),
        defaults: Defaults {
            chat_model: default_chat_model(catalog, facts.default_model.as_deref()),
            video_model: contract::DEFAULT_VIDEO_MODEL,
            duration: contract::DEFAULT_DURATION,
            aspect_ratio: video::DEFAULT_ASPECT_RATIO,
        },
        aspect_ratios: video::ASPECT_RATIOS,
        roles: wire::ROLES,
    };
    // Serializing strings and numbers cannot fail.
    serde_json::to_vec(&list).unwrap_or_default().into()
}

/// The one that the settings name, else the cheapest.
fn default_chat_model<'a>(catalog: &'a Catalog, named: Option<&'a str>) -> &'a str {
    let order =
        |model: &&contract::ChatModel| (model.price(), model.id != contract::DEFAULT_CHAT_MODEL);
    let cheapest = || catalog.chat.iter().min_by_key(order).map(|model| &*model.id);
    named.or_else(cheapest).unwrap_or(contract::DEFAULT_CHAT_MODEL)
}

fn video_row(model: &contract::VideoModel) -> VideoRow<'_> {
    let (min, max) = contract::OVERALL_DURATION;
    VideoRow {
        id: &model.id,
        price: model.price.to_string(),
        price_micros: model.price.as_micros(),
        durations: match model.durations {
            Durations::Between(min, max) => DurationRule::Range { min, max },
            Durations::OneOf(values) => DurationRule::OneOf { values },
            Durations::Unstated => DurationRule::Unstated { min, max },
        },
        image: model.image,
        aspect_ratio: model.aspect_ratio,
        remarks: model.remarks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_every_model_with_its_price_in_both_units() {
        let facts = CatalogFacts {
            mode: "sandbox",
            access: "open",
            limits: CatalogLimits {
                prompt_characters: video::MAX_PROMPT,
                chat_body_bytes: 10,
                video_body_bytes: 5,
            },
            jobs: JobStatusWords {
                finished: vec![],
                failed: vec![],
                result: vec![],
                media_origins: vec![],
            },
            sandbox_faults: vec![FaultWord { word: "sandbox:slow", does: "answers late" }],
            replay: Replay { chat_seconds: 60, video_seconds: 90, ledger: "a memory".to_owned() },
            contact: Some("Ann, room 5".to_owned()),
            default_model: None,
            presets: vec![Preset {
                name: "Translate".to_owned(),
                system: "Translate into English.".to_owned(),
            }],
        };
        let list = render(&Catalog::published(), &facts);
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        assert_eq!(list["chat"].as_array().unwrap().len(), 12);
        assert_eq!(list["chat"][0]["price"], "0.006000");
        assert_eq!(list["chat"][0]["price_micros"], 6_000);
        assert_eq!(list["video"][0]["durations"]["kind"], "range");
        assert_eq!(list["video"][4]["durations"]["values"][2], 8);
        assert_eq!(list["access"], "open");
        assert_eq!(list["sandbox_faults"][0]["word"], "sandbox:slow");
        assert_eq!(list["defaults"]["chat_model"], "eta-5-mini");
        assert_eq!(list["presets"][0]["system"], "Translate into English.");
        assert_eq!(list["contact"], "Ann, room 5");
        assert_eq!(list["replay"]["chat_seconds"], 60);
        assert_eq!(list["replay"]["video_seconds"], 90);
        assert_eq!(list["replay"]["ledger"], "a memory");
    }

    #[test]
    fn default_chat_model_is_the_named_one_else_the_cheapest() {
        let mut catalog = Catalog::published();
        assert_eq!(default_chat_model(&catalog, Some("iota-5")), "iota-5");
        let tier = contract::Tier::Added("0.001".parse().unwrap());
        catalog.chat.push(contract::ChatModel { id: "new".into(), tier, best_for: "" });
        assert_eq!(default_chat_model(&catalog, None), "new");
    }
}
