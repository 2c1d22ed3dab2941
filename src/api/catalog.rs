//! The document of `GET /bff/catalog`.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::gateway::contract::catalog::{Catalog, Durations};
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::selection::Selection;
use crate::gateway::contract::{catalog as contract, video, wire};

/// Shows each caller the models that it may buy from.
pub struct PriceList {
    catalog: Catalog,
    /// The chat model that the settings preselect.
    default_model: Option<String>,
    /// The entries that do not depend on the models.
    facts: Value,
    /// The document of callers without a rule of their own, and the ledger that it names.
    usual: (Selection, Option<Arc<str>>, Bytes),
}

impl PriceList {
    pub fn new(
        catalog: Catalog,
        default_model: Option<String>,
        facts: Value,
        (may_buy, ledger): (Selection, Option<Arc<str>>),
    ) -> Self {
        let mut list =
            Self { catalog, default_model, facts, usual: (may_buy, ledger, Bytes::new()) };
        list.usual.2 = list.render(&list.usual.0, list.usual.1.as_deref());
        list
    }

    /// `ledger` is the name of the ledger that knows the caller's keys.
    pub fn document(&self, may_buy: &Selection, ledger: Option<&str>) -> Bytes {
        let (usual, named, document) = &self.usual;
        if may_buy == usual && ledger == named.as_deref() {
            document.clone()
        } else {
            self.render(may_buy, ledger)
        }
    }

    fn render(&self, may_buy: &Selection, ledger: Option<&str>) -> Bytes {
        let catalog = may_buy.filter(&self.catalog);
        let mut list = self.facts.clone();
        list["chat"] = catalog.chat.iter().map(chat_row).collect();
        list["video"] = catalog.video.iter().map(video_row).collect();
        let chats = catalog.chat.iter().map(|model| (&*model.id, model.price()));
        let videos = catalog.video.iter().map(|model| (&*model.id, model.price));
        let named = self.default_model.as_deref().filter(|id| catalog.chat_model(id).is_some());
        list["defaults"] = json!({
            "chat_model": named.or_else(|| cheapest(chats, contract::DEFAULT_CHAT_MODEL)),
            "video_model": default_video_model(&catalog).or_else(|| cheapest(videos, "")),
            "duration": contract::DEFAULT_DURATION,
            "aspect_ratio": video::DEFAULT_ASPECT_RATIO,
        });
        list["aspect_ratios"] = json!(video::ASPECT_RATIOS);
        list["roles"] = json!(wire::ROLES);
        if let Some(ledger) = ledger {
            list["replay"]["ledger"] = json!(ledger);
        }
        list.to_string().into()
    }
}

/// Returns the cheapest model; of several, the `preferred` one, or the first.
fn cheapest<'a>(models: impl Iterator<Item = (&'a str, Usd)>, preferred: &str) -> Option<&'a str> {
    models.min_by_key(|(id, price)| (*price, *id != preferred)).map(|(id, _)| id)
}

fn default_video_model(catalog: &Catalog) -> Option<&'static str> {
    catalog.video_model(contract::DEFAULT_VIDEO_MODEL).map(|_| contract::DEFAULT_VIDEO_MODEL)
}

fn chat_row(model: &contract::ChatModel) -> Value {
    json!({
        "id": model.id,
        "tier": model.tier.name(),
        "price": model.price().to_string(),
        "price_micros": model.price().as_micros(),
        "best_for": model.best_for,
    })
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
        let list = read(&list(Catalog::published(), None, facts), &Selection::everything());
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
    fn default_models_are_the_named_or_the_cheapest_that_the_caller_may_buy() {
        let mut catalog = Catalog::published();
        let tier = contract::Tier::Added("0.001".parse().unwrap());
        catalog.chat.push(contract::ChatModel { id: "new".into(), tier, best_for: "" });
        let list = |named: Option<&str>| list(catalog.clone(), named, json!({}));
        for (named, may_buy, chat, video) in [
            (None, "chat video", json!("new"), json!("video-a-2")),
            (Some("iota-5"), "chat video", json!("iota-5"), json!("video-a-2")),
            (Some("iota-5"), "theta-32b video-d-3.1", json!("theta-32b"), json!("video-d-3.1")),
            (None, "theta-32b eta-5-mini", json!("eta-5-mini"), Value::Null),
            (None, "video-d-3.1 video-b video-c-2", Value::Null, json!("video-b")),
        ] {
            let shown = read(&list(named), &Selection::parse(may_buy));
            assert_eq!(shown["defaults"]["chat_model"], chat, "{may_buy}");
            assert_eq!(shown["defaults"]["video_model"], video, "{may_buy}");
        }
    }

    fn list(catalog: Catalog, named: Option<&str>, facts: Value) -> PriceList {
        PriceList::new(catalog, named.map(str::to_owned), facts, (Selection::everything(), None))
    }

    fn read(list: &PriceList, may_buy: &Selection) -> Value {
        serde_json::from_slice(&list.document(may_buy, None)).unwrap()
    }
}
