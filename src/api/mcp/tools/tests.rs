//! Walks each schema: what it allows passes validation, and what it forbids does not.

use std::sync::Arc;

use super::*;
use crate::api::validate;
use crate::gate::problem::Problem;
use crate::gateway::contract::catalog::Catalog;
use crate::gateway::contract::video::MAX_PROMPT;

fn rules() -> ChatRules {
    let catalog = Arc::new(Catalog::published());
    ChatRules { catalog, fields: vec!["temperature".to_owned()] }
}

/// Returns whether a schema of this module allows a value.
fn allows(schema: &Value, value: &Value) -> bool {
    let is_type = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some(other) => panic!("unknown type {other}"),
    };
    let is_listed = schema["enum"].as_array().is_none_or(|listed| listed.contains(value));
    let text = value.as_str();
    let length = text.map_or(0, |text| text.chars().count() as u64);
    let is_long_enough = text.is_none() || schema["minLength"].as_u64().is_none_or(|n| length >= n);
    let is_short_enough =
        text.is_none() || schema["maxLength"].as_u64().is_none_or(|n| length <= n);
    let matches = match (schema["pattern"].as_str(), text) {
        (Some("\\S"), Some(text)) => !text.trim().is_empty(),
        (Some("^https?://"), Some(text)) => {
            text.starts_with("http://") || text.starts_with("https://")
        }
        (None, _) | (_, None) => true,
        (Some(other), _) => panic!("unknown pattern {other}"),
    };
    let properties = schema["properties"].as_object();
    let object = value.as_object().filter(|_| schema["type"] == "object");
    let members_fit = object.is_none_or(|members| {
        let required = schema["required"].as_array().expect("a list of names");
        let has = |name: &Value| members.contains_key(name.as_str().expect("a name"));
        let fits = |(name, value): (&String, &Value)| {
            properties.and_then(|own| own.get(name)).is_some_and(|own| allows(own, value))
        };
        assert_eq!(schema["additionalProperties"], false);
        required.iter().all(has) && members.iter().all(fits)
    });
    let array = value.as_array().filter(|_| schema["type"] == "array");
    let elements_fit = array.is_none_or(|elements| {
        let least = schema["minItems"].as_u64().unwrap_or_default();
        elements.len() as u64 >= least && elements.iter().all(|one| allows(&schema["items"], one))
    });
    is_type
        && is_listed
        && is_long_enough
        && is_short_enough
        && matches
        && members_fit
        && elements_fit
}

/// Values around every bound of the schemas.
fn values(field: &str) -> Vec<Value> {
    let catalog = Catalog::published();
    let mut values = vec![json!(null), json!(7), json!(true), json!([]), json!({}), json!("x")];
    values.extend([json!(""), json!(" \n"), json!("Video-A-2"), json!(8.5), json!("8")]);
    match field {
        "prompt" => {
            values.extend([MAX_PROMPT, MAX_PROMPT + 1].map(|length| json!("é".repeat(length))));
        }
        "duration" => values.extend((0..=20).map(|seconds| json!(seconds))),
        "model" => {
            values.extend(catalog.video.iter().map(|model| json!(model.id)));
            values.extend(catalog.chat.iter().map(|model| json!(model.id)));
        }
        "aspect_ratio" => values.extend(["16:9", "9:16", "1:1"].map(|ratio| json!(ratio))),
        "image_url" => {
            let long = format!("https://example.com/{}", "a".repeat(2_100));
            values.extend([
                json!("https://example.com/a.png"),
                json!("ftp://example.com"),
                json!(long),
            ]);
        }
        "messages" => {
            let message =
                |role: Value, content: Value| json!([{ "role": role, "content": content }]);
            values.extend(
                ["user", "assistant", "system", "tool"].map(|it| message(json!(it), json!("hi"))),
            );
            values.extend(["", " ", "hi"].map(|it| message(json!("user"), json!(it))));
            values.extend([message(json!(null), json!("hi")), message(json!("user"), json!(7))]);
            values.extend([
                json!([{}]),
                json!([7]),
                json!([{ "role": "user", "content": "a", "x": 1 }]),
            ]);
        }
        _ => {}
    }
    values
}

/// Returns the code of the first fault, for a payload that is valid but for one field.
fn walk(
    schema: &Value,
    valid: &[Value],
    fields: &[&str],
    check: impl Fn(&Value) -> Result<(), Problem>,
) {
    for payload in valid {
        assert!(allows(schema, payload) && check(payload).is_ok(), "{payload}");
    }
    let own: Vec<_> = schema["properties"].as_object().unwrap().keys().cloned().collect();
    for field in &own {
        assert!(fields.contains(&field.as_str()), "{field} is new: add its values");
    }
    for field in fields.iter().chain(&["unknown"]) {
        // A removed field.
        for payload in valid {
            let mut without = payload.clone();
            without.as_object_mut().unwrap().remove(*field);
            assert_eq!(allows(schema, &without), check(&without).is_ok(), "{without}");
        }
        for value in values(field) {
            let changed = valid.iter().map(|payload| {
                let mut changed = payload.clone();
                changed[*field] = value.clone();
                changed
            });
            // Models differ: a schema allows what validation allows for any of them.
            let outcomes: Vec<_> =
                changed.map(|one| (allows(schema, &one), check(&one).is_ok())).collect();
            let (allowed, passes) = (
                outcomes.iter().any(|(allowed, _)| *allowed),
                outcomes.iter().any(|(_, passes)| *passes),
            );
            assert_eq!(allowed, passes, "{field} = {value}");
        }
    }
}

#[test]
fn chat_schema_allows_what_validation_allows() {
    let rules = rules();
    let valid = [json!({ "model": "eta-5", "messages": [{ "role": "user", "content": "hi" }] })];
    let check = |payload: &Value| validate::chat(payload.to_string().as_bytes(), &rules).map(drop);
    walk(&chat::order(&rules), &valid, &["model", "messages", "temperature"], check);
}

#[test]
fn video_schema_allows_what_validation_allows_for_any_model() {
    let rules = rules();
    let valid: Vec<_> = rules
        .catalog
        .video
        .iter()
        .map(|model| {
            let url = "https://example.com/a.png";
            json!({ "prompt": "a tide", "model": model.id, "duration": 8, "image_url": url })
        })
        .collect();
    // A flat schema cannot say that one model needs a picture: its description does.
    let is_described =
        |problem: &Problem| problem.errors().iter().all(|error| error.code == "image_required");
    let check = |payload: &Value| {
        let checked = validate::video(payload.to_string().as_bytes(), &rules.catalog);
        let checked = checked.map(drop);
        checked.or_else(|problem| if is_described(&problem) { Ok(()) } else { Err(problem) })
    };
    let fields = ["prompt", "model", "duration", "aspect_ratio", "image_url"];
    walk(&create_video::order(&rules.catalog), &valid, &fields, check);
}

#[test]
fn tools_that_buy_take_the_order_and_a_quote() {
    let rules = rules();
    let all = [Service::Chat, Service::Video];
    let orders = [chat::order(&rules), create_video::order(&rules.catalog)];
    for (tool, order) in [chat::TOOL, create_video::TOOL].iter().zip(&orders) {
        let mut bare = (tool.schema)(&rules, &all);
        assert!(bare["properties"].as_object_mut().unwrap().remove("quote").is_some());
        assert_eq!(bare, *order);
    }
    let both = (quote::TOOL.schema)(&rules, &all);
    assert_eq!(
        [&both["properties"]["chat"], &both["properties"]["video"]],
        [&orders[0], &orders[1]]
    );
}
