//! What the document says of each route: one row per row of `ROUTES`.

use http::{Method, StatusCode};
use utoipa::openapi::{RefOr, Schema};

use super::{dialect, people, schemas};
use crate::problem::{
    BUDGET_EXHAUSTED, DRAINING, FORBIDDEN, GATEWAY_KEY_REJECTED, GATEWAY_UNREACHABLE,
    IDEMPOTENCY_KEY_REUSED, INSUFFICIENT_CREDIT, INTERNAL, INVALID_CREDENTIALS,
    INVALID_IDEMPOTENCY_KEY, INVALID_REQUEST, JOB_NOT_FOUND, Kind, LEDGER_CHANGED,
    LEDGER_UNAVAILABLE, MALFORMED_JSON, MALFORMED_REQUEST, METHOD_NOT_ALLOWED, MISDIRECTED_REQUEST,
    MISSING_CREDENTIALS, NOT_FOUND, ORIGIN_NOT_ALLOWED, OUTCOME_UNKNOWN, OVERLOADED,
    PAYLOAD_TOO_LARGE, RATE_LIMITED, REQUEST_TIMEOUT, STILL_RUNNING, UNSUPPORTED_MEDIA_TYPE,
    WINDOW_EXHAUSTED,
};

/// What the document says of one route.
pub(super) struct Operation {
    pub(super) method: Method,
    /// With variables in braces.
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) about: &'static str,
    pub(super) query: &'static [Query],
    /// Whether it takes an `Idempotency-Key` and tells its toll.
    pub(super) is_paid: bool,
    /// Media type and schema of its body; none, where it takes none.
    pub(super) takes: &'static [(&'static str, &'static str)],
    pub(super) replies: &'static [Reply],
    pub(super) refuses: Refuses,
    /// Whether it is for callers alone, where access is not open.
    pub(super) is_for_callers: bool,
    /// Besides [`ANY`].
    pub(super) problems: &'static [&'static Kind],
}

/// A parameter of the query.
pub(super) struct Query {
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) about: &'static str,
    pub(super) schema: fn() -> RefOr<Schema>,
}

/// A reply that is no refusal.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) about: &'static str,
    /// Media type and schema, one for each that it can have.
    pub(super) bodies: &'static [(&'static str, &'static str)],
}

/// In which shape an operation refuses.
#[derive(Clone, Copy)]
pub(super) enum Refuses {
    /// RFC 9457.
    Problem,
    /// As OpenAI's API does.
    OpenAi,
}

impl Refuses {
    /// Media type and schema.
    pub(super) const fn shape(self) -> (&'static str, &'static str) {
        match self {
            Self::Problem => ("application/problem+json", "Problem"),
            Self::OpenAi => ("application/json", "OpenAiError"),
        }
    }
}

/// What any route may be refused with.
pub(super) const ANY: &[&Kind] =
    &[&MALFORMED_REQUEST, &METHOD_NOT_ALLOWED, &MISDIRECTED_REQUEST, &RATE_LIMITED, &INTERNAL];

/// What who may not call is refused with.
pub(super) const OF_CALLERS: &[&Kind] = &[
    &MISSING_CREDENTIALS,
    &INVALID_CREDENTIALS,
    &FORBIDDEN,
    &ORIGIN_NOT_ALLOWED,
    &OVERLOADED,
    &LEDGER_UNAVAILABLE,
];

/// What a purchase may be refused with.
pub(super) const PURCHASE: &[&Kind] = &[
    &MALFORMED_JSON,
    &INVALID_IDEMPOTENCY_KEY,
    &BUDGET_EXHAUSTED,
    &INSUFFICIENT_CREDIT,
    &ORIGIN_NOT_ALLOWED,
    &REQUEST_TIMEOUT,
    &STILL_RUNNING,
    &LEDGER_CHANGED,
    &PAYLOAD_TOO_LARGE,
    &UNSUPPORTED_MEDIA_TYPE,
    &INVALID_REQUEST,
    &IDEMPOTENCY_KEY_REUSED,
    &OUTCOME_UNKNOWN,
    &GATEWAY_UNREACHABLE,
    &GATEWAY_KEY_REJECTED,
    &WINDOW_EXHAUSTED,
    &OVERLOADED,
    &DRAINING,
    &LEDGER_UNAVAILABLE,
];
/// What asking for jobs may be refused with.
pub(super) const OF_JOBS: &[&Kind] = &[
    &JOB_NOT_FOUND,
    &INVALID_REQUEST,
    &GATEWAY_UNREACHABLE,
    &GATEWAY_KEY_REJECTED,
    &WINDOW_EXHAUSTED,
    &OVERLOADED,
    &DRAINING,
    &LEDGER_UNAVAILABLE,
];

pub(super) const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream";
const ONE_JOB: Query = Query {
    name: "request_id",
    is_required: true,
    about: "The job, as the order was answered with.",
    schema: schemas::request_id,
};
const SOME_JOBS: Query = Query {
    name: "request_id",
    is_required: false,
    about: "The jobs, repeatable; without it the caller's own.",
    schema: schemas::request_ids,
};
pub(super) const BASE: Operation = Operation {
    method: Method::GET,
    path: "",
    id: "",
    tag: "",
    summary: "",
    about: "",
    query: &[],
    is_paid: false,
    takes: &[],
    replies: &[],
    refuses: Refuses::Problem,
    is_for_callers: true,
    problems: &[],
};

/// Every row but those of OpenAI's dialect and of people.
pub(super) const NATIVE: &[Operation] = &[
    Operation {
        method: Method::POST,
        path: "/api/v1/chat",
        id: "chat",
        tag: "purchases",
        summary: "Buy one chat reply",
        is_paid: true,
        takes: &[(JSON, "ChatRequest")],
        replies: &[ok("The gateway's reply, unchanged.", &[(JSON, "ChatReply")])],
        problems: PURCHASE,
        ..BASE
    },
    Operation {
        method: Method::POST,
        path: "/api/v1/video",
        id: "video",
        tag: "purchases",
        summary: "Order one video",
        about: "It is charged when it is accepted, and cannot be cancelled. Follow it by its request_id.",
        is_paid: true,
        takes: &[(JSON, "VideoRequest")],
        replies: &[ok("The gateway's acceptance, unchanged.", &[(JSON, "VideoAccepted")])],
        problems: PURCHASE,
        ..BASE
    },
    Operation {
        path: "/api/v1/video/status",
        id: "videoStatus",
        tag: "jobs",
        summary: "How far a job is",
        query: &[ONE_JOB],
        replies: &[ok("The gateway's latest status body, unchanged.", &[(JSON, "Anything")])],
        problems: OF_JOBS,
        ..BASE
    },
    Operation {
        path: "/bff/video/content",
        id: "videoContent",
        tag: "jobs",
        summary: "The finished video",
        about: "Ranges are answered. Only videos on page.media_origins, or the sandbox's, are fetched.",
        query: &[ONE_JOB],
        replies: &[
            ok("The video.", &[("video/mp4", "Anything")]),
            Reply {
                status: StatusCode::PARTIAL_CONTENT,
                about: "A part of the video.",
                bodies: &[("video/mp4", "Anything")],
            },
        ],
        problems: OF_VIDEO,
        ..BASE
    },
    Operation {
        path: "/bff/events",
        id: "events",
        tag: "jobs",
        summary: "What becomes of jobs, as it happens",
        about: "Server-sent events: `job` for each change of a job, `problem` for what goes wrong. At least one job has \
                to be named where an address is no identity.",
        query: &[SOME_JOBS],
        replies: &[
            ok("Events.", &[(EVENTS, "Text")]),
            Reply {
                status: StatusCode::NO_CONTENT,
                about: "All of them have ended, and Last-Event-ID knows it.",
                bodies: &[],
            },
        ],
        problems: OF_JOBS,
        ..BASE
    },
    Operation {
        path: "/bff/jobs",
        id: "jobs",
        tag: "jobs",
        summary: "The caller's jobs",
        query: &[SOME_JOBS],
        replies: &[ok("The latest first, at most 200.", &[(JSON, "Jobs")])],
        problems: OF_JOBS,
        ..BASE
    },
    Operation {
        path: "/bff/catalog",
        is_for_callers: false,
        id: "catalog",
        tag: "facts",
        summary: "The price list",
        replies: &[ok("Models, tolls and the rules of forms.", &[(JSON, "Catalog")])],
        ..BASE
    },
    Operation {
        path: "/bff/me",
        id: "me",
        tag: "facts",
        summary: "Who is calling, and what is left to it",
        replies: &[ok("Limits, budgets and, where it may be seen, the balance.", &[(JSON, "Me")])],
        problems: &[&LEDGER_UNAVAILABLE],
        ..BASE
    },
    Operation {
        path: "/bff/usage",
        id: "usage",
        tag: "facts",
        summary: "What the caller has spent",
        query: &[Query {
            name: "since",
            is_required: false,
            about: "How far back: 7d, or 24h; 7d when nothing is said.",
            schema: schemas::since,
        }],
        replies: &[ok("By UTC day and model.", &[(JSON, "Usage")])],
        problems: &[&FORBIDDEN, &INVALID_REQUEST, &LEDGER_UNAVAILABLE],
        ..BASE
    },
    Operation {
        path: "/bff/openapi.json",
        is_for_callers: false,
        id: "openapi",
        tag: "facts",
        summary: "This document",
        replies: &[ok("OpenAPI 3.1.", &[(JSON, "Anything")])],
        ..BASE
    },
    Operation {
        path: "/bff/client.js",
        is_for_callers: false,
        id: "client",
        tag: "embedding",
        summary: "A client for web pages: one module without imports",
        replies: &[ok("The module.", &[("text/javascript", "Text")])],
        ..BASE
    },
    Operation {
        path: "/bff/client.d.ts",
        is_for_callers: false,
        id: "clientTypes",
        tag: "embedding",
        summary: "The client's types, for TypeScript",
        replies: &[ok("The types.", &[("text/plain", "Text")])],
        ..BASE
    },
    Operation {
        path: "/bff/elements.js",
        is_for_callers: false,
        id: "elements",
        tag: "embedding",
        summary: "The elements tollgate-chat and tollgate-video",
        replies: &[ok("The module.", &[("text/javascript", "Text")])],
        ..BASE
    },
    Operation {
        path: "/bff/purchasing.js",
        is_for_callers: false,
        id: "purchasing",
        tag: "embedding",
        summary: "What the elements share, loaded by them",
        replies: &[ok("The module.", &[("text/javascript", "Text")])],
        ..BASE
    },
    Operation {
        path: "/bff/purchases.js",
        is_for_callers: false,
        id: "purchases",
        tag: "embedding",
        summary: "How a purchase is kept and settled, loaded by the elements",
        replies: &[ok("The module.", &[("text/javascript", "Text")])],
        ..BASE
    },
    Operation {
        path: "/bff/dom.js",
        is_for_callers: false,
        id: "dom",
        tag: "embedding",
        summary: "How elements are made, loaded by the elements",
        replies: &[ok("The module.", &[("text/javascript", "Text")])],
        ..BASE
    },
    Operation {
        path: "/bff/format.js",
        is_for_callers: false,
        id: "format",
        tag: "embedding",
        summary: "How amounts and times are written, loaded by the elements",
        replies: &[ok("The module.", &[("text/javascript", "Text")])],
        ..BASE
    },
    Operation {
        path: "/healthz",
        is_for_callers: false,
        id: "healthz",
        tag: "facts",
        summary: "Alive",
        replies: &[ok("It is.", &[("text/plain", "Text")])],
        ..BASE
    },
    Operation {
        path: "/problems/{code}",
        is_for_callers: false,
        id: "problem",
        tag: "facts",
        summary: "A kind of problem, explained",
        replies: &[ok("A page for people.", &[("text/html", "Text")])],
        problems: &[&NOT_FOUND],
        ..BASE
    },
];

/// What fetching a video may be refused with.
pub(super) const OF_VIDEO: &[&Kind] = &[
    &JOB_NOT_FOUND,
    &NOT_FOUND,
    &INVALID_REQUEST,
    &GATEWAY_UNREACHABLE,
    &GATEWAY_KEY_REJECTED,
    &WINDOW_EXHAUSTED,
    &OVERLOADED,
    &DRAINING,
    &LEDGER_UNAVAILABLE,
];

pub(super) const fn ok(
    about: &'static str,
    bodies: &'static [(&'static str, &'static str)],
) -> Reply {
    Reply { status: StatusCode::OK, about, bodies }
}

/// Every row.
pub(super) fn all() -> impl Iterator<Item = &'static Operation> {
    [NATIVE, people::OPERATIONS, dialect::OPERATIONS].into_iter().flatten()
}

/// The method and path of every row, with variables in braces.
pub fn described() -> impl Iterator<Item = (&'static Method, &'static str)> {
    all().map(|operation| (&operation.method, operation.path))
}
