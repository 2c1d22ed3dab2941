//! The endpoints of OpenAI's API.

use super::{Endpoint, PAID, READ};
use crate::downstream::route::{Auth, BodyKind, DEFAULT_ROUTE, Route};
use crate::routes::openai;

// Its texts are wider than rustfmt can lay out.
#[rustfmt::skip]
pub(super) static ROWS: &[Endpoint] = &[
    Endpoint {
        route: Route { path: "/v1/models", auth: Auth::Optional, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(openai::models(cx)),
        operations: operations![operation("openaiModels", "openai", "List the models that the caller may buy from")
            .ok("A list.", JSON, "OpenAiList")
            .problems(&[&[&ORIGIN_NOT_ALLOWED]])],
    },
    Endpoint {
        route: Route { path: "/v1/models/", auth: Auth::Optional, ..DEFAULT_ROUTE },
        handler: |cx| Box::pin(openai::model(cx)),
        operations: operations![operation("openaiModel", "openai", "Get one model")
            .path_suffix("{model}")
            .ok("The model.", JSON, "OpenAiObject")
            .problems(&[&[&NOT_FOUND, &ORIGIN_NOT_ALLOWED]])],
    },
    Endpoint {
        route: Route { path: "/v1/chat/completions", body: BodyKind::ChatJson, ..PAID },
        handler: |cx| Box::pin(openai::chat::buy(cx)),
        operations: operations![operation("openaiChat", "openai", "Buy one chat reply")
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
        operations: operations![operation("openaiVideo", "openai", "Order one video")
            .description("A form (multipart/form-data) needs an Authorization header.")
            .request_body("OpenAiVideoRequest")
            .ok("The job.", JSON, "OpenAiObject")],
    },
    Endpoint {
        route: Route { path: "/v1/videos", ..READ },
        handler: |cx| Box::pin(openai::videos::list(cx)),
        operations: operations![operation("openaiVideos", "openai", "List the caller's latest jobs")
            .query("limit", "1 to 100.", range(1, 100))
            .query("order", "Sort order by age.", one_of(["asc", "desc"]))
            .ok("A list.", JSON, "OpenAiList")
            .problems(&[&[&INVALID_REQUEST]])],
    },
    Endpoint {
        route: Route { path: "/v1/videos/", ..READ },
        handler: |cx| Box::pin(openai::videos::get(cx)),
        operations: operations![
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
];
