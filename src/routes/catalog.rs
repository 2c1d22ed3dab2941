//! The document of `GET /bff/catalog`.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::contract::catalog::{Catalog, Durations};
use crate::contract::{catalog as contract, video, wire};

/// Adds the models to `facts`, the entries that do not depend on them.
pub fn render(catalog: &Catalog, default_model: Option<&str>, mut facts: Value) -> Bytes {
    let chat = |model: &contract::ChatModel| {
        json!({
            "id": model.id,
            "tier": model.tier.name(),
            "price": model.price().to_string(),
            "price_micros": model.price().as_micros(),
            "best_for": model.best_for,
        })
    };
    facts["chat"] = catalog.chat.iter().map(chat).collect();
    facts["video"] = catalog.video.iter().map(video_row).collect();
    facts["defaults"] = json!({
        "chat_model": default_chat_model(catalog, default_model),
        "video_model": contract::DEFAULT_VIDEO_MODEL,
        "duration": contract::DEFAULT_DURATION,
        "aspect_ratio": video::DEFAULT_ASPECT_RATIO,
    });
    facts["aspect_ratios"] = json!(video::ASPECT_RATIOS);
    facts["roles"] = json!(wire::ROLES);
    facts.to_string().into()
}

/// Returns the model that the settings name, or else the cheapest.
fn default_chat_model<'a>(catalog: &'a Catalog, named: Option<&'a str>) -> &'a str {
    let order =
        |model: &&contract::ChatModel| (model.price(), model.id != contract::DEFAULT_CHAT_MODEL);
    let cheapest = || catalog.chat.iter().min_by_key(order).map(|model| &*model.id);
    named.or_else(cheapest).unwrap_or(contract::DEFAULT_CHAT_MODEL)
}

fn video_row(model: &contract::VideoModel) -> Value {
    let (min, max) = contract::OVERALL_DURATION;
    json!({
        "id": model.id,
        "price": model.price.to_string(),
        "price_micros": model.price.as_micros(),
        "durations": match model.durations {
            Durations::Between(min, max) => json!({"kind": "range", "min": min, "max": max}),
            Durations::OneOf(values) => json!({"kind": "one_of", "values": values}),
            Durations::Unstated => json!({"kind": "unstated", "min": min, "max": max}),
        },
        "image": model.image,
        "aspect_ratio": model.aspect_ratio,
        "remarks": model.remarks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_every_model_with_its_price_in_both_units() {
        let facts = json!({
            "access": "open",
            "sandbox_faults": [{"word": "sandbox:slow", "does": "answers late"}],
            "replay": {"chat_seconds": 60, "video_seconds": 90, "ledger": "a memory"},
            "contact": "Ann, room 5",
            "presets": [{"name": "Translate", "system": "Translate into English."}],
        });
        let list = render(&Catalog::published(), None, facts);
        let list: Value = serde_json::from_slice(&list).unwrap();
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
    fn default_chat_model_is_the_named_or_the_cheapest_one() {
        let mut catalog = Catalog::published();
        assert_eq!(default_chat_model(&catalog, Some("iota-5")), "iota-5");
        let tier = contract::Tier::Added("0.001".parse().unwrap());
        catalog.chat.push(contract::ChatModel { id: "new".into(), tier, best_for: "" });
        assert_eq!(default_chat_model(&catalog, None), "new");
    }
}
