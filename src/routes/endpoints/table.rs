//! The table of endpoints, without those of features.

use std::future::ready;

use http::Method;

use super::{Endpoint, PAID, READ, SHARED};
use crate::downstream::route::{Auth, BodyKind, Class, DEFAULT_ROUTE, Route};
use crate::routes::{api, bff, pictures};

const LOGIN: Route = Route { method: Method::POST, signs_in: true, ..DEFAULT_ROUTE };

// Its texts are wider than rustfmt can lay out.
#[rustfmt::skip]
pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/chat", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(api::chat(cx)),
        operations: operations![operation("chat", "purchases", "Buy one chat reply")
            .request_body("ChatRequest")
            .ok("The gateway's reply, unchanged.", JSON, "ChatReply")],
    },
    Endpoint {
        route: Route { path: "/api/v1/video", body: BodyKind::VideoJson, ..PAID },
        handler: |cx| Box::pin(api::video(cx)),
        operations: operations![operation("video", "purchases", "Order one video")
            .description("It is charged when it is accepted, and cannot be cancelled. Follow it by its request_id.")
            .request_body("VideoRequest")
            .ok("The gateway's acceptance, unchanged.", JSON, "VideoAccepted")],
    },
    Endpoint {
        route: Route { path: "/api/v1/video/status", ..READ },
        handler: |cx| Box::pin(api::video_status(cx)),
        operations: operations![operation("videoStatus", "jobs", "Get the status of a job")
            .job_id()
            .ok("The gateway's latest status body, unchanged.", JSON, "Anything")
            .problems(&[JOB_PROBLEMS, GATEWAY_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/video/content", ..READ },
        handler: |cx| Box::pin(api::video_content(cx)),
        operations: operations![operation("videoContent", "jobs", "Get a finished video")
            .description("Supports ranges. Its address must be in page.media_origins, or the sandbox's.")
            .job_id()
            .ok("The video.", VIDEO, "Anything")
            .response(206, "A part of the video.", &[(VIDEO, "Anything")])
            .problems(&[JOB_PROBLEMS, &[&NOT_FOUND], GATEWAY_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/events", ..READ },
        handler: |cx| Box::pin(bff::events(cx)),
        operations: operations![operation("events", "jobs", "Stream changes of jobs")
            .description("Server-sent events: `job` for each change of a job, `problem` for each failure. In open \
                mode on a public address, name at least one job.")
            .job_ids()
            .ok("Events.", EVENTS, "Text")
            .response(204, "All jobs ended before Last-Event-ID.", &[])
            .problems(&[JOB_PROBLEMS, GATEWAY_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/jobs", ..READ },
        handler: |cx| Box::pin(bff::jobs(cx)),
        operations: operations![operation("jobs", "jobs", "List the caller's jobs")
            .job_ids()
            .ok("The latest first, at most 200.", JSON, "Jobs")
            .problems(&[JOB_PROBLEMS, GATEWAY_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/pictures", class: Class::Upload, body: BodyKind::Picture, ..PAID },
        handler: |cx| Box::pin(pictures::upload(cx)),
        operations: operations![operation("uploadPicture", "jobs", "Upload a starting picture")
            .description("Only with page.pictures. The picture must be one whole PNG, JPEG or WebP file.")
            .picture_body()
            .response(201, "Stored for 24 hours.", &[(JSON, "UploadedPicture")])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { path: pictures::PICTURES, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(pictures::download(cx)),
        operations: operations![operation("picture", "jobs", "Get a starting picture")
            .path_suffix("{id}")
            .ok("The picture.", PICTURE, "Anything")
            .problems(&[&[&NOT_FOUND, &ORIGIN_NOT_ALLOWED]])],
    },
    Endpoint {
        route: Route { path: "/bff/catalog", auth: Auth::Optional, ..SHARED },
        handler: |cx| Box::pin(bff::catalog(cx)),
        operations: operations![operation("catalog", "facts", "Get the price list")
            .description("It has the models that the caller may buy from.")
            .ok("Models, prices and limits.", JSON, "Catalog")],
    },
    Endpoint {
        route: Route { path: "/bff/me", ..READ },
        handler: |cx| Box::pin(async move { cx.handlers.me.report(&cx.call.caller, &cx.call.session).await }),
        operations: operations![operation("me", "facts", "Get the caller and what is left of its limits")
            .ok("Limits, budgets and, if visible, the balance.", JSON, "Me")],
    },
    Endpoint {
        route: Route { path: "/bff/usage", ..READ },
        handler: |cx| Box::pin(bff::usage(cx)),
        operations: operations![operation("usage", "facts", "Get the caller's spending")
            .days("Days up to today, such as 7d, or 24h; 7d by default.")
            .ok("By day and model.", JSON, "Usage")
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { path: "/bff/login", body: BodyKind::LoginJson, ..LOGIN },
        handler: |cx| Box::pin(bff::log_in(cx)),
        operations: operations![operation("login", "people", "Exchange a member's token for a session cookie")
            .description("Only with access.mode = \"members\". With the cookie, requests that change something need \
                the header `X-Tollgate: 1`.")
            .request_body("Login")
            .response(204, "The session cookie is set.", &[])
            .problems(&[LOGIN_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/logout", ..LOGIN },
        handler: |cx| Box::pin(bff::log_out(cx)),
        operations: operations![operation("logout", "people", "End the session")
            .response(204, "The session has ended.", &[])
            .response(200, "It has, and `continue` is where to end the one at the login service.", &[(JSON, "Anything")])
            .problems(&[LOGIN_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/healthz", ..DEFAULT_ROUTE },
        handler: |_| Box::pin(ready(Ok(bff::healthz()))),
        operations: operations![operation("healthz", "facts", "Check that the server is alive")
            .ok("The server is alive.", TEXT, "Text")],
    },
    #[cfg(feature = "openapi")]
    Endpoint {
        route: Route { path: "/bff/openapi.json", ..SHARED },
        handler: |cx| Box::pin(crate::routes::openapi::serve(cx)),
        operations: operations![operation("openapi", "facts", "Get this document")
            .ok("OpenAPI 3.1.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { path: "/problems/", ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(ready(bff::problem(cx.call.head.uri.path()))),
        operations: operations![operation("problem", "facts", "Explain a problem code")
            .path_suffix("{code}")
            .ok("An HTML page.", "text/html", "Text")
            .problems(&[&[&NOT_FOUND]])],
    },
];
