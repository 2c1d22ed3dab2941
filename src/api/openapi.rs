//! The OpenAPI 3.1 document: `docs/openapi.json` with the endpoints, models and path prefix of the settings.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::{HandlerContext, bff};
use crate::gate::response::{self, HandlerResult};
use crate::gate::route::RouteTable;
use crate::gateway::contract::catalog::{
    AspectRatioSupport, Catalog, DEFAULT_VIDEO_MODEL, Durations, ImageInput, OVERALL_DURATION,
    VideoModel,
};

const DOCUMENT: &str = include_str!("../../docs/openapi.json");

/// The parts of the document that depend on the settings. The others stay text.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    #[serde(borrow)]
    openapi: &'a RawValue,
    info: Info<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    servers: Vec<Value>,
    security: &'a RawValue,
    /// By path and method.
    paths: BTreeMap<&'a str, BTreeMap<&'a str, &'a RawValue>>,
    components: Components<'a>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Info<'a> {
    title: &'a str,
    #[serde(borrow)]
    description: &'a RawValue,
    version: &'a str,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Components<'a> {
    #[serde(borrow)]
    security_schemes: &'a RawValue,
    parameters: &'a RawValue,
    headers: &'a RawValue,
    responses: &'a RawValue,
    schemas: BTreeMap<&'a str, Box<RawValue>>,
}

pub(super) async fn serve(cx: HandlerContext) -> HandlerResult {
    let response = bff::json_document(&cx.handlers.openapi);
    Ok(response::with_headers(response, response::CROSS_ORIGIN_HEADERS))
}

/// Returns the document of these endpoints and models.
///
/// # Errors
/// None but of a broken `docs/openapi.json`, which tests exclude.
pub fn document(routes: &RouteTable, catalog: &Catalog, prefix: &str) -> io::Result<Bytes> {
    let mut document: Document<'_> = serde_json::from_str(DOCUMENT)?;
    document.info.version = env!("CARGO_PKG_VERSION");
    document.servers.extend((!prefix.is_empty()).then(|| json!({ "url": prefix })));
    document.paths.retain(|path, operations| {
        operations.retain(|method, _| is_served(routes, method, path));
        !operations.is_empty()
    });
    let ids = |ids: Vec<&str>| json!({ "type": "string", "enum": ids });
    let videos: Vec<_> = catalog.video.iter().map(video_request).collect();
    for (name, schema) in [
        ("ChatModel", ids(catalog.chat.iter().map(|model| &*model.id).collect())),
        ("VideoModel", ids(catalog.video.iter().map(|model| &*model.id).collect())),
        // One per model, because durations and pictures differ.
        ("VideoRequest", json!({ "oneOf": videos })),
    ] {
        document.components.schemas.insert(name, to_raw_value(&schema)?);
    }
    Ok(serde_json::to_vec_pretty(&document)?.into())
}

/// Returns whether an endpoint other than the page answers this. A variable in braces counts as a segment.
fn is_served(routes: &RouteTable, method: &str, path: &str) -> bool {
    let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap_or_default();
    routes.find(&method, path).is_ok_and(|route| route != routes.page)
}

fn video_request(model: &VideoModel) -> Value {
    let between = |(min, max)| json!({ "type": "integer", "minimum": min, "maximum": max });
    let mut duration = match model.durations {
        Durations::OneOf(seconds) => json!({ "type": "integer", "enum": seconds }),
        Durations::Between(min, max) => between((min, max)),
        Durations::Unstated => between(OVERALL_DURATION),
    };
    duration["description"] = json!("Seconds; 8 by default.");
    let mut ratio = schema("AspectRatio");
    if model.aspect_ratio == AspectRatioSupport::Ignored {
        ratio["description"] = json!("This model ignores it.");
    }
    let needs_model = model.id != DEFAULT_VIDEO_MODEL;
    let needs_image = model.image == ImageInput::Required;
    let required = [("prompt", true), ("model", needs_model), ("image_url", needs_image)];
    let required = required.into_iter().filter_map(|(name, is_needed)| is_needed.then_some(name));
    json!({
        "title": model.id,
        "type": "object",
        "required": required.collect::<Vec<_>>(),
        "properties": {
            "prompt": schema("VideoPrompt"),
            "model": { "type": "string", "enum": [model.id] },
            "duration": duration,
            "aspect_ratio": ratio,
            "image_url": schema("ImageUrl"),
        },
        "additionalProperties": false,
    })
}

fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}
