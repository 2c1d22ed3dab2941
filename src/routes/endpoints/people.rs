//! The endpoints of people who sign in at a login service.

use http::Method;

use super::{Endpoint, READ};
use crate::downstream::route::{Auth, BodyKind, CrossOrigin, DEFAULT_ROUTE, Route};
use crate::routes::{login, tokens};

const OWN: Route = Route { cross_origin: CrossOrigin::Own, ..READ };
const CHANGE: Route = Route { auth: Auth::Caller, cross_origin: CrossOrigin::Own, ..DEFAULT_ROUTE };

// Its texts are wider than rustfmt can lay out.
#[rustfmt::skip]
pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: login::LOGIN, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(login::begin(cx)),
        operations: operations![operation("loginRedirect", "people", "Sign in at the login service")
            .description("For browsers, with access.mode = \"oidc\". Failures are pages.")
            .query("return", "The path to return to; by default the start page.", "Text")
            .response(303, "The login service.", &[])
            .problems(&[&[&FORBIDDEN, &NOT_FOUND, &LOGIN_UNAVAILABLE]])],
    },
    Endpoint {
        route: Route { path: login::CALLBACK, signs_in: true, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(login::finish(cx)),
        operations: operations![operation("loginCallback", "people", "Come back from the login service")
            .description("For browsers, with access.mode = \"oidc\". Failures are pages.")
            .response(303, "The session cookie is set.", &[])
            .problems(&[&[&LOGIN_EXPIRED, &FORBIDDEN, &NOT_FOUND, &LOGIN_UNAVAILABLE, &LEDGER_UNAVAILABLE]])],
    },
    Endpoint {
        route: Route { path: tokens::TOKENS, ..OWN },
        handler: |cx| Box::pin(tokens::list(cx)),
        operations: operations![operation("tokens", "people", "List one's own tokens")
            .description("With access.mode = \"oidc\", and a session cookie only.")
            .ok("The tokens, without their text.", JSON, "Anything")
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { method: Method::POST, path: tokens::TOKENS, body: BodyKind::LoginJson, ..CHANGE },
        handler: |cx| Box::pin(tokens::add(cx)),
        operations: operations![operation("addToken", "people", "Make a token for a program")
            .description("With access.mode = \"oidc\", and a session cookie only. It works until the end of the day \
                `until`, at most 365 days.")
            .request_body("NewToken")
            .response(201, "The token, which is shown once.", &[(JSON, "Anything")])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { method: Method::DELETE, path: tokens::TOKEN, ..CHANGE },
        handler: |cx| Box::pin(tokens::remove(cx)),
        operations: operations![operation("removeToken", "people", "Revoke one of one's own tokens")
            .description("With access.mode = \"oidc\", and a session cookie only.")
            .response(204, "The token has ended.", &[])
            .problems(&[&[&NOT_FOUND]])],
    },
];
