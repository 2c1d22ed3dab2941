//! `POST /api/v1/chat`

use bytes::Bytes;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use super::{claim, receipt};
use crate::answer::Answer;
use crate::downstream::Call;
use crate::problem::Problem;
use crate::purchase::{Purchase, Receipt};
use crate::validate::{self, ChatRules};

/// Checks the chat, buys it, and passes the gateway's reply on.
pub(super) async fn buy(
    rules: &ChatRules,
    purchases: BoxCloneSyncService<Purchase, Receipt, Problem>,
    call: &Call<Bytes>,
) -> Result<Answer, Problem> {
    let order = validate::chat(&call.body, rules)?;
    let claim = claim::of(&call.head.headers)?;
    let purchase = Purchase::new(call.caller.clone(), order, claim).by(call.standing.clone());
    purchases.oneshot(purchase).await.map(receipt::answer)
}
