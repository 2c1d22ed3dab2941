//! The endpoints of `gateway.passthrough`

use bytes::Bytes;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use super::{claim, receipt};
use crate::answer::Answer;
use crate::downstream::Call;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};
use crate::routes::passthrough::Further;
use crate::validate;

/// Checks that the body is sound, buys it at the settings' toll, and passes the gateway's reply on.
pub(super) async fn buy(
    further: &Further,
    purchases: BoxCloneSyncService<Purchase, Receipt, Problem>,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let (path, query) = (call.head.uri.path(), call.head.uri.query());
    let order = validate::passthrough(&call.body, query, path, further.toll(path)?)?;
    let claim = claim::of(&call.head.headers)?;
    let purchase = Purchase::new(call.caller.clone(), order, claim).by(call.standing.clone());
    purchases.oneshot(purchase).await.map(receipt::answer)
}

/// The gateway's answer, unchanged.
pub(super) async fn ask(further: &Further, call: &Call<Bytes>) -> Result<Answer, Problem> {
    validate::no_query(call.head.uri.query())?;
    let reply = further.read(call.head.uri.path()).await?;
    Ok(receipt::passed_on(reply.status, reply.is_json, reply.body))
}
