//! What the tests of these steps buy, with what, and what they get for it.

use std::time::Duration;

use tokio::runtime::Handle;
use tower::service_fn;

use super::*;
use crate::contract::catalog::Catalog;
use crate::upstream::GatewayCall;
use crate::validate;

pub(super) const SOON: Duration = Duration::from_secs(1);

/// No limits, and who waits does so for `patience`.
pub(super) fn terms(patience: Duration) -> PurchaseTerms {
    PurchaseTerms {
        limits: Budgets::default(),
        dedupe_window: SOON,
        keep_chats: SOON,
        keep_videos: SOON,
        join_timeout: patience,
        keep_prompts: false,
    }
}

/// A new ledger, whose jobs rest.
pub(super) fn context(patience: Duration) -> PurchaseContext {
    let ledger = Store::in_memory(Arc::new(clock::wall));
    PurchaseContext {
        binding: AccountBinding::trusted(),
        running: RunningPurchases::default(),
        refusals: Arc::new(RecentRefusals::new(Arc::new(|| Duration::ZERO))),
        jobs: JobRegistry::new(ledger.clone(), Handle::current(), CancellationToken::new()),
        keys: Arc::from([KeyId([0; 8]), KeyId([7; 8])]),
        terms: terms(patience),
        metrics: Arc::default(),
        drain_expired: CancellationToken::new(),
        ledger,
    }
}

/// Purchases from such a gateway.
pub(super) fn purchases<F>(
    context: &PurchaseContext,
    gateway: impl Fn(GatewayRequest) -> F + Clone + Send + Sync + 'static,
) -> Purchases
where
    F: Future<Output = Result<GatewayReply, Error>> + Send + 'static,
{
    let gateway = BoxCloneSyncService::new(service_fn(gateway));
    Purchases::new(context.clone(), gateway, TaskTracker::new())
}

/// A video, told from others by its fingerprint.
pub(super) fn purchase() -> PurchaseRequest {
    claimed(DedupeBy::Fingerprint { is_retry: false })
}

/// The same one each time, as its key says.
pub(super) fn keyed() -> PurchaseRequest {
    claimed(DedupeBy::IdempotencyKey("k".into()))
}

fn claimed(claim: DedupeBy) -> PurchaseRequest {
    let order = validate::video(br#"{"prompt":"a tide"}"#, &Catalog::published()).unwrap().order;
    PurchaseRequest::new(Caller::Address([192, 0, 2, 1].into()), order, claim)
}

/// What the gateway answers to a video's order, with the second key.
pub(super) fn answered(status: u16, body: &'static str) -> GatewayReply {
    let status = StatusCode::from_u16(status).unwrap();
    let what = GatewayCall::Video(Bytes::new());
    GatewayReply::parse(&what, status, Bytes::from_static(body.as_bytes()), 1)
        .expect("it is readable")
}

/// An accepted video at the list price.
pub(super) fn accepted() -> GatewayReply {
    answered(200, r#"{"request_id":"r-1"}"#)
}

/// What it is passed on as.
pub(super) fn receipt() -> Receipt {
    Receipt::new(accepted(), Charge::Paid(Usd::dollars(3)), None)
}
