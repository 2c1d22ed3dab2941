//! Every endpoint, a row each in [`table`]. The layers, the dispatch, the OpenAPI document, the table in
//! `docs/reference/http.md` and the tests read the rows.

pub(super) mod schemas;
mod table;

use std::pin::Pin;

use http::{Method, StatusCode};

use self::schemas::Shape;
use super::{Context, api};
use crate::answer::Answer;
use crate::downstream::route::{BASE, Class, Needs, Pages, Route, Table, Takes};
use crate::problem::{
    BUDGET_EXHAUSTED, DRAINING, FORBIDDEN, GATEWAY_BUSY, GATEWAY_KEY_REJECTED, GATEWAY_UNREACHABLE,
    IDEMPOTENCY_KEY_REUSED, INSUFFICIENT_CREDIT, INTERNAL, INVALID_CREDENTIALS,
    INVALID_IDEMPOTENCY_KEY, INVALID_REQUEST, JOB_NOT_FOUND, Kind, LEDGER_CHANGED,
    LEDGER_UNAVAILABLE, MALFORMED_JSON, MALFORMED_REQUEST, METHOD_NOT_ALLOWED, MISDIRECTED_REQUEST,
    MISSING_CREDENTIALS, NOT_FOUND, ORIGIN_NOT_ALLOWED, OUTCOME_UNKNOWN, OVERLOADED,
    PAYLOAD_TOO_LARGE, PURCHASE_NOT_FOUND, Problem, RATE_LIMITED, REQUEST_TIMEOUT, STILL_RUNNING,
    UNSUPPORTED_MEDIA_TYPE,
};

pub use table::ENDPOINTS;
use table::{PAID, READ};

/// What `gateway.passthrough` lets through: what is bought, and what is asked.
pub static PASSTHROUGH: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/", takes: Takes::ChatJson, ..PAID },
        about: "An endpoint of `gateway.passthrough` that costs.",
        answer: |cx| Box::pin(api::passthrough_buy(cx)),
        operations: &[],
    },
    Endpoint {
        route: Route { path: "/api/v1/", pages: Pages::Scripts, ..READ },
        about: "An endpoint of `gateway.passthrough` that costs nothing.",
        answer: |cx| Box::pin(api::passthrough_ask(cx)),
        operations: &[],
    },
];

pub static PAGE: Endpoint = Endpoint {
    route: BASE,
    about: "The page, or the site in `page.dir`. Unknown paths below `/api/`, `/bff/` and `/v1/` are 404.",
    answer: |cx| Box::pin(async move { cx.handlers.page.answer(&cx.call.head).await }),
    operations: &[],
};

pub struct Endpoint {
    pub route: Route,
    /// What it does, in Markdown, for the table in `docs/reference/http.md`.
    pub about: &'static str,
    /// What the OpenAPI document says of it; several where one row has several paths.
    pub(super) operations: &'static [Operation],
    pub(super) answer: Handler,
}

pub(super) type Handler =
    fn(Context) -> Pin<Box<dyn Future<Output = Result<Answer, Problem>> + Send>>;

impl Endpoint {
    pub fn is_page(&self) -> bool {
        self.route == PAGE.route
    }

    /// Returns the paths below the route's, with variables in braces; one that is empty, for most rows.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        let template = self.route.path;
        self.operations.iter().map(move |operation| format!("{template}{}", operation.below))
    }
}

/// Returns the table for the layers, with what `gateway.passthrough` adds: one row for all that costs and one
/// for all that does not, so that labels and logs do not grow with the settings.
pub fn routes(passthrough: impl IntoIterator<Item = (Method, String)>) -> Table {
    let row = |method| PASSTHROUGH.iter().find(|endpoint| endpoint.route.method == method);
    let added = passthrough
        .into_iter()
        .filter_map(|(method, path)| row(method).map(|endpoint| (path, &endpoint.route)));
    let rows = ENDPOINTS.iter().map(|endpoint| &endpoint.route).collect();
    Table { rows, passthrough: added.collect(), page: &PAGE.route }
}

pub(super) fn of(route: &Route) -> &'static Endpoint {
    let all = ENDPOINTS.iter().chain(PASSTHROUGH);
    all.into_iter().find(|endpoint| endpoint.route == *route).unwrap_or(&PAGE)
}

#[derive(Clone, Copy)]
pub(super) struct Operation {
    /// What follows the route's path, with variables in braces.
    pub(super) below: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) about: &'static str,
    pub(super) query: &'static [Query],
    pub(super) takes: &'static [(&'static str, &'static str)],
    pub(super) replies: &'static [Reply],
    pub(super) problems: &'static [&'static [&'static Kind]],
}

const fn op(id: &'static str, tag: &'static str, summary: &'static str) -> Operation {
    let (below, about, query, takes, replies, problems): (_, _, &[_], &[_], &[_], &[_]) =
        ("", "", &[], &[], &[], &[]);
    Operation { below, id, tag, summary, about, query, takes, replies, problems }
}

impl Operation {
    const fn below(self, below: &'static str) -> Self {
        Self { below, ..self }
    }

    const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    const fn query(self, query: &'static [Query]) -> Self {
        Self { query, ..self }
    }

    const fn takes(self, takes: &'static [(&'static str, &'static str)]) -> Self {
        Self { takes, ..self }
    }

    const fn replies(self, replies: &'static [Reply]) -> Self {
        Self { replies, ..self }
    }

    const fn problems(self, problems: &'static [&'static [&'static Kind]]) -> Self {
        Self { problems, ..self }
    }
}

pub(super) struct Query {
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) about: &'static str,
    pub(super) schema: fn() -> Shape,
}

pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) about: &'static str,
    pub(super) bodies: &'static [(&'static str, &'static str)],
}

pub(super) const fn may(name: &'static str, about: &'static str, schema: fn() -> Shape) -> Query {
    Query { name, is_required: false, about, schema }
}

const fn ok(about: &'static str, bodies: &'static [(&'static str, &'static str)]) -> Reply {
    Reply { status: StatusCode::OK, about, bodies }
}

/// What an endpoint may refuse with by its row, besides what its operations say.
pub(super) fn problems(route: &Route) -> impl Iterator<Item = &'static Kind> {
    let callers = if route.needs == Needs::Nobody { &[] } else { OF_CALLERS };
    let bodies = if route.takes == Takes::Nothing { &[] } else { OF_BODIES };
    let (purchases, gateway): (&[_], &[_]) =
        if route.class == Class::Paid { (OF_PURCHASES, OF_GATEWAY) } else { (&[], &[]) };
    [OF_ALL, callers, bodies, purchases, gateway].into_iter().flatten().copied()
}

const OF_ALL: &[&Kind] =
    &[&MALFORMED_REQUEST, &METHOD_NOT_ALLOWED, &MISDIRECTED_REQUEST, &RATE_LIMITED, &INTERNAL];

const OF_CALLERS: &[&Kind] = &[
    &MISSING_CREDENTIALS,
    &INVALID_CREDENTIALS,
    &FORBIDDEN,
    &ORIGIN_NOT_ALLOWED,
    &OVERLOADED,
    &LEDGER_UNAVAILABLE,
];

const OF_BODIES: &[&Kind] = &[
    &MALFORMED_JSON,
    &ORIGIN_NOT_ALLOWED,
    &REQUEST_TIMEOUT,
    &PAYLOAD_TOO_LARGE,
    &UNSUPPORTED_MEDIA_TYPE,
    &INVALID_REQUEST,
    &OVERLOADED,
];

const OF_PURCHASES: &[&Kind] = &[
    &INVALID_IDEMPOTENCY_KEY,
    &BUDGET_EXHAUSTED,
    &INSUFFICIENT_CREDIT,
    &PURCHASE_NOT_FOUND,
    &STILL_RUNNING,
    &LEDGER_CHANGED,
    &IDEMPOTENCY_KEY_REUSED,
    &OUTCOME_UNKNOWN,
];

const OF_GATEWAY: &[&Kind] =
    &[&GATEWAY_UNREACHABLE, &GATEWAY_KEY_REJECTED, &GATEWAY_BUSY, &DRAINING];

const OF_JOBS: &[&Kind] = &[&JOB_NOT_FOUND, &INVALID_REQUEST];

const OF_LOGINS: &[&Kind] = &[
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
        routes([]).find(&method, path).map_or_else(|problem| problem.kind().code, |_| "found")
    }

    #[test]
    fn every_row_is_found_by_its_own_path_and_no_other() {
        let table = routes([]);
        for Endpoint { route, .. } in ENDPOINTS {
            assert_eq!(table.find(&route.method, route.path).unwrap(), route);
            assert_eq!(of(route).route, *route);
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
        let table = routes(
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
