//! The table of endpoints, without those of features.

use std::future::ready;

use http::Method;

use super::{Endpoint, PAID, READ, SHARED};
use crate::api::{bff, passthrough, pictures, proof};
use crate::gate::route::{Auth, BodyKind, Class, DEFAULT_ROUTE, Route};

const LOGIN: Route = Route { method: Method::POST, signs_in: true, ..DEFAULT_ROUTE };

pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/chat", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(passthrough::chat(cx)),
    },
    Endpoint {
        route: Route { path: "/api/v1/video", body: BodyKind::VideoJson, ..PAID },
        handler: |cx| Box::pin(passthrough::video(cx)),
    },
    Endpoint {
        route: Route { path: "/api/v1/video/status", ..READ },
        handler: |cx| Box::pin(passthrough::video_status(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/video/content", ..READ },
        handler: |cx| Box::pin(passthrough::video_content(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/events", ..READ },
        handler: |cx| Box::pin(bff::events(cx)),
    },
    Endpoint { route: Route { path: "/bff/jobs", ..READ }, handler: |cx| Box::pin(bff::jobs(cx)) },
    Endpoint {
        route: Route {
            path: "/bff/pictures",
            class: Class::Upload,
            body: BodyKind::Picture,
            ..PAID
        },
        handler: |cx| Box::pin(pictures::upload(cx)),
    },
    Endpoint {
        route: Route { path: pictures::PICTURES, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(pictures::download(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/catalog", auth: Auth::Optional, ..SHARED },
        handler: |cx| Box::pin(bff::catalog(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/me", ..READ },
        handler: |cx| {
            Box::pin(async move { cx.handlers.me.report(&cx.call.caller, &cx.call.session).await })
        },
    },
    Endpoint {
        route: Route { path: "/bff/proof", ..READ },
        handler: |cx| Box::pin(proof::challenge(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/usage", ..READ },
        handler: |cx| Box::pin(bff::usage(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/login", body: BodyKind::LoginJson, ..LOGIN },
        handler: |cx| Box::pin(bff::log_in(cx)),
    },
    Endpoint {
        route: Route { path: "/bff/logout", ..LOGIN },
        handler: |cx| Box::pin(bff::log_out(cx)),
    },
    Endpoint {
        route: Route { path: "/healthz", ..DEFAULT_ROUTE },
        handler: |_| Box::pin(ready(Ok(bff::healthz()))),
    },
    #[cfg(feature = "openapi")]
    Endpoint {
        route: Route { path: "/bff/openapi.json", ..SHARED },
        handler: |cx| Box::pin(crate::api::openapi::serve(cx)),
    },
    Endpoint {
        route: Route { path: "/problems/", ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(ready(bff::problem(cx.call.head.uri.path()))),
    },
];
