//! What the document says of logins, and of what admins may ask.

use http::{Method, StatusCode};

use super::operations::{BASE, JSON, Operation, Query, Reply, ok};
use super::schemas;
use crate::problem::{
    FORBIDDEN, INVALID_CREDENTIALS, INVALID_REQUEST, Kind, LEDGER_UNAVAILABLE, MALFORMED_JSON,
    NOT_FOUND, ORIGIN_NOT_ALLOWED, OVERLOADED, PAYLOAD_TOO_LARGE, REQUEST_TIMEOUT,
    UNSUPPORTED_MEDIA_TYPE,
};

const DONE: Reply = Reply { status: StatusCode::NO_CONTENT, about: "Done.", bodies: &[] };
const LOGIN: &[&Kind] = &[
    &MALFORMED_JSON,
    &INVALID_CREDENTIALS,
    &FORBIDDEN,
    &ORIGIN_NOT_ALLOWED,
    &NOT_FOUND,
    &REQUEST_TIMEOUT,
    &PAYLOAD_TOO_LARGE,
    &UNSUPPORTED_MEDIA_TYPE,
    &INVALID_REQUEST,
    &OVERLOADED,
    &LEDGER_UNAVAILABLE,
];
const ADMINS: Operation = Operation { tag: "admins", ..BASE };

/// Every row.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        method: Method::POST,
        path: "/bff/login",
        id: "login",
        tag: "people",
        summary: "Turn a member's token into a browser's cookie",
        about: "With access.mode = \"members\" alone. With the cookie, whatever changes something needs the header `X-Tollgate: 1`.",
        takes: &[(JSON, "Login")],
        replies: &[DONE],
        is_for_callers: false,
        problems: LOGIN,
        ..BASE
    },
    Operation {
        method: Method::POST,
        path: "/bff/logout",
        id: "logout",
        tag: "people",
        summary: "End the login that the browser carries",
        replies: &[DONE],
        is_for_callers: false,
        problems: LOGIN,
        ..BASE
    },
    Operation {
        path: "/bff/admin/usage",
        id: "adminUsage",
        summary: "What everybody spent",
        query: &[
            Query {
                name: "since",
                is_required: false,
                about: "UTC days, today included: 1d to 366d; 7d when nothing is said.",
                schema: schemas::since,
            },
            Query {
                name: "format",
                is_required: false,
                about: "json or csv.",
                schema: schemas::shape,
            },
        ],
        replies: &[ok("By caller, UTC day and model.", &[(JSON, "Anything")])],
        problems: &[&INVALID_REQUEST],
        ..ADMINS
    },
    Operation {
        path: "/bff/admin/members",
        id: "adminMembers",
        summary: "Who may call",
        replies: &[ok("Names, roles, budgets, and what was spent.", &[(JSON, "Anything")])],
        ..ADMINS
    },
    Operation {
        path: "/bff/admin/jobs",
        id: "adminJobs",
        summary: "Everybody's latest jobs",
        replies: &[ok("The latest first.", &[(JSON, "Anything")])],
        ..ADMINS
    },
    Operation {
        path: "/bff/admin/billing",
        id: "adminBilling",
        summary: "The account, as the gateway tells it",
        replies: &[ok(
            "Balance and its course, keys by name, unknown outcomes.",
            &[(JSON, "Anything")],
        )],
        ..ADMINS
    },
];
