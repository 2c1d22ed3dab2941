//! What is left of a purchase whose call ends without an outcome: a panic, or the runtime's end.

use bytes::Bytes;
use http::StatusCode;
use tokio::time::timeout;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::access::Standing;
use crate::contract::catalog::Catalog;
use crate::contract::money::Usd;
use crate::store::memory::Memory;
use crate::store::{Caller, Limits, State};
use crate::validate;

const SOON: Duration = Duration::from_secs(1);

fn terms() -> Terms {
    Terms {
        limits: Limits::default(),
        balance_floor: Usd::ZERO,
        dedupe_window: SOON,
        keep_chats: SOON,
        keep_videos: SOON,
        patience: SOON,
    }
}

/// One and the same, as its key says.
fn purchase() -> Purchase {
    let order = validate::video(br#"{"prompt":"a tide"}"#, &Catalog::published()).unwrap();
    let caller = Caller::Address([192, 0, 2, 1].into());
    Purchase::new(caller, order, Claim::Key("k".into()))
}

/// A call that is cut off, before its departure or after it; then the same purchase again.
async fn again_after_a_cut(after_departure: bool) -> Outcome {
    let ledger: Arc<dyn Ledger> = Arc::new(Memory::new(Arc::new(clock::wall)));
    let endless = service_fn(move |purchase: Purchase| async move {
        if after_departure {
            let departure = purchase.departure.expect("the ledger has the last word");
            departure.depart().await.expect("somebody waits");
        }
        std::future::pending::<Result<Receipt, Problem>>().await
    });
    let cut = purchase();
    let waiting = cut.waiters.wait(Standing::default());
    let call = layer(Arc::clone(&ledger), terms()).layer(endless).oneshot(cut);
    timeout(SOON, call).await.expect_err("it has no end");
    drop(waiting);
    let prompt = service_fn(|_: Purchase| async {
        Ok::<_, Problem>(Receipt {
            status: StatusCode::OK,
            is_json: true,
            body: Bytes::new(),
            toll: Usd::dollars(3),
            is_replay: false,
            delivery: None,
            key: None,
        })
    });
    layer(ledger, terms()).layer(prompt).oneshot(purchase()).await
}

#[tokio::test(start_paused = true)]
async fn what_was_cut_off_before_it_was_sent_is_void_and_may_be_bought() {
    let again = again_after_a_cut(false).await;
    assert!(again.is_ok_and(|receipt| !receipt.is_replay));
}

#[tokio::test(start_paused = true)]
async fn what_was_cut_off_after_it_was_sent_is_unknown_and_is_not_bought_again() {
    match again_after_a_cut(true).await {
        Err(Stop::Known(earlier)) => assert_eq!(earlier.state, State::Unknown),
        other => panic!("{other:?}"),
    }
}
