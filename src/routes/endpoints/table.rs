//! The rows.

use std::future::ready;

use http::{Method, StatusCode};

use super::{Endpoint, OF_GATEWAY, OF_JOBS, OF_LOGINS, Query, Reply, may, ok, op, schemas};
use crate::downstream::route::{BASE, Class, Needs, Pages, Route, Takes};
use crate::problem::{
    FORBIDDEN, INVALID_REQUEST, LEDGER_UNAVAILABLE, NOT_FOUND, ORIGIN_NOT_ALLOWED,
};
use crate::routes::{api, bff, openai};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SCRIPT: &str = "text/javascript";
const TEXT: &str = "text/plain";

pub(super) const PAID: Route =
    Route { method: Method::POST, class: Class::Paid, needs: Needs::Caller, ..BASE };
pub(super) const READ: Route = Route { class: Class::Read, needs: Needs::Caller, ..BASE };
const ADMIN: Route = Route { needs: Needs::Admin, ..READ };
const LOGIN: Route = Route { method: Method::POST, ..BASE };

const ONE_JOB: Query = Query {
    name: "request_id",
    is_required: true,
    about: "The job, as the order was answered with.",
    schema: schemas::request_id,
};
const SOME_JOBS: Query =
    may("request_id", "The jobs, repeatable; without it the caller's own.", || {
        schemas::list(schemas::request_id())
    });

const DONE: Reply = Reply { status: StatusCode::NO_CONTENT, ..ok("Done.", &[]) };
/// Every endpoint. What is in none of these rows is the page's, or nobody's.
pub static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/api/v1/chat", takes: Takes::ChatJson, ..PAID },
        about: "Buys one chat reply: `model` and `messages`. Returns the gateway's reply, unchanged.",
        answer: |cx| Box::pin(api::chat(cx)),
        operations: &[op("chat", "purchases", "Buy one chat reply")
            .takes(&[(JSON, "ChatRequest")])
            .replies(&[ok("The gateway's reply, unchanged.", &[(JSON, "ChatReply")])])],
    },
    Endpoint {
        route: Route { path: "/api/v1/video", takes: Takes::VideoJson, ..PAID },
        about: "Orders one video: `prompt`, and optionally `model`, `duration`, `aspect_ratio`, `image_url`. If \
            the model ignores the ratio, `Tollgate-Ignored` names it.",
        answer: |cx| Box::pin(api::video(cx)),
        operations: &[op("video", "purchases", "Order one video")
            .about("It is charged when it is accepted, and cannot be cancelled. Follow it by its request_id.")
            .takes(&[(JSON, "VideoRequest")])
            .replies(&[ok("The gateway's acceptance, unchanged.", &[(JSON, "VideoAccepted")])])],
    },
    Endpoint {
        route: Route { path: "/api/v1/video/status", ..READ },
        about: "Returns the gateway's latest status of a job (`?request_id=`), unchanged; while clients ask, at \
            most 5 s old. Only for jobs that were ordered here.",
        answer: |cx| Box::pin(api::video_status(cx)),
        operations: &[op("videoStatus", "jobs", "How far a job is")
            .query(&[ONE_JOB])
            .replies(&[ok("The gateway's latest status body, unchanged.", &[(JSON, "Anything")])])
            .problems(&[OF_JOBS, OF_GATEWAY])],
    },
    Endpoint {
        route: Route { path: "/bff/video/content", ..READ },
        about: "Returns a finished video (`?request_id=`) from this origin, with ranges, if its address is in \
            `page.media_origins` or the sandbox's.",
        answer: |cx| Box::pin(api::video_content(cx)),
        operations: &[op("videoContent", "jobs", "The finished video")
            .about("Ranges are answered. Only videos on page.media_origins, or the sandbox's, are fetched.")
            .query(&[ONE_JOB])
            .replies(&[
                ok("The video.", &[("video/mp4", "Anything")]),
                Reply {
                    status: StatusCode::PARTIAL_CONTENT,
                    ..ok("A part of the video.", &[("video/mp4", "Anything")])
                },
            ])
            .problems(&[OF_JOBS, &[&NOT_FOUND], OF_GATEWAY])],
    },
    Endpoint {
        route: Route { path: "/bff/events", ..READ },
        about: "Streams [events](#events) of up to 50 jobs (`?request_id=`, repeatable), or of all open jobs of \
            the caller.",
        answer: |cx| Box::pin(bff::events(cx)),
        operations: &[op("events", "jobs", "What becomes of jobs, as it happens")
            .about("Server-sent events: `job` for each change of a job, `problem` for what goes wrong. At least \
                one job has to be named where an address is no identity.")
            .query(&[SOME_JOBS])
            .replies(&[
                ok("Events.", &[(EVENTS, "Text")]),
                Reply {
                    status: StatusCode::NO_CONTENT,
                    ..ok("All of them have ended, and Last-Event-ID knows it.", &[])
                },
            ])
            .problems(&[OF_JOBS, OF_GATEWAY])],
    },
    Endpoint {
        route: Route { path: "/bff/jobs", ..READ },
        about: "Lists the caller's latest jobs, or those named by `?request_id=`, with price and latest status.",
        answer: |cx| Box::pin(bff::jobs(cx)),
        operations: &[op("jobs", "jobs", "The caller's jobs")
            .query(&[SOME_JOBS])
            .replies(&[ok("The latest first, at most 200.", &[(JSON, "Jobs")])])
            .problems(&[OF_JOBS, OF_GATEWAY])],
    },
    Endpoint {
        route: Route { path: "/bff/catalog", pages: Pages::Any, ..BASE },
        about: "The price list: models with prices and rules, limits, sandbox or live, and how long the server \
            keeps an `Idempotency-Key` (`replay`).",
        answer: |cx| Box::pin(bff::catalog(cx)),
        operations: &[op("catalog", "facts", "The price list")
            .replies(&[ok("Models, prices and the rules of forms.", &[(JSON, "Catalog")])])],
    },
    Endpoint {
        route: Route { path: "/bff/me", ..READ },
        about: "The caller, and what is left of its limits and budgets; the account's balance, if the caller may \
            see it. Uses up none of them.",
        answer: |cx| Box::pin(async move { cx.handlers.me.of(&cx.call.caller, &cx.call.standing).await }),
        operations: &[op("me", "facts", "Who is calling, and what is left to it")
            .replies(&[ok(
                "Limits, budgets and, where it may be seen, the balance.",
                &[(JSON, "Me")],
            )])
            .problems(&[&[&LEDGER_UNAVAILABLE]])],
    },
    Endpoint {
        route: Route { path: "/bff/usage", ..READ },
        about: "What the caller spent, by UTC day and model: `?since=7d`, up to `31d`. 403 in open mode on a \
            public address.",
        answer: |cx| Box::pin(bff::usage(cx)),
        operations: &[op("usage", "facts", "What the caller has spent")
            .query(&[may(
                "since",
                "How far back: 7d, or 24h; 7d when nothing is said.",
                schemas::since,
            )])
            .replies(&[ok("By UTC day and model.", &[(JSON, "Usage")])])
            .problems(&[&[&FORBIDDEN, &INVALID_REQUEST, &LEDGER_UNAVAILABLE]])],
    },
    Endpoint {
        route: Route { path: "/v1/models", ..BASE },
        about: "Lists chat and video models in [OpenAI's format](../guide/openai.md#models).",
        answer: |cx| Box::pin(ready(Ok(openai::models(&cx.handlers.rules.catalog)))),
        operations: &[op("openaiModels", "openai", "The models, chats and videos")
            .replies(&[ok("A list.", &[(JSON, "OpenAiList")])])
            .problems(&[&[&ORIGIN_NOT_ALLOWED]])],
    },
    Endpoint {
        route: Route { path: "/v1/models/", ..BASE },
        about: "One model, in the same format.",
        answer: |cx| {
            let path = cx.call.head.uri.path();
            Box::pin(ready(openai::model(&cx.handlers.rules.catalog, path)))
        },
        operations: &[op("openaiModel", "openai", "One model")
            .below("{model}")
            .replies(&[ok("The model.", &[(JSON, "OpenAiObject")])])
            .problems(&[&[&NOT_FOUND, &ORIGIN_NOT_ALLOWED]])],
    },
    Endpoint {
        route: Route { path: "/v1/chat/completions", takes: Takes::ChatJson, ..PAID },
        about: "Buys one chat reply in OpenAI's format, whole or streamed.",
        answer: |cx| Box::pin(openai::chat::buy(cx)),
        operations: &[op("openaiChat", "openai", "Buy one chat reply")
            .about("Fields that mean nothing to the gateway are named in Tollgate-Ignored. An SDK's repeats need \
                no Idempotency-Key: they join the first call, or have its answer.")
            .takes(&[(JSON, "OpenAiChatRequest")])
            .replies(&[ok(
                "A chat completion; with `stream: true` its chunks as server-sent events, the last of which has the \
                 price in its data, and then `data: [DONE]`. A problem after the beginning is an event with `error`, \
                 and the end without `[DONE]`. A stream that begins before the outcome is known has no Tollgate-Cost.",
                &[(JSON, "OpenAiObject"), (EVENTS, "Text")],
            )])],
    },
    Endpoint {
        route: Route { path: "/v1/videos", takes: Takes::VideoForm, ..PAID },
        about: "Orders one video in OpenAI's format, as JSON or a form.",
        answer: |cx| Box::pin(openai::videos::buy(cx)),
        operations: &[op("openaiVideo", "openai", "Order one video")
            .about("As a form (multipart/form-data) only with an Authorization header.")
            .takes(&[(JSON, "OpenAiVideoRequest")])
            .replies(&[ok("The job.", &[(JSON, "OpenAiObject")])])],
    },
    Endpoint {
        route: Route { path: "/v1/videos", ..READ },
        about: "Lists the caller's latest jobs in OpenAI's format.",
        answer: |cx| Box::pin(openai::videos::list(cx)),
        operations: &[op("openaiVideos", "openai", "The caller's latest jobs")
            .query(&[
                may("limit", "1 to 100.", || {
 schemas::integer().minimum(Some(1)).maximum(Some(100)).into()
}),
                may("order", "By age.", || schemas::one_of(["asc", "desc"])),
            ])
            .replies(&[ok("A list.", &[(JSON, "OpenAiList")])])
            .problems(&[&[&INVALID_REQUEST, &FORBIDDEN]])],
    },
    Endpoint {
        route: Route { path: "/v1/videos/", ..READ },
        about: "One job; with `/content` below it, the finished video.",
        answer: |cx| Box::pin(openai::videos::named(cx)),
        operations: &[
            op("openaiVideoNamed", "openai", "How far a video is")
            .below("{id}")
            .replies(&[ok("The job.", &[(JSON, "OpenAiObject")])])
            .problems(&[OF_JOBS, OF_GATEWAY]),
            op("openaiVideoContent", "openai", "The finished video")
            .below("{id}/content")
            .replies(&[ok("The video.", &[("video/mp4", "Anything")])])
            .problems(&[OF_JOBS, &[&NOT_FOUND], OF_GATEWAY]),
        ],
    },
    Endpoint {
        route: Route { path: "/bff/login", takes: Takes::LoginJson, ..LOGIN },
        about: "With `access.mode = \"members\"`: turns `{\"token\": \"tg_…\"}` into a [session \
            cookie](../guide/callers.md#sessions).",
        answer: |cx| Box::pin(bff::log_in(cx)),
        operations: &[op("login", "people", "Turn a member's token into a browser's cookie")
            .about("With access.mode = \"members\" alone. With the cookie, whatever changes something needs the \
                header `X-Tollgate: 1`.")
            .takes(&[(JSON, "Login")])
            .replies(&[DONE])
            .problems(&[OF_LOGINS])],
    },
    Endpoint {
        route: Route { path: "/bff/logout", ..LOGIN },
        about: "Ends the session.",
        answer: |cx| Box::pin(bff::log_out(cx)),
        operations: &[op("logout", "people", "End the login that the browser carries")
            .replies(&[DONE])
            .problems(&[OF_LOGINS])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/usage", ..ADMIN },
        about: "For [admins](#admin-reports): spending by caller, UTC day and model: `?since=7d`, up to `366d`, \
            `&format=csv`.",
        answer: |cx| Box::pin(bff::admin_usage(cx)),
        operations: &[op("adminUsage", "admins", "What everybody spent")
            .query(&[
                may(
                    "since",
                    "UTC days, today included: 1d to 366d; 7d when nothing is said.",
                    schemas::since,
                ),
                may("format", "json or csv.", || schemas::one_of(["json", "csv"])),
            ])
            .replies(&[ok("By caller, UTC day and model.", &[(JSON, "Anything")])])
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/members", ..ADMIN },
        about: "For admins: members with budgets and spending of today and this month.",
        answer: |cx| Box::pin(async move { cx.handlers.reports.members().await }),
        operations: &[op("adminMembers", "admins", "Who may call")
            .replies(&[ok("Names, roles, budgets, and what was spent.", &[(JSON, "Anything")])])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/jobs", ..ADMIN },
        about: "For admins: the latest jobs of all callers.",
        answer: |cx| Box::pin(async move { cx.handlers.reports.jobs_of_all().await }),
        operations: &[op("adminJobs", "admins", "Everybody's latest jobs")
            .replies(&[ok("The latest first.", &[(JSON, "Anything")])])],
    },
    Endpoint {
        route: Route { path: "/bff/admin/billing", ..ADMIN },
        about: "For admins: the gateway account, its keys by name, its balance over time, unknown outcomes.",
        answer: |cx| Box::pin(async move { cx.report(cx.handlers.reports.account()).await }),
        operations: &[op("adminBilling", "admins", "The account, as the gateway tells it")
            .replies(&[ok(
                "Balance and its course, keys by name, unknown outcomes.",
                &[(JSON, "Anything")],
            )])],
    },
    Endpoint {
        route: Route { path: "/healthz", ..BASE },
        about: "Returns `ok`, for any Host.",
        answer: |_| Box::pin(ready(Ok(bff::alive()))),
        operations: &[op("healthz", "facts", "Alive")
            .replies(&[ok("It is.", &[(TEXT, "Text")])])],
    },
    Endpoint {
        route: Route { path: "/bff/client.js", pages: Pages::Any, ..BASE },
        about: "The [browser client](../guide/web.md#the-client): one ES module without imports.",
        answer: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: &[op("client", "embedding", "A client for web pages: one module without imports")
            .replies(&[ok("The module.", &[(SCRIPT, "Text")])])],
    },
    Endpoint {
        route: Route { path: "/bff/client.d.ts", pages: Pages::Any, ..BASE },
        about: "The client's TypeScript types.",
        answer: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: &[op("clientTypes", "embedding", "The client's types, for TypeScript")
            .replies(&[ok("The types.", &[(TEXT, "Text")])])],
    },
    Endpoint {
        route: Route { path: "/bff/widgets.js", pages: Pages::Any, ..BASE },
        about: "The widgets `<tollgate-chat>` and `<tollgate-video>`, as custom elements.",
        answer: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: &[op("widgets", "embedding", "The widgets tollgate-chat and tollgate-video")
            .replies(&[ok("The module.", &[(SCRIPT, "Text")])])],
    },
    Endpoint {
        route: Route { path: "/bff/widgets/", pages: Pages::Any, ..BASE },
        about: "Modules that the widgets load.",
        answer: |cx| Box::pin(ready(bff::shared_file(&cx.call.head))),
        operations: &[op("widgetModule", "embedding", "A module that the widgets load")
            .below("{name}")
            .replies(&[ok("The module.", &[(SCRIPT, "Text")])])
            .problems(&[&[&NOT_FOUND]])],
    },
    Endpoint {
        route: Route { path: "/bff/openapi.json", pages: Pages::Any, ..BASE },
        about: "This API as an OpenAPI 3.1 document, readable from any page. `tollgate openapi` prints it, too.",
        answer: |cx| Box::pin(bff::openapi(cx)),
        operations: &[op("openapi", "facts", "This document")
            .replies(&[ok("OpenAPI 3.1.", &[(JSON, "Anything")])])],
    },
    Endpoint {
        route: Route { path: "/problems/", ..BASE },
        about: "Explains a problem code.",
        answer: |cx| Box::pin(ready(bff::problem(cx.call.head.uri.path()))),
        operations: &[op("problem", "facts", "A kind of problem, explained")
            .below("{code}")
            .replies(&[ok("A page for people.", &[("text/html", "Text")])])
            .problems(&[&[&NOT_FOUND]])],
    },
];
