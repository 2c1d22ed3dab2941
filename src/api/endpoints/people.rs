//! The endpoints of people who sign in at a login service.

use http::Method;

use super::{Endpoint, READ};
use crate::api::{login, tokens};
use crate::gate::route::{Auth, BodyKind, CrossOrigin, DEFAULT_ROUTE, Route};

const OWN: Route = Route { cross_origin: CrossOrigin::Own, ..READ };
const CHANGE: Route = Route { auth: Auth::Caller, cross_origin: CrossOrigin::Own, ..DEFAULT_ROUTE };

pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: login::LOGIN, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(login::begin(cx)),
    },
    Endpoint {
        route: Route { path: login::CALLBACK, signs_in: true, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(login::finish(cx)),
    },
    Endpoint {
        route: Route { path: tokens::TOKENS, ..OWN },
        handler: |cx| Box::pin(tokens::list(cx)),
    },
    Endpoint {
        route: Route {
            method: Method::POST,
            path: tokens::TOKENS,
            body: BodyKind::LoginJson,
            ..CHANGE
        },
        handler: |cx| Box::pin(tokens::add(cx)),
    },
    Endpoint {
        route: Route { method: Method::DELETE, path: tokens::TOKEN, ..CHANGE },
        handler: |cx| Box::pin(tokens::remove(cx)),
    },
];
