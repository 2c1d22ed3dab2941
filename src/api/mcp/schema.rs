//! The common parts of the tools' input schemas.
//!
//! They are flat objects, because many clients reject alternatives. Where models differ, a schema
//! allows what any model offers, and validation checks the rest.

use serde_json::{Value, json};

const QUOTE: &str = "A quote for this very order. The same quote never buys twice: after a lost \
    answer, call again with it.";

pub(super) fn nothing() -> Value {
    object(json!({}), &[])
}

pub(super) fn with_quote(mut order: Value, when: &str) -> Value {
    let description = format!("{QUOTE} {when}");
    order["properties"]["quote"] = json!({ "type": "string", "description": description });
    order
}

pub(super) fn text() -> Value {
    json!({ "type": "string", "minLength": 1, "pattern": "\\S" })
}

pub(super) fn object(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}
