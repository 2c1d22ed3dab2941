//! What the document says of OpenAI's dialect.

use http::Method;

use super::operations::{
    BASE, EVENTS, JSON, OF_JOBS, OF_VIDEO, Operation, PURCHASE, Query, Refuses, ok,
};
use super::schemas;
use crate::problem::{FORBIDDEN, INVALID_REQUEST, NOT_FOUND, ORIGIN_NOT_ALLOWED};

const DIALECT: Operation = Operation { tag: "openai", refuses: Refuses::OpenAi, ..BASE };

/// Every row.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        path: "/v1/models",
        id: "openaiModels",
        summary: "The models, chats and videos",
        replies: &[ok("A list.", &[(JSON, "OpenAiList")])],
        is_for_callers: false,
        problems: &[&ORIGIN_NOT_ALLOWED],
        ..DIALECT
    },
    Operation {
        path: "/v1/models/{model}",
        id: "openaiModel",
        summary: "One model",
        replies: &[ok("The model.", &[(JSON, "OpenAiObject")])],
        is_for_callers: false,
        problems: &[&NOT_FOUND, &ORIGIN_NOT_ALLOWED],
        ..DIALECT
    },
    Operation {
        method: Method::POST,
        path: "/v1/chat/completions",
        id: "openaiChat",
        summary: "Buy one chat reply",
        about: "Fields that mean nothing to the gateway are named in Tollgate-Ignored. An SDK's repeats need no Idempotency-Key: \
                they join the first call, or have its answer.",
        is_paid: true,
        takes: &[(JSON, "OpenAiChatRequest")],
        replies: &[ok(
            "A chat completion; with `stream: true` its chunks as server-sent events, the last of which has the toll in its \
             data, and then `data: [DONE]`. A problem after the beginning is an event with `error`, and the end without \
             `[DONE]`. A stream that begins before the outcome is known has no Tollgate-Toll.",
            &[(JSON, "OpenAiObject"), (EVENTS, "Text")],
        )],
        problems: PURCHASE,
        ..DIALECT
    },
    Operation {
        method: Method::POST,
        path: "/v1/videos",
        id: "openaiVideo",
        summary: "Order one video",
        about: "As a form (multipart/form-data) only with an Authorization header.",
        is_paid: true,
        takes: &[(JSON, "OpenAiVideoRequest")],
        replies: &[ok("The job.", &[(JSON, "OpenAiObject")])],
        problems: PURCHASE,
        ..DIALECT
    },
    Operation {
        path: "/v1/videos",
        id: "openaiVideos",
        summary: "The caller's latest jobs",
        query: &[
            Query { name: "limit", is_required: false, about: "1 to 100.", schema: schemas::limit },
            Query { name: "order", is_required: false, about: "By age.", schema: schemas::order },
        ],
        replies: &[ok("A list.", &[(JSON, "OpenAiList")])],
        problems: &[&INVALID_REQUEST, &FORBIDDEN],
        ..DIALECT
    },
    Operation {
        path: "/v1/videos/{id}",
        id: "openaiVideoNamed",
        summary: "How far a video is",
        replies: &[ok("The job.", &[(JSON, "OpenAiObject")])],
        problems: OF_JOBS,
        ..DIALECT
    },
    Operation {
        path: "/v1/videos/{id}/content",
        id: "openaiVideoContent",
        summary: "The finished video",
        replies: &[ok("The video.", &[("video/mp4", "Anything")])],
        problems: OF_VIDEO,
        ..DIALECT
    },
];
