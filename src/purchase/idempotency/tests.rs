use tower::{ServiceExt, service_fn};

use super::*;
use crate::contract::money::Usd;
use crate::purchase::tests::{SOON, keyed, receipt, terms};

#[tokio::test(start_paused = true)]
async fn who_joins_a_purchase_that_is_being_given_up_buys_it_anew() {
    let (first, second) = (keyed(), keyed());
    let (abandoned, ended) = (first.id, Arc::new(tokio::sync::Notify::new()));
    let gone = Arc::clone(&ended);
    let inner = service_fn(move |purchase: Purchase| {
        let (gone, is_first) = (Arc::clone(&gone), purchase.id == abandoned);
        async move {
            if is_first {
                sleep(SOON).await;
                gone.notify_one();
                return Err(Stop::from(Problem::new(&OVERLOADED)));
            }
            match futures_util::FutureExt::now_or_never(gone.notified()) {
                Some(()) => Ok(receipt()),
                None => Err(Stop::Known(Earlier {
                    id: abandoned,
                    state: State::Sent,
                    toll: Usd::dollars(3),
                    reply_bytes: None,
                })),
            }
        }
    });
    let ledger = Store::in_memory(Arc::new(clock::wall));
    let stack = layer(Running::default(), ledger, terms(10 * SOON)).layer(inner);
    let (gave_up, bought) =
        tokio::join!(stack.clone().oneshot(first), stack.clone().oneshot(second));
    assert_eq!(gave_up.unwrap_err().kind(), &OVERLOADED);
    assert!(!bought.unwrap().is_replay);
}

/// A purchase that the ledger says is under way so many times, although it does not run here.
async fn elsewhere(times: usize) -> (Outcome, Duration) {
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let earlier = keyed().id;
    let inner = service_fn(move |_: Purchase| {
        let number = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            let known = Earlier {
                id: earlier,
                state: State::Sent,
                toll: Usd::dollars(3),
                reply_bytes: None,
            };
            if number < times { Err(Stop::Known(known)) } else { Ok(receipt()) }
        }
    });
    let ledger = Store::in_memory(Arc::new(clock::wall));
    let start = clock::now();
    let outcome =
        layer(Running::default(), ledger, terms(10 * SOON)).layer(inner).oneshot(keyed()).await;
    (outcome, clock::now() - start)
}

#[tokio::test(start_paused = true)]
async fn what_runs_elsewhere_is_asked_for_until_patience_ends() {
    let (outcome, took) = elsewhere(3).await;
    assert!(outcome.is_ok() && took < SOON, "{took:?}");
    let (outcome, took) = elsewhere(usize::MAX).await;
    assert_eq!(outcome.unwrap_err().kind(), &STILL_RUNNING);
    assert!(
        took >= terms(10 * SOON).patience && took < terms(10 * SOON).patience + SOON,
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_joins_a_purchase_that_runs_gets_its_reply_as_a_replay() {
    let (first, second) = (keyed(), keyed());
    let bought = first.id;
    let inner = service_fn(move |purchase: Purchase| async move {
        if purchase.id != bought {
            let (state, toll) = (State::Sent, Usd::dollars(3));
            return Err(Stop::Known(Earlier { id: bought, state, toll, reply_bytes: None }));
        }
        sleep(SOON).await;
        Ok(receipt())
    });
    let ledger = Store::in_memory(Arc::new(clock::wall));
    let stack = layer(Running::default(), ledger, terms(10 * SOON)).layer(inner);
    let (buyer, joiner) = tokio::join!(stack.clone().oneshot(first), stack.clone().oneshot(second));
    assert!(!buyer.unwrap().is_replay);
    assert!(joiner.unwrap().is_replay);
    assert!(stack.running.lock().is_empty(), "what has ended is not kept");
}
