//! What is left of a purchase whose call ends without an outcome: a panic, or the runtime's end.

use tokio::time::timeout;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::access::Standing;
use crate::purchase::tests::{SOON, keyed, receipt, terms};
use crate::store::State;
use crate::store::memory::Memory;

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
    let cut = keyed();
    let waiting = cut.waiters.wait(Standing::default());
    let call = layer(Arc::clone(&ledger), Binding::play(), terms(SOON)).layer(endless).oneshot(cut);
    timeout(SOON, call).await.expect_err("it has no end");
    drop(waiting);
    let prompt = service_fn(|_: Purchase| async { Ok::<_, Problem>(receipt()) });
    layer(ledger, Binding::play(), terms(SOON)).layer(prompt).oneshot(keyed()).await
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
