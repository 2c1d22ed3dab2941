//! The tool `create_video`.

use serde_json::{Value, json};

use super::{Effect, Tool};
use crate::api::mcp::{schema, sell};
use crate::api::validate;
use crate::gateway::contract::catalog::{
    Catalog, Durations, ImageInput, OVERALL_DURATION, Service, VideoModel,
};
use crate::gateway::contract::video::{ASPECT_RATIOS, MAX_PROMPT};

pub(super) const TOOL: Tool = Tool {
    name: "create_video",
    title: "Buy a video",
    about: "Orders one video, which is charged at once and cannot be cancelled. Without a quote, \
        it buys nothing and returns the price and a quote: call it again with the same arguments \
        and that quote. Follow the video with get_video.",
    service: Some(Service::Video),
    effect: Effect::Buys { is_destructive: true },
    schema: |rules, _| schema::with_quote(order(&rules.catalog), "Without it, nothing is bought."),
    run: |call| {
        Box::pin(sell::buy(call, |order, rules| Ok(validate::video(order, &rules.catalog)?.order)))
    },
};

/// Returns the schema of an order.
pub(super) fn order(catalog: &Catalog) -> Value {
    let mut prompt = schema::text();
    prompt["maxLength"] = json!(MAX_PROMPT);
    let models: Vec<_> = catalog.video.iter().map(|model| &model.id).collect();
    let (low, high) = OVERALL_DURATION;
    let is_offered =
        |seconds: &u32| catalog.video.iter().any(|model| model.durations.offers(*seconds));
    let seconds: Vec<_> = (low..=high).filter(is_offered).collect();
    let needs_picture = |model: &&VideoModel| model.image == ImageInput::Required;
    let needing: Vec<_> = catalog.video.iter().filter(needs_picture).map(|row| &*row.id).collect();
    let properties = json!({
        "prompt": prompt,
        "model": { "type": "string", "enum": models },
        "duration": {
            "type": "integer",
            "enum": seconds,
            "description": format!("Seconds; 8 by default. {}", durations(catalog)),
        },
        "aspect_ratio": { "type": "string", "enum": ASPECT_RATIOS },
        "image_url": {
            "type": "string",
            "pattern": "^https?://",
            "maxLength": 2_048,
            "description": format!(
                "A public address of a starting picture. Required by: {}.",
                needing.join(", ")
            ),
        },
    });
    schema::object(properties, &["prompt"])
}

fn durations(catalog: &Catalog) -> String {
    let stated = catalog.video.iter().filter(|model| model.durations != Durations::Unstated);
    stated.map(|model| format!("{}: {}. ", model.id, model.durations)).collect::<String>()
}
