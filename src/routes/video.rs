//! `POST /api/v1/video`, `GET /api/v1/video/status` and `GET /bff/video/content`

use bytes::Bytes;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use super::{passed_on, receipt};
use crate::account::media::Videos;
use crate::answer::Answer;
use crate::contract::catalog::Catalog;
use crate::downstream::Call;
use crate::jobs::Jobs;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};
use crate::validate;

/// Checks the order, buys the job, and passes the gateway's reply on.
pub(super) async fn buy(
    catalog: &Catalog,
    purchases: BoxCloneSyncService<Purchase, Receipt, Problem>,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let order = validate::video(&call.body, catalog)?;
    let purchase = Purchase { caller: call.caller.clone(), order };
    purchases.oneshot(purchase).await.map(receipt)
}

/// The gateway's latest word on a job; its body passes unchanged.
pub(super) async fn status(jobs: &Jobs, call: &Call<Bytes>) -> Result<Answer, Problem> {
    let query = validate::status(call.head.uri.query())?;
    let reply = jobs.status(query).await?;
    Ok(passed_on(reply.status, reply.is_json, reply.body))
}

/// A finished video, from our own origin.
pub(super) async fn content(
    videos: &Videos,
    jobs: &Jobs,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let query = validate::status(call.head.uri.query())?;
    let range = call.head.headers.get(http::header::RANGE);
    videos.content(jobs, query, call.head.method.clone(), range).await
}
