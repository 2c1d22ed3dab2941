//! The input schemas of the tools, from the same tables as validation.
//!
//! They are flat objects, because many clients reject alternatives. Where models differ, a schema
//! allows what any model offers, and validation checks the rest.

use serde_json::{Value, json};

use crate::api::validate::ChatRules;
use crate::gateway::contract::catalog::{
    Catalog, Durations, ImageInput, OVERALL_DURATION, VideoModel,
};
use crate::gateway::contract::video::{ASPECT_RATIOS, MAX_PROMPT};
use crate::gateway::contract::wire::ROLES;

const QUOTE: &str = "A quote for this very order. The same quote never buys twice: after a lost \
    answer, call again with it.";

pub(super) fn nothing(_: &ChatRules) -> Value {
    object(json!({}), &[])
}

pub(super) fn chat(rules: &ChatRules) -> Value {
    with_quote(chat_order(rules), "Required from the price that the description names on.")
}

pub(super) fn video(rules: &ChatRules) -> Value {
    with_quote(video_order(&rules.catalog), "Without it, nothing is bought.")
}

pub(super) fn quote(rules: &ChatRules, sells: impl Fn(&str) -> bool) -> Value {
    let again = "Set it only if a further copy is wanted of what was bought already.";
    let mut properties = json!({ "again": { "type": "boolean", "description": again } });
    for (name, schema) in [("chat", chat_order(rules)), ("video", video_order(&rules.catalog))] {
        if sells(name) {
            properties[name] = schema;
        }
    }
    object(properties, &[])
}

pub(super) fn job(_: &ChatRules) -> Value {
    let id = json!({
        "type": "string",
        "pattern": "^[A-Za-z0-9_-]{1,128}$",
        "description": "The request_id of create_video's answer.",
    });
    object(json!({ "request_id": id }), &["request_id"])
}

fn chat_order(rules: &ChatRules) -> Value {
    let models: Vec<_> = rules.catalog.chat.iter().map(|model| &model.id).collect();
    let role = json!({ "type": "string", "enum": ROLES });
    let message = object(json!({ "role": role, "content": text() }), &["role", "content"]);
    let mut properties = json!({
        "model": { "type": "string", "enum": models },
        "messages": { "type": "array", "minItems": 1, "items": message },
    });
    for field in &rules.fields {
        properties[field] = json!({ "description": "Passed on as it is." });
    }
    object(properties, &["model", "messages"])
}

fn video_order(catalog: &Catalog) -> Value {
    let mut prompt = text();
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
    object(properties, &["prompt"])
}

fn durations(catalog: &Catalog) -> String {
    let stated = catalog.video.iter().filter(|model| model.durations != Durations::Unstated);
    stated.map(|model| format!("{}: {}. ", model.id, model.durations)).collect::<String>()
}

fn with_quote(mut order: Value, when: &str) -> Value {
    let description = format!("{QUOTE} {when}");
    order["properties"]["quote"] = json!({ "type": "string", "description": description });
    order
}

fn text() -> Value {
    json!({ "type": "string", "minLength": 1, "pattern": "\\S" })
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests;
