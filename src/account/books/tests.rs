//! When both books are looked into, and when a checkpoint is noted.

use std::sync::Mutex;

use bytes::Bytes;
use http::StatusCode;
use tower::service_fn;

use super::*;
use crate::contract::money::Usd;
use crate::store::Claim;
use crate::store::Ending;
use crate::store::Limits;
use crate::store::PurchaseId;
use crate::store::Reservation;
use crate::store::Service as Kind;
use crate::store::memory::Memory;

const LISTING: &str = r#"{"keys":[],"billing":{"balanceCents":4210,
    "rateLimit":{"requests":60,"windowSeconds":60},
    "usage":{"chat":{"count":3,"costCents":1},"totalSpentCents":790}}}"#;

fn ledger() -> Arc<Memory> {
    Arc::new(Memory::new(Arc::new(clock::wall)))
}

/// Sets a toll aside; every one with a key of its own.
async fn reserve(ledger: &Memory) -> PurchaseId {
    let id = PurchaseId::new();
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.0.as_bytes());
    let reservation = Reservation {
        id,
        caller: "192.0.2.1".to_owned(),
        service: Kind::Chat,
        model: "eta-5-mini".into(),
        toll: Usd::mills(3),
        claim: Claim::Key { key, payload: key },
        limits: Limits::default(),
    };
    ledger.reserve(&reservation).await.unwrap();
    id
}

async fn lose(ledger: &Memory) {
    let id = reserve(ledger).await;
    ledger.sent(id).await.unwrap();
    ledger.settle(id, Ending::Unknown).await.unwrap();
}

/// A gateway that does something before it answers with these words.
fn gateway(
    body: &'static str,
    meanwhile: impl Future<Output = ()>,
) -> impl Service<Ask, Response = Reply, Error = Error> {
    let meanwhile = Mutex::new(Some(meanwhile));
    service_fn(move |_| {
        let meanwhile = meanwhile.lock().unwrap().take().expect("asked once");
        async move {
            meanwhile.await;
            let body = Bytes::from_static(body.as_bytes());
            Ok(Reply { status: StatusCode::OK, is_json: true, body, key: 0 })
        }
    })
}

async fn asked(
    gateway: impl Service<Ask, Response = Reply, Error = Error>,
) -> Result<Listing, String> {
    billing::ask(gateway).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_gateways_moment_is_noted_with_its_figures() {
    let ledger = ledger();
    lose(&ledger).await;
    let began = clock::wall();
    let look = look(&*ledger, asked(gateway(LISTING, async {}))).await.unwrap();
    assert_eq!((look.rows.len(), look.before), (1, None));
    assert!(began <= look.now.at && look.now.at <= clock::wall());
    let Checkpoint { balance_cents, chats, chat_cents, spent_cents, .. } = look.now;
    assert_eq!((balance_cents, chats, chat_cents, spent_cents), (4_210, 3, 1, 790));
}

#[tokio::test]
async fn whatever_is_under_way_blocks() {
    let ledger = ledger();
    let running = reserve(&ledger).await;
    let never = gateway(LISTING, async { panic!("the gateway is not even asked") });
    assert!(matches!(look(&*ledger, asked(never)).await, Err(Blocked::UnderWay)));
    ledger.settle(running, Ending::Voided).await.unwrap();

    // Begun, or begun and ended, while the gateway answers.
    let begins = gateway(LISTING, async {
        reserve(&ledger).await;
    });
    assert!(matches!(look(&*ledger, asked(begins)).await, Err(Blocked::UnderWay)));
    let running = ledger.rows(Duration::ZERO).await.unwrap().remove(1).id;
    ledger.settle(running, Ending::Voided).await.unwrap();
    let passes = gateway(LISTING, lose(&ledger));
    assert!(matches!(look(&*ledger, asked(passes)).await, Err(Blocked::UnderWay)));
    assert!(look(&*ledger, asked(gateway(LISTING, async {}))).await.is_ok());
}

#[tokio::test]
async fn a_start_notes_a_checkpoint_unless_the_earlier_one_can_still_tell_something() {
    let ledger = ledger();
    let checks = async || ledger.last_check().await.unwrap();
    note(ledger.clone(), gateway("{}", async {})).await;
    assert_eq!(checks().await, None, "the gateway said nothing of use");
    lose(&ledger).await;
    note(ledger.clone(), gateway(LISTING, async {})).await;
    let first = checks().await.expect("the first, whatever was lost before");
    note(ledger.clone(), gateway(LISTING, async {})).await;
    let second = checks().await.expect("another");
    assert!(second.at >= first.at);

    lose(&ledger).await;
    note(ledger.clone(), gateway(LISTING, async {})).await;
    assert_eq!(checks().await, Some(second), "what was lost since can be told from here alone");
}
