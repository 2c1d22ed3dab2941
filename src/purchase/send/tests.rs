//! What a reply costs, and what is counted of it.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::contract::catalog::Catalog;
use crate::purchase::Claim;
use crate::store::Caller;
use crate::validate;

const CHAT: &[u8] = br#"{"model":"eta-5-mini","messages":[{"role":"user","content":"hi"}]}"#;
const VIDEO: &[u8] = br#"{"prompt":"a tide"}"#;

/// What comes of a purchase that is answered so, and what the metrics then count of it.
async fn bought(payload: &[u8], answer: Result<(u16, &str), Error>) -> (Option<Usd>, String) {
    let order = match payload {
        CHAT => {
            let catalog = Arc::new(Catalog::published());
            validate::chat(payload, &validate::ChatRules { catalog, fields: Vec::new() })
        }
        _ => validate::video(payload, &Catalog::published()),
    };
    let caller = Caller::Address([192, 0, 2, 1].into());
    let purchase = Purchase::new(caller, order.expect("no fault"), Claim::Key("k".into()));
    let mut answer = Some(answer.map(|(status, body)| Reply {
        status: StatusCode::from_u16(status).expect("a status"),
        is_json: true,
        body: Bytes::copy_from_slice(body.as_bytes()),
        key: 0,
    }));
    let gateway = service_fn(move |_: Ask| std::future::ready(answer.take().expect("asked once")));
    let metrics = Arc::new(Metrics::default());
    let ledger = Store::in_memory(Arc::new(clock::wall));
    let outcome = layer(Arc::clone(&metrics), ledger).layer(gateway).oneshot(purchase).await;
    let counted = metrics.text();
    let counted = counted.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (name, figure) = line.strip_prefix("tollgate_")?.rsplit_once(' ')?;
        let (kind, labels) = name.split_once('{')?;
        let labels = labels.trim_end_matches('}').replace("service=", "").replace("outcome=", "");
        Some(format!("{kind} {} {figure}", labels.replace('"', "")))
    });
    (outcome.ok().map(|receipt| receipt.toll), counted.collect::<Vec<_>>().join("; "))
}

fn counted(what: &str, micros: u64) -> String {
    format!("purchases_total {what} 1; toll_microdollars_total {what} {micros}")
}

#[tokio::test]
async fn what_the_gateway_says_that_it_charged_is_what_it_cost() {
    for (said, micros) in [
        (r#"{"request_id":"r","cost":{"this_request":"$3.00"}}"#, 3_000_000),
        (r#"{"request_id":"r","cost":{"this_request":"$2.50"}}"#, 2_500_000),
        (r#"{"request_id":"r","cost":{"this_request":"$50000.00"}}"#, 50_000_000_000),
        // No amount, or none that anybody was charged: the price list's.
        (r#"{"request_id":"r","cost":{"this_request":"$50000.01"}}"#, 3_000_000),
        (r#"{"request_id":"r","cost":{"this_request":"three"}}"#, 3_000_000),
        (r#"{"request_id":"r"}"#, 3_000_000),
    ] {
        let (toll, figures) = bought(VIDEO, Ok((200, said))).await;
        assert_eq!(toll, Some(Usd::micros(micros)), "{said}");
        assert_eq!(figures, counted("video,charged", micros), "{said}");
    }
    let (toll, figures) = bought(CHAT, Ok((200, r#"{"cost":{"this_request":"$9.00"}}"#))).await;
    assert_eq!((toll, figures), (Some(Usd::micros(3_000)), counted("chat,charged", 3_000)));
}

#[tokio::test]
async fn a_refusal_costs_nothing_and_is_counted_as_one() {
    let refused = r#"{"request_id":"r","cost":{"this_request":"$3.00"}}"#;
    for status in [400, 402] {
        let (toll, figures) = bought(VIDEO, Ok((status, refused))).await;
        assert_eq!((toll, figures), (Some(Usd::ZERO), counted("video,refused", 0)));
    }
    let (_, figures) = bought(VIDEO, Err(Error::NotTaken)).await;
    assert_eq!(figures, counted("video,refused", 0));
}

#[tokio::test]
async fn an_unknown_outcome_counts_with_its_whole_toll() {
    let (toll, figures) = bought(VIDEO, Err(Error::Late(Duration::from_secs(1)))).await;
    assert_eq!((toll, figures), (None, counted("video,unknown", 3_000_000)));
}
