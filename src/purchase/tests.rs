//! Orders, gateways and replies for the tests of a purchase's steps.

use std::time::Duration;

use tokio::runtime::Handle;
use tower::service_fn;

use super::*;
use crate::api::validate;
use crate::gateway::contract::catalog::Catalog;
use crate::gateway::rate_limit::tests::wide_over;
use crate::gateway::{Error, GatewayCall, GatewayRequest};

pub(super) const SOON: Duration = Duration::from_secs(1);

/// No budgets. Duplicates wait for `join_timeout`.
pub(super) fn terms(join_timeout: Duration) -> PurchaseTerms {
    PurchaseTerms {
        limits: Budgets::default(),
        dedupe_window: SOON,
        keep_chats: SOON,
        keep_videos: SOON,
        join_timeout,
        keep_prompts: false,
    }
}

/// A new ledger. Its jobs are not polled.
pub(super) fn context(join_timeout: Duration) -> PurchaseContext {
    let ledger = Store::in_memory(Arc::new(clock::wall));
    PurchaseContext {
        rate_limit: wide_over(ledger.clone()),
        binding: AccountBinding::trusted(),
        running: RunningPurchases::default(),
        jobs: JobRegistry::new(ledger.clone(), Handle::current(), CancellationToken::new()),
        keys: Arc::from([KeyId([0; 8]), KeyId([7; 8])]),
        terms: terms(join_timeout),
        metrics: Arc::default(),
        drain_expired: CancellationToken::new(),
        ledger,
    }
}

/// Purchases from `gateway`.
pub(super) fn purchases<F>(
    context: &PurchaseContext,
    gateway: impl Fn(GatewayRequest) -> F + Clone + Send + Sync + 'static,
) -> Purchases
where
    F: Future<Output = Result<GatewayReply, Error>> + Send + 'static,
{
    let gateway = GatewayService::new(service_fn(gateway));
    Purchases::new(context.clone(), gateway, TaskTracker::new())
}

/// A video without an idempotency key.
pub(super) fn purchase() -> PurchaseRequest {
    video(DedupeBy::Fingerprint)
}

/// A video with an idempotency key, the same each time.
pub(super) fn keyed() -> Arc<PurchaseRequest> {
    Arc::new(video(DedupeBy::IdempotencyKey("k".into())))
}

fn video(dedupe_by: DedupeBy) -> PurchaseRequest {
    let order = validate::video(br#"{"prompt":"a tide"}"#, &Catalog::published()).unwrap().order;
    PurchaseRequest::new(Caller::Address([192, 0, 2, 1].into()), order, dedupe_by)
}

/// The gateway's reply to a video order with the second key.
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

/// The receipt of [`accepted`].
pub(super) fn receipt() -> Receipt {
    Receipt::new(PurchaseId::generate(), accepted(), Charge::Paid(Usd::dollars(3)), None)
}
