//! What a reply costs, and what is counted of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::*;
use crate::api::validate;
use crate::gateway::contract::catalog::Catalog;
use crate::ledger::{Caller, KeyId};
use crate::metrics::Readings;
use crate::purchase::tests::{SOON, answered, context, keyed, purchases};
use crate::purchase::{DedupeBy, Receipt};

const CHAT: &[u8] = br#"{"model":"eta-5-mini","messages":[{"role":"user","content":"hi"}]}"#;
const VIDEO: &[u8] = br#"{"prompt":"a tide"}"#;

/// What comes of a purchase that is answered so, and what the metrics then count of it.
async fn bought(payload: &[u8], answer: Result<(u16, &str), Error>) -> (Option<Usd>, String) {
    let (order, what) = match payload {
        CHAT => {
            let catalog = Arc::new(Catalog::published());
            let rules = validate::ChatRules { catalog, fields: Vec::new() };
            (validate::chat(payload, &rules), GatewayCall::Chat(Bytes::new()))
        }
        _ => (
            validate::video(payload, &Catalog::published()).map(|video| video.order),
            GatewayCall::Video(Bytes::new()),
        ),
    };
    let caller = Caller::Address([192, 0, 2, 1].into());
    let purchase = PurchaseRequest::new(
        caller,
        order.expect("no fault"),
        DedupeBy::IdempotencyKey("k".into()),
    );
    let answer = answer.and_then(|(status, body)| {
        let status = StatusCode::from_u16(status).expect("a status");
        GatewayReply::parse(&what, status, Bytes::copy_from_slice(body.as_bytes()), 0)
    });
    let answer = Arc::new(Mutex::new(Some(answer)));
    let context = context(SOON);
    let purchases = purchases(&context, move |_| {
        std::future::ready(answer.lock().unwrap().take().expect("asked once"))
    });
    let outcome = purchases.complete(&Arc::new(purchase)).await;
    let metrics = &context.metrics;
    let counted = metrics.encode(Readings::default());
    let counted = counted.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (name, figure) = line.strip_prefix("tollgate_")?.rsplit_once(' ')?;
        let (kind, labels) = name.split_once('{')?;
        let labels = labels.trim_end_matches('}').replace("service=", "").replace("outcome=", "");
        Some(format!("{kind} {} {figure}", labels.replace('"', "")))
    });
    (outcome.ok().map(|receipt| receipt.cost), counted.collect::<Vec<_>>().join("; "))
}

fn counted(what: &str, micros: u64) -> String {
    format!("purchases_total {what} 1; price_microdollars_total {what} {micros}")
}

#[tokio::test]
async fn cost_is_what_gateway_states() {
    for (said, micros) in [
        (r#"{"request_id":"r","cost":{"this_request":"$3.00"}}"#, 3_000_000),
        (r#"{"request_id":"r","cost":{"this_request":"$2.50"}}"#, 2_500_000),
        (r#"{"request_id":"r","cost":{"this_request":"$50000.00"}}"#, 50_000_000_000),
        // No amount, or none that anybody was charged: the price list's.
        (r#"{"request_id":"r","cost":{"this_request":"$50000.01"}}"#, 3_000_000),
        (r#"{"request_id":"r","cost":{"this_request":"three"}}"#, 3_000_000),
        (r#"{"request_id":"r"}"#, 3_000_000),
    ] {
        let (price, figures) = bought(VIDEO, Ok((200, said))).await;
        assert_eq!(price, Some(Usd::micros(micros)), "{said}");
        assert_eq!(figures, counted("video,charged", micros), "{said}");
    }
    let chat = r#"{"message":{"content":"hi"},"cost":{"this_request":"$9.00"}}"#;
    let (price, figures) = bought(CHAT, Ok((200, chat))).await;
    assert_eq!((price, figures), (Some(Usd::micros(3_000)), counted("chat,charged", 3_000)));
    // It has no text, so its caller gets an error.
    let (price, figures) = bought(CHAT, Ok((200, r#"{"error":"no credit"}"#))).await;
    assert_eq!((price, figures), (None, counted("chat,charged", 3_000)));
}

#[tokio::test]
async fn refusal_is_free_and_counted() {
    let refused = r#"{"request_id":"r","cost":{"this_request":"$3.00"}}"#;
    for status in [400, 402] {
        let (price, figures) = bought(VIDEO, Ok((status, refused))).await;
        assert_eq!((price, figures), (Some(Usd::ZERO), counted("video,refused", 0)));
    }
    let (_, figures) = bought(VIDEO, Err(Error::ClosedBeforeSend)).await;
    assert_eq!(figures, counted("video,refused", 0));
}

#[tokio::test]
async fn unknown_outcome_counts_with_full_price() {
    let (price, figures) = bought(VIDEO, Err(Error::Timeout(Duration::from_secs(1)))).await;
    assert_eq!((price, figures), (None, counted("video,unknown", 3_000_000)));
}

/// The receipt of a video that was answered so, and the job that the ledger has then.
async fn ordered(status: u16, body: &'static str) -> (Receipt, Option<Job>) {
    let context = context(SOON);
    let purchases = purchases(&context, move |_| std::future::ready(Ok(answered(status, body))));
    let receipt = purchases.complete(&keyed()).await.expect("the reply is given");
    assert_eq!(receipt.status, status);
    (receipt, context.ledger.find_job("r-1".into()).await.expect("the store is there"))
}

#[tokio::test]
async fn accepted_job_has_owner_key_model_price_and_purchase() {
    let (receipt, job) = ordered(200, r#"{"request_id":"r-1"}"#).await;
    assert_eq!(receipt.video.map(|video| video.request_id).as_deref(), Some("r-1"));
    let job = job.expect("it is written down with the charge");
    assert_eq!((&*job.request_id, &*job.owner, &*job.model), ("r-1", "192.0.2.1", "video-a-2"));
    assert_eq!((job.key, job.price, job.is_open()), (Some(KeyId([7; 8])), Usd::dollars(3), true));
    assert!(job.purchase.is_some());
}

#[tokio::test]
async fn refusal_creates_no_job() {
    let (receipt, job) = ordered(400, r#"{"request_id":"r-1"}"#).await;
    assert!(receipt.video.is_none() && job.is_none());
}
