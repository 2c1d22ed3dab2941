//! Describes an endpoint for the OpenAPI document.

use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::{Content, ContentBuilder, Ref, Required};

use super::schemas::{self, SchemaRef};
pub(super) use super::schemas::{one_of, range};
use crate::downstream::route::{Auth, BodyKind, Class, Route};
use crate::problem::{
    ATTEMPT_SUPERSEDED, BUDGET_EXHAUSTED, DRAINING, GATEWAY_BUSY, GATEWAY_KEY_REJECTED,
    GATEWAY_UNREACHABLE, IDEMPOTENCY_KEY_REUSED, INSUFFICIENT_CREDIT, INTERNAL,
    INVALID_CREDENTIALS, INVALID_IDEMPOTENCY_KEY, JOB_NOT_FOUND, Kind, LEDGER_CHANGED,
    MALFORMED_JSON, MALFORMED_REQUEST, METHOD_NOT_ALLOWED, MISDIRECTED_REQUEST,
    MISSING_CREDENTIALS, OUTCOME_UNKNOWN, OVERLOADED, PAYLOAD_TOO_LARGE, PURCHASE_NOT_FOUND,
    RATE_LIMITED, REQUEST_TIMEOUT, STILL_RUNNING, UNSUPPORTED_MEDIA_TYPE,
};
pub(super) use crate::problem::{
    FORBIDDEN, INVALID_REQUEST, LEDGER_UNAVAILABLE, LOGIN_EXPIRED, LOGIN_UNAVAILABLE, NOT_FOUND,
    ORIGIN_NOT_ALLOWED,
};

pub(super) const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream";
pub(super) const TEXT: &str = "text/plain";
pub(super) const VIDEO: &str = "video/mp4";
pub(super) const PICTURE: &str = "image/*";

pub struct Operation {
    /// Appended to the route's path, with variables in braces.
    pub(in crate::routes) path_suffix: &'static str,
    pub(in crate::routes) responses: Vec<(u16, ResponseBuilder)>,
    pub(in crate::routes) problems: &'static [&'static [&'static Kind]],
    /// Everything else.
    pub(in crate::routes) builder: OperationBuilder,
}

pub(super) fn operation(id: &'static str, tag: &'static str, summary: &'static str) -> Operation {
    let builder = OperationBuilder::new().operation_id(Some(id)).tag(tag).summary(Some(summary));
    Operation { path_suffix: "", responses: Vec::new(), problems: &[], builder }
}

impl Operation {
    pub(super) fn path_suffix(self, path_suffix: &'static str) -> Self {
        Self { path_suffix, ..self }
    }

    pub(super) fn description(self, description: &'static str) -> Self {
        Self { builder: self.builder.description(Some(description)), ..self }
    }

    pub(super) fn query(self, name: &str, description: &str, schema: impl Into<SchemaRef>) -> Self {
        let query = parameter(name, ParameterIn::Query, description, schema);
        Self { builder: self.builder.parameter(query), ..self }
    }

    pub(super) fn job_id(self) -> Self {
        let about = "The job's id, from the reply to the order.";
        let id = parameter("request_id", ParameterIn::Query, about, schemas::request_id());
        Self { builder: self.builder.parameter(id.required(Required::True)), ..self }
    }

    pub(super) fn job_ids(self) -> Self {
        let about = "Job ids, repeatable; by default the caller's own jobs.";
        self.query("request_id", about, schemas::list(schemas::request_id()))
    }

    pub(super) fn days(self, since: &str) -> Self {
        let zone = "The time zone whose days these are, by its name, such as Europe/Berlin.";
        self.query("since", since, schemas::pattern("^[1-9][0-9]{0,2}d$")).query(
            "time_zone",
            zone,
            schemas::pattern("^[A-Za-z0-9_+/-]{1,64}$"),
        )
    }

    pub(super) fn request_body(self, schema: &str) -> Self {
        let body = RequestBodyBuilder::new().required(Some(Required::True));
        let body = body.content("application/json", content(schema)).build();
        Self { builder: self.builder.request_body(Some(body)), ..self }
    }

    pub(super) fn picture_body(self) -> Self {
        let body = RequestBodyBuilder::new().required(Some(Required::True));
        let types = ["image/png", "image/jpeg", "image/webp"];
        let body = types.iter().fold(body, |body, name| body.content(*name, content("Anything")));
        Self { builder: self.builder.request_body(Some(body.build())), ..self }
    }

    pub(super) fn ok(self, description: &str, media_type: &str, schema: &str) -> Self {
        self.response(200, description, &[(media_type, schema)])
    }

    /// `bodies` are media types and the names of their schemas.
    pub(super) fn response(
        mut self,
        status: u16,
        description: &str,
        bodies: &[(&str, &str)],
    ) -> Self {
        let response = ResponseBuilder::new().description(description);
        let add = |response: ResponseBuilder, (media_type, schema): &(&str, &str)| {
            response.content(*media_type, content(schema))
        };
        self.responses.push((status, bodies.iter().fold(response, add)));
        self
    }

    pub(super) fn problems(self, problems: &'static [&'static [&'static Kind]]) -> Self {
        Self { problems, ..self }
    }
}

pub(in crate::routes) fn parameter(
    name: &str,
    location: ParameterIn,
    description: &str,
    schema: impl Into<SchemaRef>,
) -> ParameterBuilder {
    let parameter = ParameterBuilder::new().name(name).parameter_in(location);
    parameter.required(Required::False).description(Some(description)).schema(Some(schema))
}

pub(in crate::routes) fn content(schema: &str) -> Content {
    ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build()
}

/// Returns the problems that follow from the properties of a route.
pub(in crate::routes) fn common_problems(route: &Route) -> impl Iterator<Item = &'static Kind> {
    let needs_caller = matches!(route.auth, Auth::Caller | Auth::Admin);
    let callers = if needs_caller { CALLER_PROBLEMS } else { &[] };
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

/// Of an admin's writes.
pub(in crate::routes) const KEY_PROBLEMS: &[&Kind] =
    &[&INVALID_IDEMPOTENCY_KEY, &STILL_RUNNING, &IDEMPOTENCY_KEY_REUSED];

const PURCHASE_PROBLEMS: &[&Kind] = &[
    &INVALID_IDEMPOTENCY_KEY,
    &BUDGET_EXHAUSTED,
    &INSUFFICIENT_CREDIT,
    &PURCHASE_NOT_FOUND,
    &STILL_RUNNING,
    &ATTEMPT_SUPERSEDED,
    &LEDGER_CHANGED,
    &IDEMPOTENCY_KEY_REUSED,
    &OUTCOME_UNKNOWN,
];

pub(super) const GATEWAY_PROBLEMS: &[&Kind] =
    &[&GATEWAY_UNREACHABLE, &GATEWAY_KEY_REJECTED, &GATEWAY_BUSY, &DRAINING];

pub(super) const JOB_PROBLEMS: &[&Kind] = &[&JOB_NOT_FOUND, &INVALID_REQUEST];

pub(super) const LOGIN_PROBLEMS: &[&Kind] = &[
    &INVALID_CREDENTIALS,
    &FORBIDDEN,
    &ORIGIN_NOT_ALLOWED,
    &NOT_FOUND,
    &OVERLOADED,
    &LEDGER_UNAVAILABLE,
];
