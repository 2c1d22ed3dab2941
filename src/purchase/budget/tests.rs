//! What is left of a purchase whose call ends without an outcome: a panic, or the runtime's end.

use tokio::time::timeout;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::access::Standing;
use crate::purchase::tests::{SOON, keyed, purchase, receipt, terms};
use crate::store::State;
use crate::upstream::Error;

fn refusals() -> Arc<Refusals> {
    Arc::new(Refusals::new(Duration::ZERO))
}

/// A call that is cut off, before its departure or after it; then the same purchase again.
async fn again_after_a_cut(after_departure: bool) -> Outcome {
    let ledger = Store::in_memory(Arc::new(clock::wall));
    let endless = service_fn(move |purchase: Purchase| async move {
        if after_departure {
            let departure = purchase.departure.expect("the ledger has the last word");
            departure.depart().await.expect("somebody waits");
        }
        std::future::pending::<Result<Receipt, Problem>>().await
    });
    let cut = keyed();
    let waiting = cut.waiters.wait(Standing::default());
    let call = layer(ledger.clone(), Binding::play(), refusals(), terms(SOON));
    let call = call.layer(endless).oneshot(cut);
    timeout(SOON, call).await.expect_err("it has no end");
    drop(waiting);
    let prompt = service_fn(|_: Purchase| async { Ok::<_, Problem>(receipt()) });
    let again = layer(ledger, Binding::play(), refusals(), terms(SOON));
    again.layer(prompt).oneshot(keyed()).await
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

/// A purchase that waits in the queue while another account is found; or that does so for its next attempt.
async fn purchase_while_another_account_is_found(was_refused: bool) {
    let ledger = Store::in_memory(Arc::new(clock::wall));
    let binding = Binding::real();
    assert!(binding.recognise(&ledger, vec!["ours".into()]).await.unwrap());
    let (asked, accounts) = (binding.clone(), ledger.clone());
    let queue = service_fn(move |purchase: Purchase| {
        let (binding, ledger) = (asked.clone(), accounts.clone());
        async move {
            let departure = purchase.departure.expect("the ledger has the last word");
            if was_refused {
                departure.depart().await.expect("it is the ledger's account");
            }
            assert!(!binding.recognise(&ledger, vec!["another".into()]).await.unwrap());
            let stay = departure.depart().await.expect_err("it stays");
            Err::<Receipt, _>(Error::Stayed(stay).of_purchase())
        }
    });
    let purchase = keyed();
    let (id, sent) = (purchase.id, Arc::clone(&purchase.sent));
    let _waiting = purchase.waiters.wait(Standing::default());
    let call = layer(ledger.clone(), binding, refusals(), terms(SOON));
    match call.layer(queue).oneshot(purchase).await {
        Err(Stop::Problem(problem)) => {
            assert_eq!(problem.kind().code, "ledger_unavailable");
            assert_eq!(problem.charge(), Charged::No);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(sent.get().is_some(), was_refused);
    let row = ledger.purchase(id).await.unwrap().expect("it is there");
    assert_eq!(row.state, State::Voided);
}

#[tokio::test]
async fn queued_purchase_is_not_sent_to_another_account() {
    purchase_while_another_account_is_found(false).await;
    purchase_while_another_account_is_found(true).await;
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn marked_retry_looks_back_fifteen_minutes_if_replies_are_kept_so_long() {
    let second = Duration::from_secs(1);
    for (window, keep, is_retry, back) in [
        (30 * second, 1_440 * MINUTE, true, 15 * MINUTE),
        (30 * second, 1_440 * MINUTE, false, 30 * second),
        (60 * MINUTE, 1_440 * MINUTE, true, 60 * MINUTE),
        (30 * second, 2 * MINUTE, true, 2 * MINUTE),
        (30 * second, 10 * second, true, 30 * second),
        (Duration::ZERO, 1_440 * MINUTE, true, Duration::ZERO),
    ] {
        let kept = Terms { dedupe_window: window, keep_chats: keep, ..terms(SOON) };
        let found = look_back(is_retry, &kept, store::Service::Chat);
        assert_eq!(found, back, "{window:?} {keep:?} {is_retry}");
    }
}

/// One caller's identical videos, at times that the test sets.
struct Shop {
    ledger: Store,
    refusals: Arc<Refusals>,
}

impl Shop {
    fn open() -> Self {
        clock::set_wall(Some(Duration::from_secs(1_763_640_000)));
        let refusals = Arc::new(Refusals::new(clock::wall()));
        Self { ledger: Store::in_memory(Arc::new(clock::wall)), refusals }
    }

    /// Whether it was bought, or what it repeats was found.
    async fn buys(&self, is_retry: bool, outcome: Result<Receipt, Problem>) -> bool {
        let gateway = service_fn(move |_: Purchase| std::future::ready(outcome.clone()));
        let terms = Terms { keep_videos: 1_440 * MINUTE, ..terms(SOON) };
        let mut purchase = purchase();
        purchase.claim = Claim::Likeness { is_retry };
        let (ledger, refusals) = (self.ledger.clone(), Arc::clone(&self.refusals));
        let stack = layer(ledger, Binding::play(), refusals, terms);
        match stack.layer(gateway).oneshot(purchase).await {
            Ok(receipt) => {
                receipt.delivery.expect("it has no key").taken();
                true
            }
            Err(Stop::Known(earlier)) => {
                assert_eq!(earlier.state, State::Posted);
                false
            }
            Err(Stop::Problem(_)) => true,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn marked_retry_joins_delivered_reply_for_fifteen_minutes() {
    let shop = Shop::open();
    assert!(shop.buys(false, Ok(receipt())).await);
    for _ in 0..3 {
        tokio::time::sleep(5 * MINUTE).await;
        assert!(!shop.buys(true, Ok(receipt())).await);
    }
    tokio::time::sleep(SOON).await;
    assert!(shop.buys(true, Ok(receipt())).await);
    assert!(shop.buys(false, Ok(receipt())).await, "it says that it is another one");
}

#[tokio::test(start_paused = true)]
async fn marked_retry_of_refused_call_joins_nothing_that_was_delivered_before() {
    for refusal in [&crate::problem::WINDOW_EXHAUSTED, &crate::problem::GATEWAY_UNREACHABLE] {
        let shop = Shop::open();
        assert!(shop.buys(false, Ok(receipt())).await);
        tokio::time::sleep(SOON).await;
        assert!(shop.buys(false, Err(Problem::new(refusal))).await);
        tokio::time::sleep(SOON).await;
        assert!(shop.buys(true, Ok(receipt())).await, "what was refused is bought");
        assert!(!shop.buys(true, Ok(receipt())).await, "what was bought after it is joined");
    }
}

#[tokio::test(start_paused = true)]
async fn process_that_starts_has_refused_everybody() {
    let mut shop = Shop::open();
    assert!(shop.buys(false, Ok(receipt())).await);
    tokio::time::sleep(SOON).await;
    assert!(!shop.buys(true, Ok(receipt())).await);
    shop.refusals = Arc::new(Refusals::new(clock::wall()));
    assert!(shop.buys(true, Ok(receipt())).await);
}
