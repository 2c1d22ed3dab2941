use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::sleep;

use super::*;
use crate::clock;
use crate::gateway::{Abort, Error};
use crate::ledger::Settlement;
use crate::purchase::budget::reservation;
use crate::purchase::tests::{SOON, accepted, context, keyed, purchases};

#[tokio::test(start_paused = true)]
async fn duplicate_of_cancelled_purchase_buys() {
    let (first, second, asked) = (keyed(), keyed(), Arc::new(AtomicUsize::new(0)));
    let purchases = purchases(&context(10 * SOON), move |_| {
        let number = asked.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(SOON).await;
            if number == 0 { Err(Error::Aborted(Abort::Cancelled)) } else { Ok(accepted()) }
        }
    });
    let (gave_up, bought) = tokio::join!(purchases.complete(&first), purchases.complete(&second));
    assert_eq!(gave_up.unwrap_err().kind(), &OVERLOADED);
    assert!(!bought.unwrap().is_replay);
}

/// A purchase that the ledger says is under way, although it does not run here: for so long, or for ever.
async fn elsewhere(until: Option<Duration>) -> (Outcome, Duration) {
    let context = context(10 * SOON);
    let purchases = purchases(&context, |_| std::future::ready(Ok(accepted())));
    let earlier = keyed();
    let reservation = reservation(&earlier, &context.terms);
    context.ledger.reserve(&reservation).await.expect("it is the first");
    context
        .ledger
        .mark_sent(earlier.id, context.binding.account_status())
        .await
        .expect("it is there");
    if let Some(until) = until {
        tokio::spawn(async move {
            sleep(until).await;
            context.ledger.settle(earlier.id, Settlement::Released).await.expect("it is there");
        });
    }
    let start = clock::now();
    let outcome = purchases.complete(&keyed()).await;
    (outcome, clock::now() - start)
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_other_process_until_timeout() {
    let (outcome, took) = elsewhere(Some(SOON / 2)).await;
    assert!(outcome.is_ok_and(|receipt| !receipt.is_replay) && took == SOON / 2, "{took:?}");
    let (outcome, took) = elsewhere(None).await;
    assert_eq!(outcome.unwrap_err().kind(), &STILL_RUNNING);
    assert!((10 * SOON..11 * SOON).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn duplicate_of_running_purchase_gets_replay() {
    let (first, second, context) = (keyed(), keyed(), context(10 * SOON));
    let purchases = purchases(&context, |_| async {
        sleep(SOON).await;
        Ok(accepted())
    });
    let (buyer, joiner) = tokio::join!(purchases.complete(&first), purchases.complete(&second));
    assert!(!buyer.unwrap().is_replay);
    assert!(joiner.unwrap().is_replay);
    assert!(lock(&context.running.calls).is_empty(), "what has ended is not kept");
}
