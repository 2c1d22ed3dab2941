//! The OpenAPI 3.1 document, generated from the tables of endpoints, models and problems.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, StatusCode};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Header, HttpMethod, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder,
    Paths, Required, SecurityRequirement, Server,
};

use super::endpoints::operation::{KEY_PROBLEMS, Operation, common_problems, content, parameter};
use super::endpoints::{self, Endpoint, schemas};
use super::{HandlerContext, bff};
use crate::contract::catalog::Catalog;
use crate::downstream::route::Class;
use crate::problem::Kind;
use crate::response::{self, HandlerResult};

const DESCRIPTION: &str = "A proxy that holds the key of a prepaid AI gateway and never buys twice. Amounts are US dollars: \
     decimal strings of six places, and integers of micro-dollars. Send one \
     Idempotency-Key per purchase, and the same key with each retry; without a key, requests are compared by payload. \
     Every problem says whether money moved (`charged`).";

fn idempotency_key() -> ParameterBuilder {
    parameter(
        "Idempotency-Key",
        ParameterIn::Header,
        "One key per purchase or change: a retry with the same key returns the same reply.",
        schemas::pattern("^[!#-~]+$").min_length(Some(1)).max_length(Some(255)),
    )
}

fn purchase_request_headers() -> [ParameterBuilder; 3] {
    let header = |name, about, schema| parameter(name, ParameterIn::Header, about, schema);
    [
        idempotency_key(),
        header(
            "Tollgate-Ledger",
            "The ledger's name, from the catalog or an earlier reply. If the ledger has changed since, nothing is \
             sent, and the response is a 412 `ledger_changed`.",
            schemas::string(),
        ),
        header(
            "Tollgate-Replay",
            "`only` returns the reply of an earlier purchase and buys nothing. Without one, the response is a 404 \
             `purchase_not_found`.",
            schemas::string(),
        ),
    ]
}

const PURCHASE_RESPONSE_HEADERS: &[(&str, &str)] = &[
    (
        "Tollgate-Cost",
        "What it cost, in dollars: 0.006000. A replay repeats it and is not charged again.",
    ),
    ("Idempotent-Replayed", "`true` on the reply of an earlier or running purchase."),
    (
        "Tollgate-Ignored",
        "Names of fields without effect, if any: those that the gateway does not support, and an `aspect_ratio` (or \
         `size`) that the model ignores.",
    ),
    ("Tollgate-Ledger", "The name of the ledger."),
    ("X-Request-Id", "The request's id in the logs."),
];

pub(super) async fn serve(cx: HandlerContext) -> HandlerResult {
    let response = bff::json_document(&cx.handlers.openapi);
    Ok(response::with_headers(response, response::CROSS_ORIGIN_HEADERS))
}

pub fn document(catalog: &Catalog, prefix: &str) -> Bytes {
    let mut document = build(catalog);
    if !prefix.is_empty() {
        document.servers = Some(vec![Server::new(prefix)]);
    }
    // Serializing plain data cannot fail.
    document.to_pretty_json().unwrap_or_default().into()
}

fn build(catalog: &Catalog) -> OpenApi {
    let mut paths = Paths::new();
    for endpoint in endpoints::all() {
        let method = match endpoint.route.method {
            Method::POST => HttpMethod::Post,
            Method::PATCH => HttpMethod::Patch,
            Method::DELETE => HttpMethod::Delete,
            _ => HttpMethod::Get,
        };
        for (operation, path) in (endpoint.operations)().into_iter().zip(endpoint.openapi_paths()) {
            let built = build_operation(endpoint, operation, &path);
            paths.add_path_operation(path, vec![method.clone()], built);
        }
    }
    let info = InfoBuilder::new()
        .title("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .build();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas::all(catalog))
        .security_scheme("token", token);
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        // Open mode needs no token.
        .security(Some([
            SecurityRequirement::default(),
            SecurityRequirement::new("token", [] as [&str; 0]),
        ]))
        .build()
}

fn build_operation(
    endpoint: &Endpoint,
    operation: Operation,
    path: &str,
) -> utoipa::openapi::path::Operation {
    let problems = problems_by_status(endpoint, &operation);
    let (mut builder, is_paid) = (operation.builder, endpoint.route.class == Class::Paid);
    for name in path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        let variable = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
        let variable = variable.required(Required::True).schema(Some(schemas::non_empty()));
        builder = builder.parameter(variable);
    }
    if is_paid {
        builder = purchase_request_headers().into_iter().fold(builder, OperationBuilder::parameter);
    }
    if endpoint.is_change() {
        builder = builder.parameter(idempotency_key());
    }
    for (status, mut response) in operation.responses {
        for (name, about) in PURCHASE_RESPONSE_HEADERS.iter().filter(|_| is_paid) {
            response = response.header(*name, header(about, schemas::non_empty()));
        }
        builder = builder.response(status.to_string(), response);
    }
    for (status, kinds) in problems {
        builder = builder.response(status.to_string(), problem_response(endpoint, &kinds));
    }
    builder.build()
}

fn header(description: &str, schema: ObjectBuilder) -> Header {
    HeaderBuilder::new().description(Some(description)).schema(Some(schema)).build()
}

fn problems_by_status(
    endpoint: &Endpoint,
    operation: &Operation,
) -> BTreeMap<u16, Vec<&'static Kind>> {
    let mut by_status = BTreeMap::<_, Vec<_>>::new();
    let own = operation.problems.iter().copied().flatten().copied();
    let of_keys: &[_] = if endpoint.is_change() { KEY_PROBLEMS } else { &[] };
    for kind in own.chain(common_problems(&endpoint.route)).chain(of_keys.iter().copied()) {
        let kinds = by_status.entry(kind.status.as_u16()).or_default();
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    by_status
}

fn problem_response(endpoint: &Endpoint, kinds: &[&Kind]) -> ResponseBuilder {
    let lines: Vec<_> =
        kinds.iter().map(|kind| format!("`{}`: {}.", kind.code, kind.title)).collect();
    let (media_type, schema) = if endpoint.route.path.starts_with("/v1/") {
        ("application/json", "OpenAiError")
    } else {
        ("application/problem+json", "Problem")
    };
    let response = ResponseBuilder::new().description(lines.join(" "));
    let response = response.content(media_type, content(schema));
    let returns = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    if kinds.iter().any(|kind| returns.contains(&kind.status)) {
        let seconds = schemas::integer().minimum(Some(1));
        return response.header("Retry-After", header("Whole seconds, at least 1.", seconds));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_described_and_nothing_else_is() {
        let json = build(&Catalog::published());
        let described: usize = json
            .paths
            .paths
            .values()
            .map(|item| {
                [&item.get, &item.post, &item.patch, &item.delete].into_iter().flatten().count()
            })
            .sum();
        let rows = endpoints::all().flat_map(Endpoint::openapi_paths).count();
        assert_eq!(described, rows, "two rows have one method and path");
        for endpoint in endpoints::all() {
            assert!(!(endpoint.operations)().is_empty(), "{:?}", endpoint.route);
        }
    }

    #[test]
    fn openai_chat_has_json_and_event_stream_responses() {
        let document = document(&Catalog::published(), "");
        let json: serde_json::Value = serde_json::from_slice(&document).unwrap();
        let chat = &json["paths"]["/v1/chat/completions"]["post"];
        let content = chat["responses"]["200"]["content"].as_object().unwrap();
        let kinds: Vec<_> = content.keys().collect();
        assert_eq!(kinds, ["application/json", "text/event-stream"]);
        let stream = &json["components"]["schemas"]["OpenAiChatRequest"]["properties"]["stream"];
        assert_eq!(stream["type"], serde_json::json!(["boolean", "null"]));
    }

    #[test]
    fn all_schema_references_resolve() {
        let document = document(&Catalog::published(), "");
        let text = std::str::from_utf8(&document).unwrap();
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(json["openapi"], "3.1.0");
        let schemas = json["components"]["schemas"].as_object().unwrap();
        let named =
            text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next());
        for name in named {
            assert!(schemas.contains_key(name.unwrap()), "{name:?}");
        }
        let videos = json["components"]["schemas"]["VideoRequest"]["oneOf"].as_array().unwrap();
        assert_eq!(videos.len(), Catalog::published().video.len());
    }
}
