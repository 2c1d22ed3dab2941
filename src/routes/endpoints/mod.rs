//! All endpoints, one row each in `table`. The layers, the dispatch and the OpenAPI document use
//! the rows; `docs/reference/http.md` describes each.

pub(super) mod schemas;
mod table;

use std::pin::Pin;

use http::Method;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::{Content, ContentBuilder, Ref, Required};

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
    PAYLOAD_TOO_LARGE, PURCHASE_NOT_FOUND, RATE_LIMITED, REQUEST_TIMEOUT, STILL_RUNNING,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::response::HandlerResult;

pub use table::ENDPOINTS;
use table::{PAID, READ};

/// The endpoints of `gateway.passthrough`: one row for paid and one for free.
pub static PASSTHROUGH: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(api::passthrough_buy(cx)),
        operations: Vec::new,
    },
    Endpoint {
        route: Route { path: "/api/v1/", cross_origin: CrossOrigin::Scripts, ..READ },
        handler: |cx| Box::pin(api::passthrough_read(cx)),
        operations: Vec::new,
    },
];

pub static PAGE: Endpoint = Endpoint {
    route: DEFAULT_ROUTE,
    handler: |cx| Box::pin(async move { cx.handlers.page.answer(&cx.call.head).await }),
    operations: Vec::new,
};

pub struct Endpoint {
    pub route: Route,
    /// For the OpenAPI document; several if the route has several paths.
    pub(super) operations: fn() -> Vec<Operation>,
    pub(super) handler: Handler,
}

pub(super) type Handler = fn(HandlerContext) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

impl Endpoint {
    pub fn is_page(&self) -> bool {
        self.route == PAGE.route
    }

    /// Returns the paths of the operations, with variables in braces.
    pub fn openapi_paths(&self) -> impl Iterator<Item = String> {
        let template = self.route.path;
        let suffixes = (self.operations)().into_iter().map(|operation| operation.path_suffix);
        suffixes.map(move |suffix| format!("{template}{suffix}"))
    }
}

/// Builds the table for the layers. All passthrough paths share two rows, so that labels and logs
/// do not grow with the settings.
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

pub(super) struct Operation {
    /// Appended to the route's path, with variables in braces.
    pub(super) path_suffix: &'static str,
    pub(super) responses: Vec<(u16, ResponseBuilder)>,
    pub(super) problems: &'static [&'static [&'static Kind]],
    /// Everything else.
    pub(super) builder: OperationBuilder,
}

fn operation(id: &'static str, tag: &'static str, summary: &'static str) -> Operation {
    let builder = OperationBuilder::new().operation_id(Some(id)).tag(tag).summary(Some(summary));
    Operation { path_suffix: "", responses: Vec::new(), problems: &[], builder }
}

impl Operation {
    fn path_suffix(self, path_suffix: &'static str) -> Self {
        Self { path_suffix, ..self }
    }

    fn description(self, description: &'static str) -> Self {
        Self { builder: self.builder.description(Some(description)), ..self }
    }

    fn query(self, name: &str, description: &str, schema: impl Into<SchemaRef>) -> Self {
        let query = parameter(name, ParameterIn::Query, description, schema);
        Self { builder: self.builder.parameter(query), ..self }
    }

    fn job_id(self) -> Self {
        let about = "The job's id, from the reply to the order.";
        let id = parameter("request_id", ParameterIn::Query, about, schemas::request_id());
        Self { builder: self.builder.parameter(id.required(Required::True)), ..self }
    }

    fn job_ids(self) -> Self {
        let about = "Job ids, repeatable; by default the caller's own jobs.";
        self.query("request_id", about, schemas::list(schemas::request_id()))
    }

    fn days(self, since: &str) -> Self {
        let offset = "Uses the days of this time zone: minutes ahead of UTC, such as 60 or -300.";
        self.query("since", since, schemas::pattern("^[1-9][0-9]{0,2}d$")).query(
            "utc_offset",
            offset,
            schemas::range(-1_080, 1_080),
        )
    }

    fn request_body(self, schema: &str) -> Self {
        let body = RequestBodyBuilder::new().required(Some(Required::True));
        let body = body.content("application/json", content(schema)).build();
        Self { builder: self.builder.request_body(Some(body)), ..self }
    }

    fn ok(self, description: &str, media_type: &str, schema: &str) -> Self {
        self.response(200, description, &[(media_type, schema)])
    }

    /// `bodies` are media types and the names of their schemas.
    fn response(mut self, status: u16, description: &str, bodies: &[(&str, &str)]) -> Self {
        let response = ResponseBuilder::new().description(description);
        let add = |response: ResponseBuilder, (media_type, schema): &(&str, &str)| {
            response.content(*media_type, content(schema))
        };
        self.responses.push((status, bodies.iter().fold(response, add)));
        self
    }

    fn problems(self, problems: &'static [&'static [&'static Kind]]) -> Self {
        Self { problems, ..self }
    }
}

pub(super) fn parameter(
    name: &str,
    location: ParameterIn,
    description: &str,
    schema: impl Into<SchemaRef>,
) -> ParameterBuilder {
    let parameter = ParameterBuilder::new().name(name).parameter_in(location);
    parameter.required(Required::False).description(Some(description)).schema(Some(schema))
}

pub(super) fn content(schema: &str) -> Content {
    ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build()
}

/// Returns the problems that follow from the properties of a route.
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
    fn route_matches_its_exact_path_only() {
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
    fn wrong_method_is_refused_and_head_follows_get() {
        assert_eq!(code(Method::GET, "/api/v1/chat"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/bff/catalog"), "method_not_allowed");
        assert_eq!(code(Method::POST, "/"), "method_not_allowed");
        assert_eq!(code(Method::HEAD, "/bff/catalog"), "found");
        assert_eq!(code(Method::GET, "/anything.css"), "found");
    }

    #[test]
    fn passthrough_matches_exact_path_and_method() {
        let table = route_table(
            [
                (Method::POST, "/api/v1/search"),
                (Method::POST, "/api/v1/both"),
                (Method::GET, "/api/v1/both"),
                (Method::GET, "/api/v1/pricing"),
            ]
            .map(|(method, path)| (method, path.to_owned())),
        );
        let [buy, read] = PASSTHROUGH else { panic!("two rows") };
        for (method, path, outcome) in [
            (Method::POST, "/api/v1/search", Ok(buy)),
            (Method::GET, "/api/v1/pricing", Ok(read)),
            (Method::HEAD, "/api/v1/pricing", Ok(read)),
            (Method::POST, "/api/v1/both", Ok(buy)),
            (Method::GET, "/api/v1/both", Ok(read)),
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
