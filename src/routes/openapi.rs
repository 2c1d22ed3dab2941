//! `GET /bff/openapi.json` and `tollgate openapi`: the API as an OpenAPI 3.1 document, made from the rows
//! that the gate itself reads: routes, models, problems.

mod dialect;
mod operations;
mod people;
mod replies;
mod schemas;

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, OpenApi, OpenApiBuilder, Paths,
    Ref, Required, SecurityRequirement,
};

use crate::answer::{self, Answer};
use crate::contract::catalog::Catalog;
use crate::problem::Kind;
use operations::{Operation, Reply};

pub use operations::described;

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

const ABOUT: &str = "A proxy that holds the key of a prepaid AI gateway and never buys twice. Amounts are US dollars: \
     decimal strings of six places, and integers of micro-dollars. A request without an Idempotency-Key is told from \
     others by its payload alone; send one key per purchase and the same key with every repeat. Every problem says \
     whether money moved (`charged`).";

/// The document for these models.
pub fn document(catalog: &Catalog) -> Bytes {
    // Plain data: this cannot fail.
    whole(catalog).to_pretty_json().unwrap_or_default().into()
}

/// It can be read from any page: it holds nothing that is not public.
pub(super) fn answer(document: &Bytes) -> Answer {
    let mut answer = answer::bytes_of(StatusCode::OK, "application/json", document.clone());
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("cross-origin"));
    answer
}

fn whole(catalog: &Catalog) -> OpenApi {
    let mut paths = Paths::new();
    for operation in operations::all() {
        paths.add_path_operation(operation.path, vec![method(operation)], built(operation));
    }
    let info = InfoBuilder::new()
        .title("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .build();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = schemas::all(catalog)
        .into_iter()
        .fold(ComponentsBuilder::new(), |components, (name, schema)| {
            components.schema(name, schema)
        })
        .security_scheme("token", token);
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        // Open access asks for none.
        .security(Some([
            SecurityRequirement::default(),
            SecurityRequirement::new("token", [] as [&str; 0]),
        ]))
        .build()
}

fn method(operation: &Operation) -> HttpMethod {
    if operation.method == Method::POST { HttpMethod::Post } else { HttpMethod::Get }
}

fn built(operation: &Operation) -> utoipa::openapi::path::Operation {
    let mut builder = OperationBuilder::new()
        .operation_id(Some(operation.id))
        .summary(Some(operation.summary))
        .tag(operation.tag);
    if !operation.about.is_empty() {
        builder = builder.description(Some(operation.about));
    }
    for name in variables(operation.path) {
        builder = builder.parameter(
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .schema(Some(schemas::word())),
        );
    }
    for query in operation.query {
        builder = builder.parameter(
            ParameterBuilder::new()
                .name(query.name)
                .parameter_in(ParameterIn::Query)
                .required(if query.is_required { Required::True } else { Required::False })
                .description(Some(query.about))
                .schema(Some((query.schema)())),
        );
    }
    if operation.is_paid {
        builder = builder.parameter(
            ParameterBuilder::new()
                .name("Idempotency-Key")
                .parameter_in(ParameterIn::Header)
                .required(Required::False)
                .description(Some(
                    "Names the purchase: the same key is bought once, and answered alike.",
                ))
                .schema(Some(schemas::key())),
        );
        builder = builder.parameter(
            ParameterBuilder::new()
                .name("Tollgate-Ledger")
                .parameter_in(ParameterIn::Header)
                .required(Required::False)
                .description(Some(
                    "The ledger that the purchase relies on, as an earlier answer or the catalog named it. Another one is a \
                     412 `ledger_changed`, and nothing is sent.",
                ))
                .schema(Some(schemas::ledger())),
        );
    }
    if !operation.takes.is_empty() {
        let body = operation.takes.iter().fold(
            RequestBodyBuilder::new().required(Some(Required::True)),
            |body, (media_type, name)| body.content(*media_type, content(name)),
        );
        builder = builder.request_body(Some(body.build()));
    }
    for reply in operation.replies {
        builder = builder.response(reply.status.as_str(), success(reply, operation.is_paid));
    }
    for (status, kinds) in by_status(operation) {
        builder = builder.response(status.to_string(), refusal(operation, &kinds));
    }
    builder.build()
}

/// The names between braces.
fn variables(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split('}').next())
}

fn by_status(operation: &Operation) -> BTreeMap<u16, Vec<&'static Kind>> {
    let mut by_status = BTreeMap::<_, Vec<_>>::new();
    let callers = if operation.is_for_callers { operations::OF_CALLERS } else { &[] };
    let sets = [operation.problems, operations::ANY, callers].into_iter().flatten();
    for kind in sets.copied() {
        let kinds = by_status.entry(kind.status.as_u16()).or_default();
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    by_status
}

fn content(schema: &str) -> utoipa::openapi::Content {
    ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build()
}

fn success(reply: &Reply, is_paid: bool) -> utoipa::openapi::Response {
    let mut builder = ResponseBuilder::new().description(reply.about);
    for (media_type, schema) in reply.bodies {
        builder = builder.content(*media_type, content(schema));
    }
    if is_paid {
        for (name, about) in replies::OF_PURCHASES {
            let header =
                HeaderBuilder::new().description(Some(*about)).schema(Some(schemas::word()));
            builder = builder.header(*name, header.build());
        }
    }
    builder.build()
}

fn refusal(operation: &Operation, kinds: &[&Kind]) -> utoipa::openapi::Response {
    let words: Vec<_> =
        kinds.iter().map(|kind| format!("`{}`: {}.", kind.code, kind.title)).collect();
    let mut builder = ResponseBuilder::new().description(words.join(" "));
    let (media_type, schema) = operation.refuses.shape();
    builder = builder.content(media_type, content(schema));
    if kinds.iter().any(|kind| replies::tells_when_to_return(kind)) {
        let about = Some("Whole seconds, at least 1.");
        let header = HeaderBuilder::new().description(about).schema(Some(schemas::seconds()));
        builder = builder.header("Retry-After", header.build());
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::downstream::route::{Needs, ROUTES, find};

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let mut reached = HashSet::new();
        for (method, path) in described() {
            let sample = path.replace(['{', '}'], "");
            let route = find(method, &sample, &[]).unwrap_or_else(|_| panic!("{method} {path}"));
            assert!(ROUTES.contains(route), "{method} {path} is the page's");
            reached.insert((method.to_string(), route.path.template()));
        }
        for route in ROUTES {
            let described = reached.contains(&(route.method.to_string(), route.path.template()));
            assert!(described, "{route:?}");
        }
    }

    #[test]
    fn who_is_let_in_without_credentials_is_what_the_document_says() {
        for operation in operations::all() {
            let sample = operation.path.replace(['{', '}'], "");
            let route = find(&operation.method, &sample, &[]).unwrap();
            assert_eq!(
                route.needs == Needs::Caller,
                operation.is_for_callers,
                "{}",
                operation.path
            );
        }
    }

    #[test]
    fn a_chat_in_the_dialect_is_answered_whole_or_as_events() {
        let document = document(&Catalog::published());
        let json: serde_json::Value = serde_json::from_slice(&document).unwrap();
        let chat = &json["paths"]["/v1/chat/completions"]["post"];
        let content = chat["responses"]["200"]["content"].as_object().unwrap();
        let kinds: Vec<_> = content.keys().collect();
        assert_eq!(kinds, ["application/json", "text/event-stream"]);
        let asked = &json["components"]["schemas"]["OpenAiChatRequest"]["properties"]["stream"];
        assert_eq!(asked["type"], serde_json::json!(["boolean", "null"]));
    }

    #[test]
    fn whatever_is_named_in_the_document_is_in_it() {
        let document = document(&Catalog::published());
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
