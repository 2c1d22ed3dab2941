//! `POST /api/v1/video`, `GET /api/v1/video/status` and `GET /bff/video/content`

use bytes::Bytes;
use http::StatusCode;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use super::{claim, receipt};
use crate::answer::Answer;
use crate::contract::catalog::Catalog;
use crate::downstream::Call;
use crate::jobs::Jobs;
use crate::media::Videos;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};
use crate::validate;

/// Checks the order, buys the job, and passes the gateway's reply on.
pub(super) async fn buy(
    catalog: &Catalog,
    purchases: BoxCloneSyncService<Purchase, Receipt, Problem>,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let wanted = validate::video_order(&call.body, catalog)?;
    let claim = claim::of(&call.head.headers)?;
    let purchase =
        Purchase::new(call.caller.clone(), wanted.order, claim).by(call.standing.clone());
    let receipt = purchases.oneshot(purchase).await?;
    Ok(receipt::naming(&wanted.ignored, receipt::answer(receipt)))
}

/// The gateway's latest word on a job; its body passes unchanged.
pub(super) async fn status(jobs: &Jobs, call: &Call<Bytes>) -> Result<Answer, Problem> {
    let query = validate::status(call.head.uri.query())?;
    let word = jobs.status(&query.get().request_id, &call.caller).await?;
    Ok(receipt::passed_on(StatusCode::OK, true, word.body))
}

/// A finished video, from our own origin.
pub(super) async fn content(
    videos: &Videos,
    jobs: &Jobs,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let query = validate::status(call.head.uri.query())?;
    let word = jobs.status(&query.get().request_id, &call.caller).await?;
    let range = call.head.headers.get(http::header::RANGE);
    videos
        .content(&word.body, call.head.method.clone(), range, (&call.caller, &call.standing))
        .await
}
