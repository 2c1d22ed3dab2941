//! `/api/v1/…`: the gateway's own endpoints. A body passes unchanged.

use http::StatusCode;
use http::header::RANGE;

use super::{Context, purchases};
use crate::answer::Answer;
use crate::problem::Problem;
use crate::validate;

/// `POST /api/v1/chat`
pub(super) async fn chat(cx: Context) -> Result<Answer, Problem> {
    let order = validate::chat(&cx.call.body, &cx.handlers.rules)?;
    cx.buy(order).await.map(purchases::answer)
}

/// `POST /api/v1/video`
pub(super) async fn video(cx: Context) -> Result<Answer, Problem> {
    let wanted = validate::video_order(&cx.call.body, &cx.handlers.rules.catalog)?;
    let receipt = cx.buy(wanted.order).await?;
    Ok(purchases::naming(&wanted.ignored, purchases::answer(receipt)))
}

/// `GET /api/v1/video/status`: the gateway's latest word on a job.
pub(super) async fn video_status(cx: Context) -> Result<Answer, Problem> {
    let query = validate::status(cx.query())?;
    let word = cx.handlers.jobs.status(&query.get().request_id, &cx.call.caller).await?;
    Ok(purchases::passed_on(StatusCode::OK, true, word.body))
}

/// `GET /bff/video/content`: a finished video, from our own origin.
pub(super) async fn video_content(cx: Context) -> Result<Answer, Problem> {
    let query = validate::status(cx.query())?;
    let word = cx.handlers.jobs.status(&query.get().request_id, &cx.call.caller).await?;
    content(&cx, &word.body).await
}

/// The video that `status` leads to.
pub(super) async fn content(cx: &Context, status: &[u8]) -> Result<Answer, Problem> {
    let (head, caller) = (&cx.call.head, (&cx.call.caller, &cx.call.standing));
    cx.handlers.videos.content(status, head.method.clone(), head.headers.get(RANGE), caller).await
}

/// A `POST` of `gateway.passthrough`, sold at the price of the settings.
pub(super) async fn passthrough_buy(cx: Context) -> Result<Answer, Problem> {
    let path = cx.call.head.uri.path();
    let toll = cx.handlers.further.toll(path)?;
    let order = validate::passthrough(&cx.call.body, cx.query(), path, toll)?;
    cx.buy(order).await.map(purchases::answer)
}

/// A `GET` of `gateway.passthrough`.
pub(super) async fn passthrough_ask(cx: Context) -> Result<Answer, Problem> {
    validate::no_query(cx.query())?;
    let reply = cx.handlers.further.read(cx.call.head.uri.path()).await?;
    Ok(purchases::passed_on(reply.status, reply.is_json, reply.body))
}
