//! `docs/openapi.json` against the tables of endpoints, problems and models.

use std::collections::BTreeSet;
use std::fs;

use http::Method;
use serde_json::{Value, json};
use tollgate::api::endpoints::{Served, all, route_table};
use tollgate::api::openapi::document;
use tollgate::gate::problem::ALL;
use tollgate::gate::route::{Auth, BodyKind, Class, Route};
use tollgate::gateway::contract::catalog::Catalog;
use tollgate::gateway::contract::member::Role;
use tollgate::gateway::contract::terms::TERMS;
use tollgate::gateway::contract::video::{ASPECT_RATIOS, MAX_PROMPT};
use tollgate::gateway::contract::wire::ROLES;

const EVERYTHING: Served = Served { mcp: true, login_metadata: true, oidc: true, own_tokens: true };

fn text() -> String {
    fs::read_to_string("docs/openapi.json").unwrap()
}

fn checked_in() -> Value {
    serde_json::from_str(&text()).unwrap()
}

fn filled(served: Served, catalog: &Catalog, prefix: &str) -> Value {
    let document = document(&route_table([], served), catalog, prefix).unwrap();
    serde_json::from_slice(&document).unwrap()
}

/// Calls `see` with each operation, its path, and its row in the table of endpoints.
fn operations(document: &Value, mut see: impl FnMut(&Value, &str, &'static Route)) {
    let routes = route_table([], EVERYTHING);
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
            see(operation, path, routes.find(&method, path).unwrap_or(routes.page));
        }
    }
}

/// What is filled in at start is in the file as with all endpoints and the published models.
#[test]
fn file_is_the_document_of_all_endpoints_and_models() {
    let (file, filled) = (checked_in(), filled(EVERYTHING, &Catalog::published(), ""));
    for part in ["/info", "/paths", "/components/schemas", ""] {
        assert_eq!(file.pointer(part), filled.pointer(part), "{part}");
    }
    let (mut ids, mut count) = (BTreeSet::new(), 0);
    operations(&file, |operation, _, _| {
        count += 1;
        ids.insert(operation["operationId"].as_str().unwrap().to_owned());
    });
    assert_eq!([count, ids.len()], [text().matches("\"operationId\"").count(); 2], "duplicates");
}

#[test]
fn every_endpoint_has_an_operation_and_every_operation_an_endpoint() {
    let (file, mut found) = (checked_in(), Vec::new());
    operations(&file, |_, path, route| {
        assert!(all().any(|endpoint| endpoint.route == *route), "no endpoint answers {path}");
        found.push(route);
    });
    for endpoint in all() {
        assert!(found.contains(&&endpoint.route), "{:?} has no operation", endpoint.route);
    }
}

/// Returns the statuses of the refusals that may follow from the properties of a route.
fn implied_statuses(route: &Route) -> BTreeSet<u16> {
    let mut statuses = BTreeSet::from([400, 405, 421, 429, 500]);
    if matches!(route.auth, Auth::Caller | Auth::Admin) {
        statuses.extend([401, 403, 503]);
    }
    if route.body != BodyKind::Nothing {
        statuses.extend([403, 408, 413, 415, 422, 503]);
    }
    if route.class == Class::Paid {
        statuses.extend([402, 404, 409, 412, 422, 424, 502, 503]);
    }
    if is_change(route) {
        statuses.insert(422);
    }
    statuses
}

fn is_change(route: &Route) -> bool {
    all().any(|endpoint| endpoint.route == *route && endpoint.is_change())
}

#[test]
fn operations_have_the_statuses_bodies_and_headers_of_their_routes() {
    operations(&checked_in(), |operation, path, route| {
        let responses = operation["responses"].as_object().unwrap();
        let missing = implied_statuses(route)
            .into_iter()
            .find(|status| !responses.contains_key(&status.to_string()));
        assert_eq!(missing, None, "{path}");
        let has_body = operation.get("requestBody").is_some();
        assert_eq!(has_body, route.body != BodyKind::Nothing, "{path}");
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        let has = |name: &str| {
            parameters.contains(&json!({ "$ref": format!("#/components/parameters/{name}") }))
        };
        let is_paid = route.class == Class::Paid;
        assert_eq!(has("IdempotencyKey"), is_paid || is_change(route), "{path}");
        assert_eq!([has("Ledger"), has("Replay")], [is_paid; 2], "{path}");
        let variables = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap());
        for name in variables {
            let is_it = |one: &Value| one["name"] == name && one["in"] == "path";
            assert!(parameters.iter().any(is_it), "{path}: {name}");
        }
        for (status, response) in responses {
            let prefix = if path.starts_with("/v1/") { "OpenAi" } else { "" };
            let shared = format!("#/components/responses/{prefix}{status}");
            assert!(status < &"400".to_owned() || response["$ref"] == shared, "{path} {status}");
        }
    });
}

#[test]
fn responses_name_the_problems_of_their_status() {
    let file = checked_in();
    for (name, response) in file["components"]["responses"].as_object().unwrap() {
        let status: u16 = name.trim_start_matches("OpenAi").parse().unwrap();
        let kinds = ALL.iter().filter(|kind| kind.status == status);
        let texts: Vec<_> = kinds.map(|kind| format!("`{}`: {}.", kind.code, kind.title)).collect();
        assert_eq!(response["description"], texts.join(" "), "{name}");
        let waits = response["headers"].get("Retry-After").is_some();
        assert_eq!(waits, [429, 503].contains(&status), "{name}");
    }
}

#[test]
fn schemas_list_the_values_of_the_code() {
    let file = checked_in();
    let schema = |path: &str| file["components"]["schemas"].pointer(path).unwrap();
    let codes: Vec<_> = ALL.iter().map(|kind| kind.code).collect();
    assert_eq!(*schema("/ProblemCode/enum"), json!(codes));
    assert_eq!(*schema("/AspectRatio/enum"), json!(ASPECT_RATIOS));
    assert_eq!(*schema("/VideoPrompt/maxLength"), json!(MAX_PROMPT));
    let roles = "properties/messages/items/properties/role/enum";
    assert_eq!(*schema(&format!("/ChatRequest/{roles}")), json!(ROLES));
    let openai: Vec<_> = ROLES.iter().copied().chain(["developer"]).collect();
    assert_eq!(*schema(&format!("/OpenAiChatRequest/{roles}")), json!(openai));
    let roles = Role::ALL.map(Role::name);
    for (of, more) in [("NewMember", Some("name")), ("MemberTerms", None)] {
        assert_eq!(*schema(&format!("/{of}/properties/role/enum")), json!(roles));
        let properties = schema(&format!("/{of}/properties")).as_object().unwrap();
        let terms: BTreeSet<_> = TERMS.iter().map(|term| term.name).chain(more).collect();
        assert_eq!(properties.keys().map(String::as_str).collect::<BTreeSet<_>>(), terms, "{of}");
    }
}

#[test]
fn all_references_resolve() {
    fn check(document: &Value, part: &Value) {
        if let Some(reference) = part.get("$ref").and_then(Value::as_str) {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{reference}");
        }
        let members = part.as_object().into_iter().flat_map(|object| object.values());
        members.chain(part.as_array().into_iter().flatten()).for_each(|one| check(document, one));
    }
    let file = checked_in();
    check(&file, &file);
}

#[test]
fn document_has_the_endpoints_models_and_prefix_of_the_settings() {
    let catalog = Catalog::published().filter(|_, id| ["eta-5", "video-b"].contains(&id));
    let document = filled(Served::default(), &catalog, "/gate");
    assert_eq!(document["servers"], json!([{ "url": "/gate" }]));
    for off in ["/mcp", "/bff/login/callback", "/bff/tokens"] {
        assert!(document["paths"].get(off).is_none(), "{off}");
    }
    let login = document["paths"]["/bff/login"].as_object().unwrap();
    assert_eq!(login.keys().collect::<Vec<_>>(), ["post"]);
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["ChatModel"]["enum"], json!(["eta-5"]));
    assert_eq!(schemas["VideoModel"]["enum"], json!(["video-b"]));
    assert_eq!(schemas["VideoRequest"]["oneOf"].as_array().map(Vec::len), Some(1));
}
