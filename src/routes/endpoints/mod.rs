//! Every endpoint, a row each in `table`. The layers, the dispatch, the OpenAPI document, the table in
//! `docs/reference/http.md` and the tests read the rows.

pub(super) mod schemas;
mod table;

use std::pin::Pin;

use http::{Method, StatusCode};

use self::schemas::SchemaRef;
use super::{HandlerContext, api};
use crate::downstream::route::{
    Auth, BodyKind, Class, CrossOrigin, DEFAULT_ROUTE, Route, RouteTable,
};
use crate::problem::{
    BUDGET_EXHAUSTED, DRAINING, FORBIDDEN, GATEWAY_BUSY, GATEWAY_KEY_REJECTED, GATEWAY_UNREACHABLE,
    IDEMPOTENCY_KEY_REUSED, INSUFFICIENT_CREDIT, INTERNAL, INVALID_CREDENTIALS,
    INVALID_IDEMPOTENCY_KEY, INVALID_REQUEST, JOB_NOT_FOUND, Kind, LEDGER_CHANGED,
    LEDGER_UNAVAILABLE, MALFORMED_JSON, MALFORMED_REQUEST, METHOD_NOT_ALLOWED, MISDIRECTED_REQUEST,
    MISSING_CREDENTIALS, NOT_FOUND, ORIGIN_NOT_ALLOWED, OUTCOME_UNKNOWN, OVERLOADED,
    PAYLOAD_TOO_LARGE, PURCHASE_NOT_FOUND, Problem, RATE_LIMITED, REQUEST_TIMEOUT, STILL_RUNNING,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::response::Response;

pub use table::ENDPOINTS;
use table::{PAID, READ};

/// What `gateway.passthrough` lets through: what is bought, and what is asked.
pub static PASSTHROUGH: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/", body: BodyKind::ChatJson, ..PAID },
        description: "An endpoint of `gateway.passthrough` that costs.",
        handler: |cx| Box::pin(api::passthrough_buy(cx)),
        operations: &[],
    },
    Endpoint {
        route: Route { path: "/api/v1/", cross_origin: CrossOrigin::Scripts, ..READ },
        description: "An endpoint of `gateway.passthrough` that costs nothing.",
        handler: |cx| Box::pin(api::passthrough_read(cx)),
        operations: &[],
    },
];

pub static PAGE: Endpoint = Endpoint {
    route: DEFAULT_ROUTE,
    description: "The page, or the site in `page.dir`. Unknown paths below `/api/`, `/bff/` and `/v1/` are 404.",
    handler: |cx| Box::pin(async move { cx.handlers.page.answer(&cx.call.head).await }),
    operations: &[],
};

pub struct Endpoint {
    pub route: Route,
    /// What it does, in Markdown, for the table in `docs/reference/http.md`.
    pub description: &'static str,
    /// What the OpenAPI document says of it; several where one row has several paths.
    pub(super) operations: &'static [Operation],
    pub(super) handler: Handler,
}

pub(super) type Handler =
    fn(HandlerContext) -> Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

impl Endpoint {
    pub fn is_page(&self) -> bool {
        self.route == PAGE.route
    }

    /// Returns the paths below the route's, with variables in braces; one that is empty, for most rows.
    pub fn openapi_paths(&self) -> impl Iterator<Item = String> {
        let template = self.route.path;
        self.operations.iter().map(move |operation| format!("{template}{}", operation.path_suffix))
    }
}

/// Returns the table for the layers, with what `gateway.passthrough` adds: one row for all that costs and one
/// for all that does not, so that labels and logs do not grow with the settings.
pub fn route_table(passthrough: impl IntoIterator<Item = (Method, String)>) -> RouteTable {
    let row = |method| PASSTHROUGH.iter().find(|endpoint| endpoint.route.method == method);
    let added = passthrough
        .into_iter()
        .filter_map(|(method, path)| row(method).map(|endpoint| (path, &endpoint.route)));
    let rows = ENDPOINTS.iter().map(|endpoint| &endpoint.route).collect();
    RouteTable { rows, passthrough: added.collect(), page: &PAGE.route }
}

pub(super) fn find(route: &Route) -> &'static Endpoint {
    let all = ENDPOINTS.iter().chain(PASSTHROUGH);
    all.into_iter().find(|endpoint| endpoint.route == *route).unwrap_or(&PAGE)
}

#[derive(Clone, Copy)]
pub(super) struct Operation {
    /// What follows the route's path, with variables in braces.
    pub(super) path_suffix: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    pub(super) query: &'static [QueryParam],
    pub(super) request_body: &'static [(&'static str, &'static str)],
    pub(super) responses: &'static [EndpointResponse],
    pub(super) problems: &'static [&'static [&'static Kind]],
}

const fn operation(id: &'static str, tag: &'static str, summary: &'static str) -> Operation {
    let (below, about, query, takes, replies, problems): (_, _, &[_], &[_], &[_], &[_]) =
        ("", "", &[], &[], &[], &[]);
    Operation {
        path_suffix: below,
        id,
        tag,
        summary,
        description: about,
        query,
        request_body: takes,
        responses: replies,
        problems,
    }
}

impl Operation {
    const fn path_suffix(self, below: &'static str) -> Self {
        Self { path_suffix: below, ..self }
    }

    const fn description(self, about: &'static str) -> Self {
        Self { description: about, ..self }
    }

    const fn query(self, query: &'static [QueryParam]) -> Self {
        Self { query, ..self }
    }

    const fn request_body(self, takes: &'static [(&'static str, &'static str)]) -> Self {
        Self { request_body: takes, ..self }
    }

    const fn responses(self, replies: &'static [EndpointResponse]) -> Self {
        Self { responses: replies, ..self }
    }

    const fn problems(self, problems: &'static [&'static [&'static Kind]]) -> Self {
        Self { problems, ..self }
    }
}

pub(super) struct QueryParam {
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) description: &'static str,
    pub(super) schema: fn() -> SchemaRef,
}

pub(super) struct EndpointResponse {
    pub(super) status: StatusCode,
    pub(super) description: &'static str,
    pub(super) bodies: &'static [(&'static str, &'static str)],
}

pub(super) const fn optional(
    name: &'static str,
    about: &'static str,
    schema: fn() -> SchemaRef,
) -> QueryParam {
    QueryParam { name, is_required: false, description: about, schema }
}

const fn ok(
    about: &'static str,
    bodies: &'static [(&'static str, &'static str)],
) -> EndpointResponse {
    EndpointResponse { status: StatusCode::OK, description: about, bodies }
}

/// What an endpoint may refuse with by its row, besides what its operations say.
pub(super) fn common_problems(route: &Route) -> impl Iterator<Item = &'static Kind> {
    let callers = if route.auth == Auth::Public { &[] } else { CALLER_PROBLEMS };
    let bodies = if route.body == BodyKind::Nothing { &[] } else { BODY_PROBLEMS };
    let (purchases, gateway): (&[_], &[_]) =
        if route.class == Class::Paid { (PURCHASE_PROBLEMS, GATEWAY_PROBLEMS) } else { (&[], &[]) };
    [ALWAYS_POSSIBLE, callers, bodies, purchases, gateway].into_iter().flatten().copied()
}

const ALWAYS_POSSIBLE: &[&Kind] =
    &[&MALFORMED_REQUEST, &METHOD_NOT_ALLOWED, &MISDIRECTED_REQUEST, &RATE_LIMITED, &INTERNAL];

const CALLER_PROBLEMS: &[&Kind] = &[
    &MISSING_CREDENTIALS,
    &INVALID_CREDENTIALS,
    &FORBIDDEN,
    &ORIGIN_NOT_ALLOWED,
    &OVERLOADED,
    &LEDGER_UNAVAILABLE,
];

const BODY_PROBLEMS: &[&Kind] = &[
    &MALFORMED_JSON,
    &ORIGIN_NOT_ALLOWED,
    &REQUEST_TIMEOUT,
    &PAYLOAD_TOO_LARGE,
    &UNSUPPORTED_MEDIA_TYPE,
    &INVALID_REQUEST,
    &OVERLOADED,
];

const PURCHASE_PROBLEMS: &[&Kind] = &[
    &INVALID_IDEMPOTENCY_KEY,
    &BUDGET_EXHAUSTED,
    &INSUFFICIENT_CREDIT,
    &PURCHASE_NOT_FOUND,
    &STILL_RUNNING,
    &LEDGER_CHANGED,
    &IDEMPOTENCY_KEY_REUSED,
    &OUTCOME_UNKNOWN,
];

const GATEWAY_PROBLEMS: &[&Kind] =
    &[&GATEWAY_UNREACHABLE, &GATEWAY_KEY_REJECTED, &GATEWAY_BUSY, &DRAINING];

const JOB_PROBLEMS: &[&Kind] = &[&JOB_NOT_FOUND, &INVALID_REQUEST];

const LOGIN_PROBLEMS: &[&Kind] = &[
    &INVALID_CREDENTIALS,
    &FORBIDDEN,
    &ORIGIN_NOT_ALLOWED,
    &NOT_FOUND,
    &OVERLOADED,
    &LEDGER_UNAVAILABLE,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn code(method: Method, path: &str) -> &'static str {
        route_table([]).find(&method, path).map_or_else(|problem| problem.kind().code, |_| "found")
    }

    #[test]
    fn every_row_is_found_by_its_own_path_and_no_other() {
        let table = route_table([]);
        for Endpoint { route, .. } in ENDPOINTS {
            assert_eq!(table.find(&route.method, route.path).unwrap(), route);
            assert_eq!(find(route).route, *route);
        }
        for path in [
            "/api/v1/chat/",
            "/api/v1//chat",
            "//api/v1/chat",
            "/api/v1/../api-keys",
            "/API/v1/chat",
            "/api/v1/chat;x=y",
            "/api/v1/%63hat",
            "/api/api-keys",
            "/api/v1/search",
            "/api",
            "/v1/x",
        ] {
            let outcome = table.find(&Method::POST, path);
            assert!(outcome.is_err(), "{path}");
        }
        assert_eq!(code(Method::GET, "/api/api-keys"), "unknown_endpoint");
        assert_eq!(code(Method::GET, "/api/v1/../api-keys"), "unknown_endpoint");
    }

    #[test]
    fn a_wrong_method_names_the_right_ones() {
        assert_eq!(code(Method::GET, "/api/v1/chat"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/bff/catalog"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/"), "method_not_allowed");
        assert_eq!(code(Method::HEAD, "/bff/catalog"), "found");
        assert_eq!(code(Method::GET, "/anything.css"), "found");
    }

    #[test]
    fn what_the_settings_let_through_is_found_by_its_exact_path_and_method() {
        let table = route_table(
            [
                (Method::POST, "/api/v1/search"),
                (Method::POST, "/api/v1/both"),
                (Method::GET, "/api/v1/both"),
                (Method::GET, "/api/v1/pricing"),
            ]
            .map(|(method, path)| (method, path.to_owned())),
        );
        let [buy, ask] = PASSTHROUGH else { panic!("two rows") };
        for (method, path, outcome) in [
            (Method::POST, "/api/v1/search", Ok(buy)),
            (Method::GET, "/api/v1/pricing", Ok(ask)),
            (Method::HEAD, "/api/v1/pricing", Ok(ask)),
            (Method::POST, "/api/v1/both", Ok(buy)),
            (Method::GET, "/api/v1/both", Ok(ask)),
            (Method::GET, "/api/v1/search", Err("method_not_allowed")),
            (Method::POST, "/api/v1/pricing", Err("method_not_allowed")),
            (Method::POST, "/api/v1/search/", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/searc%68", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/images", Err("unknown_endpoint")),
            (Method::POST, "/api/v1/chat", Ok(&ENDPOINTS[0])),
        ] {
            let found = table.find(&method, path).map_err(|problem| problem.kind().code);
            assert_eq!(found, outcome.map(|endpoint| &endpoint.route), "{method} {path}");
        }
    }
}
