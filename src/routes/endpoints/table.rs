//! The table of endpoints.

use std::future::ready;

use http::Method;

use super::schemas::{one_of, range};
use super::{Endpoint, GATEWAY_PROBLEMS, JOB_PROBLEMS, LOGIN_PROBLEMS, operation};
use crate::downstream::route::{Auth, BodyKind, Class, CrossOrigin, DEFAULT_ROUTE, Route};
use crate::problem::{INVALID_REQUEST, NOT_FOUND, ORIGIN_NOT_ALLOWED};
use crate::routes::{api, bff, openai};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SCRIPT: &str = "text/javascript";
const TEXT: &str = "text/plain";
const VIDEO: &str = "video/mp4";

pub(super) const PAID: Route =
    Route { method: Method::POST, class: Class::Paid, auth: Auth::Caller, ..DEFAULT_ROUTE };
pub(super) const READ: Route = Route { class: Class::Read, auth: Auth::Caller, ..DEFAULT_ROUTE };
const ADMIN: Route = Route { auth: Auth::Admin, ..READ };
const LOGIN: Route = Route { method: Method::POST, ..DEFAULT_ROUTE };
const SHARED: Route = Route { cross_origin: CrossOrigin::Any, ..DEFAULT_ROUTE };

// Its texts are wider than rustfmt can lay out.
#[rustfmt::skip]
pub static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/chat", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(api::chat(cx)),
        operations: || vec![operation("chat", "purchases", "Buy one chat reply")
            .request_body("ChatRequest")
            .ok("The gateway's reply, unchanged.", JSON, "ChatReply")],
    },
    Endpoint {
        route: Route { path: "/api/v1/video", body: BodyKind::VideoJson, ..PAID },
        handler: |cx| Box::pin(api::video(cx)),
        operations: || vec![operation("video", "purchases", "Order one video")
            .description("It is charged when it is accepted, and cannot be cancelled. Follow it by its request_id.")
            .request_body("VideoRequest")
            .ok("The gateway's acceptance, unchanged.", JSON, "VideoAccepted")],
    },
    Endpoint {
        route: Route { path: "/api/v1/video/status", ..READ },
        handler: |cx| Box::pin(api::video_status(cx)),
        operations: || vec![operation("videoStatus", "jobs", "Get the status of a job")
            .job_id()
            .ok("The gateway's latest status body, unchanged.", JSON, "Anything")
            .problems(&[JOB_PROBLEMS, GATEWAY_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/video/content", ..READ },
        handler: |cx| Box::pin(api::video_content(cx)),
        operations: || vec![operation("videoContent", "jobs", "Get a finished video")
            .description("Supports ranges. Its address must be in page.media_origins, or the sandbox's.")
            .job_id()
            .ok("The video.", VIDEO, "Anything")
            .response(206, "A part of the video.", &[(VIDEO, "Anything")])
            .problems(&[JOB_PROBLEMS, &[&NOT_FOUND], GATEWAY_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/events", ..READ },
        handler: |cx| Box::pin(bff::events(cx)),
        operations: || vec![operation("events", "jobs", "Stream changes of jobs")
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
        operations: || vec![operation("jobs", "jobs", "List the caller's jobs")
            .job_ids()
            .ok("The latest first, at most 200.", JSON, "Jobs")
            .problems(&[JOB_PROBLEMS, GATEWAY_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/catalog", ..SHARED },
        handler: |cx| Box::pin(bff::catalog(cx)),
        operations: || vec![operation("catalog", "facts", "Get the price list")
            .ok("Models, prices and limits.", JSON, "Catalog")],
    },
    Endpoint {
        route: Route { path: "/bff/me", ..READ },
        handler: |cx| Box::pin(async move { cx.handlers.me.report(&cx.call.caller, &cx.call.session).await }),
        operations: || vec![operation("me", "facts", "Get the caller and what is left of its limits")
            .ok("Limits, budgets and, if visible, the balance.", JSON, "Me")],
    },
    Endpoint {
        route: Route { path: "/bff/usage", ..READ },
        handler: |cx| Box::pin(bff::usage(cx)),
        operations: || vec![operation("usage", "facts", "Get the caller's spending")
            .days("Days up to today, such as 7d, or 24h; 7d by default.")
            .ok("By day and model.", JSON, "Usage")
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { path: "/v1/models", ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(openai::models(cx)),
        operations: || vec![operation("openaiModels", "openai", "List chat and video models")
            .ok("A list.", JSON, "OpenAiList")
            .problems(&[&[&ORIGIN_NOT_ALLOWED]])],
    },
    Endpoint {
        route: Route { path: "/v1/models/", ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(openai::model(cx)),
        operations: || vec![operation("openaiModel", "openai", "Get one model")
            .path_suffix("{model}")
            .ok("The model.", JSON, "OpenAiObject")
            .problems(&[&[&NOT_FOUND, &ORIGIN_NOT_ALLOWED]])],
    },
    Endpoint {
        route: Route { path: "/v1/chat/completions", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(openai::chat::buy(cx)),
        operations: || vec![operation("openaiChat", "openai", "Buy one chat reply")
            .description("Tollgate-Ignored names fields that the gateway does not support. Retries of SDKs need no \
                Idempotency-Key: they join the first call or get its reply.")
            .request_body("OpenAiChatRequest")
            .response(
                200,
                "A chat completion. With `stream: true`, its chunks as server-sent events, the last with the \
                 cost, and then `data: [DONE]`. A problem after the first byte is an event with `error`, without \
                 `[DONE]`. A stream that begins before the outcome is known has no Tollgate-Cost.",
                &[(JSON, "OpenAiObject"), (EVENTS, "Text")],
            )],
    },
    Endpoint {
        route: Route { path: "/v1/videos", body: BodyKind::VideoForm, ..PAID },
        handler: |cx| Box::pin(openai::videos::buy(cx)),
        operations: || vec![operation("openaiVideo", "openai", "Order one video")
            .description("A form (multipart/form-data) needs an Authorization header.")
            .request_body("OpenAiVideoRequest")
            .ok("The job.", JSON, "OpenAiObject")],
    },
    Endpoint {
        route: Route { path: "/v1/videos", ..READ },
        handler: |cx| Box::pin(openai::videos::list(cx)),
        operations: || vec![operation("openaiVideos", "openai", "List the caller's latest jobs")
            .query("limit", "1 to 100.", range(1, 100))
            .query("order", "Sort order by age.", one_of(["asc", "desc"]))
            .ok("A list.", JSON, "OpenAiList")
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { path: "/v1/videos/", ..READ },
        handler: |cx| Box::pin(openai::videos::get(cx)),
        operations: || vec![
            operation("openaiVideoNamed", "openai", "Get the status of a video")
                .path_suffix("{id}")
                .ok("The job.", JSON, "OpenAiObject")
                .problems(&[JOB_PROBLEMS, GATEWAY_PROBLEMS]),
            operation("openaiVideoContent", "openai", "Get a finished video")
                .path_suffix("{id}/content")
                .ok("The video.", VIDEO, "Anything")
                .problems(&[JOB_PROBLEMS, &[&NOT_FOUND], GATEWAY_PROBLEMS]),
        ],
    },
    Endpoint {
        route: Route { path: "/bff/login", body: BodyKind::LoginJson, ..LOGIN },
        handler: |cx| Box::pin(bff::log_in(cx)),
        operations: || vec![operation("login", "people", "Exchange a member's token for a session cookie")
            .description("Only with access.mode = \"members\". With the cookie, requests that change something need \
                the header `X-Tollgate: 1`.")
            .request_body("Login")
            .response(204, "The session cookie is set.", &[])
            .problems(&[LOGIN_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/logout", ..LOGIN },
        handler: |cx| Box::pin(bff::log_out(cx)),
        operations: || vec![operation("logout", "people", "End the session")
            .response(204, "The session has ended.", &[])
            .problems(&[LOGIN_PROBLEMS])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/usage", ..ADMIN },
        handler: |cx| Box::pin(bff::admin_usage(cx)),
        operations: || vec![operation("adminUsage", "admins", "Get the spending of all callers")
            .days("Days up to today: 1d to 366d; 7d by default.")
            .query("format", "json or csv.", one_of(["json", "csv"]))
            .ok("By caller, day and model.", JSON, "Anything")
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/members", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_members().await }),
        operations: || vec![operation("adminMembers", "admins", "List members")
            .ok("Names, roles, budgets and spending.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { path: "/bff/admin/jobs", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.handlers.reports.admin_jobs().await }),
        operations: || vec![operation("adminJobs", "admins", "List the latest jobs of all callers")
            .ok("The latest first.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { path: "/bff/admin/billing", ..ADMIN },
        handler: |cx| Box::pin(async move { cx.report(cx.handlers.reports.admin_billing()).await }),
        operations: || vec![operation("adminBilling", "admins", "Get the gateway account")
            .ok("Balances, keys by name, unknown outcomes.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { path: "/healthz", ..DEFAULT_ROUTE },
        handler: |_| Box::pin(ready(Ok(bff::healthz()))),
        operations: || vec![operation("healthz", "facts", "Check that the server is alive")
            .ok("The server is alive.", TEXT, "Text")],
    },
    Endpoint {
        route: Route { path: "/bff/client.js", ..SHARED },
        handler: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: || vec![operation("client", "embedding", "Get the browser client")
            .ok("The module.", SCRIPT, "Text")],
    },
    Endpoint {
        route: Route { path: "/bff/client.d.ts", ..SHARED },
        handler: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: || vec![operation("clientTypes", "embedding", "Get the client's TypeScript types")
            .ok("The types.", TEXT, "Text")],
    },
    Endpoint {
        route: Route { path: "/bff/widgets.js", ..SHARED },
        handler: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: || vec![operation("widgets", "embedding", "Get the widgets")
            .ok("The module.", SCRIPT, "Text")],
    },
    Endpoint {
        route: Route { path: "/bff/widgets/", ..SHARED },
        handler: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: || vec![operation("widgetModule", "embedding", "Get a module of the widgets")
            .path_suffix("{name}")
            .ok("The module.", SCRIPT, "Text")
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { path: "/bff/openapi.json", ..SHARED },
        handler: |cx| Box::pin(bff::openapi(cx)),
        operations: || vec![operation("openapi", "facts", "Get this document")
            .ok("OpenAPI 3.1.", JSON, "Anything")],
    },
    Endpoint {
        route: Route { path: "/problems/", ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(ready(bff::problem(cx.call.head.uri.path()))),
        operations: || vec![operation("problem", "facts", "Explain a problem code")
            .path_suffix("{code}")
            .ok("An HTML page.", "text/html", "Text")
            .problems(&[&[&NOT_FOUND]])],
    },
];
