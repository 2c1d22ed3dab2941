//! The price list of `GET /bff/catalog`, for the page and for any form.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::contract::catalog::{Aspect, Catalog, Durations, Image};
use crate::contract::{catalog as contract, video, wire};

pub struct Facts<'a> {
    pub mode: &'static str,
    pub access: &'static str,
    pub chat_body: usize,
    pub video_body: usize,
    /// How a job's status is read; guesses.
    pub finished: &'a [String],
    pub failed: &'a [String],
    /// JSON pointers to the video's address.
    pub result: &'a [String],
    pub media_origins: &'a [String],
    pub moods: &'static [(&'static str, &'static str)],
    /// For how long a purchase that is asked for again is not bought again.
    pub chat_seconds: u64,
    pub video_seconds: u64,
    /// Names the ledger. Under another name, keys that were sent before may be forgotten, and buy anew.
    pub ledger: &'a str,
}

pub fn render(catalog: &Catalog, facts: &Facts<'_>) -> Bytes {
    let chat = catalog.chat.iter().map(|model| {
        let toll = model.toll();
        json!({
            "id": model.id,
            "tier": model.tier.name(),
            "toll": toll.to_string(),
            "toll_micros": toll.as_micros(),
            "best_for": model.best_for,
        })
    });
    let moods = facts.moods.iter().map(|(word, does)| json!({ "word": word, "does": does }));
    let list = json!({
        "mode": facts.mode,
        "access": facts.access,
        "chat": chat.collect::<Vec<_>>(),
        "video": catalog.video.iter().map(video_row).collect::<Vec<_>>(),
        "defaults": {
            "video_model": contract::DEFAULT_VIDEO_MODEL,
            "duration": contract::DEFAULT_DURATION,
            "aspect_ratio": video::DEFAULT_ASPECT_RATIO,
        },
        "limits": {
            "prompt_characters": video::PROMPT_LIMIT,
            "chat_body_bytes": facts.chat_body,
            "video_body_bytes": facts.video_body,
        },
        "aspect_ratios": video::ASPECT_RATIOS,
        "roles": wire::ROLES,
        "jobs": {
            "finished": facts.finished,
            "failed": facts.failed,
            "result": facts.result,
            "media_origins": facts.media_origins,
        },
        "sandbox_moods": moods.collect::<Vec<_>>(),
        "replay": {
            "chat_seconds": facts.chat_seconds,
            "video_seconds": facts.video_seconds,
            "ledger": facts.ledger,
        },
    });
    list.to_string().into()
}

fn video_row(model: &contract::VideoModel) -> Value {
    let (min, max) = contract::OVERALL_DURATION;
    json!({
        "id": model.id,
        "toll": model.toll.to_string(),
        "toll_micros": model.toll.as_micros(),
        "durations": match model.durations {
            Durations::Between(min, max) => json!({ "kind": "range", "min": min, "max": max }),
            Durations::OneOf(values) => json!({ "kind": "one_of", "values": values }),
            Durations::Unstated => json!({ "kind": "unstated", "min": min, "max": max }),
        },
        "image": match model.image {
            Image::Optional => "optional",
            Image::Required => "required",
        },
        "aspect_ratio": match model.aspect_ratio {
            Aspect::Ignored => "ignored",
            Aspect::Unstated => "unstated",
        },
        "remarks": model.remarks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_every_model_with_its_toll_in_both_units() {
        let facts = Facts {
            mode: "sandbox",
            access: "open",
            chat_body: 10,
            video_body: 5,
            finished: &[],
            failed: &[],
            result: &[],
            media_origins: &[],
            moods: &[("sandbox:slow", "answers late")],
            chat_seconds: 60,
            video_seconds: 90,
            ledger: "a memory",
        };
        let list = render(&Catalog::published(), &facts);
        let list: Value = serde_json::from_slice(&list).unwrap();
        assert_eq!(list["chat"].as_array().unwrap().len(), 12);
        assert_eq!(list["chat"][0]["toll"], "0.006000");
        assert_eq!(list["chat"][0]["toll_micros"], 6_000);
        assert_eq!(list["video"][0]["durations"]["kind"], "range");
        assert_eq!(list["video"][4]["durations"]["values"][2], 8);
        assert_eq!(list["access"], "open");
        assert_eq!(list["sandbox_moods"][0]["word"], "sandbox:slow");
        assert_eq!(list["replay"]["chat_seconds"], 60);
        assert_eq!(list["replay"]["video_seconds"], 90);
        assert_eq!(list["replay"]["ledger"], "a memory");
    }
}
