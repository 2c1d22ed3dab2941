//! What is left of a purchase whose call ends without an outcome: a panic, or the runtime's end.

use futures_util::FutureExt;
use tokio::time::timeout;

use super::*;
use crate::access::Session;
use crate::gate::problem::Charged;
use crate::gateway::contract::money::Usd;
use crate::gateway::rate_limit::tests::wide_over;
use crate::gateway::{Error, GatewayReply};
use crate::ledger::{
    AccountBinding, Budgets, Caller, HookFuture, PurchaseState, StoreHook, StoreOp,
};
use crate::purchase::tests::{
    SOON, accepted, answered, context, keyed, purchase, purchases, terms,
};

/// A call that is cut off, before it is authorized or after it; then the same purchase again.
async fn again_after_a_cut(after_authorization: bool) -> Placed {
    let context = context(SOON);
    let endless = purchases(&context, move |ask| async move {
        if after_authorization {
            let before_send = ask.before_send.expect("the ledger decides");
            before_send.authorize().await.expect("somebody waits");
        }
        std::future::pending().await
    });
    let cut = keyed();
    let waiting = cut.waiters.add(Session::default());
    timeout(SOON, endless.complete(&cut)).await.expect_err("it has no end");
    drop(waiting);
    Hold::place(&Arc::new(context), &keyed(), None, &[]).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn purchase_interrupted_before_send_is_released_and_may_be_bought() {
    assert!(matches!(again_after_a_cut(false).await, Placed::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn purchase_interrupted_after_send_is_unknown_and_not_bought_again() {
    match again_after_a_cut(true).await {
        Placed::Duplicate(earlier) => assert_eq!(earlier.state, PurchaseState::Unknown),
        Placed::Held(_) => panic!("it is bought again"),
    }
}

/// A purchase that waits in the queue while another account is found; or that does so for its next attempt.
async fn purchase_while_another_account_is_found(was_refused: bool) {
    let context = PurchaseContext { binding: AccountBinding::unchecked(), ..context(SOON) };
    let PurchaseContext { ledger, binding, .. } = context.clone();
    assert!(binding.check_account(&ledger, vec!["ours".into()]).await.unwrap());
    let purchase = keyed();
    let (accounts, progress) = (ledger.clone(), purchase.progress.clone());
    let queue = purchases(&context, move |ask| {
        let (binding, ledger) = (binding.clone(), accounts.clone());
        let progress = progress.clone();
        async move {
            let before_send = ask.before_send.expect("the ledger decides");
            if was_refused {
                before_send.authorize().await.expect("it is the ledger's account");
            }
            assert!(!binding.check_account(&ledger, vec!["another".into()]).await.unwrap());
            let abort = before_send.authorize().await.expect_err("it stays");
            assert_eq!(progress.phase() == Phase::Sent, was_refused);
            Err(Error::Aborted(abort))
        }
    });
    let _waiting = purchase.waiters.add(Session::default());
    let problem = queue.complete(&purchase).await.expect_err("it is not sent");
    assert_eq!(problem.kind().code, "ledger_unavailable");
    assert_eq!(problem.charge(), Charged::No);
    let row = ledger.purchase(purchase.id).await.unwrap().expect("it is there");
    assert_eq!(row.state, PurchaseState::Released);
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
        let kept = PurchaseTerms { dedupe_window: window, keep_chats: keep, ..terms(SOON) };
        let found = look_back(is_retry, &kept, Service::Chat);
        assert_eq!(found, back, "{window:?} {keep:?} {is_retry}");
    }
}

/// One caller's identical videos, at times that the test sets.
struct Shop(PurchaseContext);

impl Shop {
    fn open() -> Self {
        clock::set_wall(Some(Duration::from_secs(1_763_640_000)));
        let terms = PurchaseTerms { keep_videos: 1_440 * MINUTE, ..terms(SOON) };
        Self(PurchaseContext { terms, ..context(SOON) })
    }

    /// Whether it was bought, or the reply of what it repeats was given again.
    async fn buys(&self, is_retry: bool, refusal: Option<fn() -> Error>) -> bool {
        let gateway = move |_| std::future::ready(refusal.map_or(Ok(accepted()), |why| Err(why())));
        let purchase = PurchaseRequest { attempt: is_retry.then_some(1), ..purchase() };
        match purchases(&self.0, gateway).complete(&Arc::new(purchase)).await {
            Ok(receipt) if receipt.is_replay => false,
            Ok(receipt) => {
                receipt.delivery.expect("it has no key").record();
                true
            }
            Err(_) => true,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn marked_retry_joins_delivered_reply_for_fifteen_minutes() {
    let shop = Shop::open();
    assert!(shop.buys(false, None).await);
    for _ in 0..3 {
        tokio::time::sleep(5 * MINUTE).await;
        assert!(!shop.buys(true, None).await);
    }
    tokio::time::sleep(SOON).await;
    assert!(shop.buys(true, None).await);
    assert!(shop.buys(false, None).await, "it says that it is another one");
}

#[tokio::test(start_paused = true)]
async fn marked_retry_after_refusal_joins_no_delivered_reply() {
    let refusals: [fn() -> Error; 2] =
        [|| Error::NoSlot { retry_after: SOON }, || Error::ClosedBeforeSend];
    for refusal in refusals {
        let shop = Shop::open();
        assert!(shop.buys(false, None).await);
        tokio::time::sleep(SOON).await;
        assert!(shop.buys(false, Some(refusal)).await);
        tokio::time::sleep(SOON).await;
        assert!(shop.buys(true, None).await, "what was refused is bought");
        assert!(!shop.buys(true, None).await, "what was bought after it is joined");
    }
}

#[tokio::test(start_paused = true)]
async fn new_process_treats_every_purchase_as_refused() {
    let shop = Shop::open();
    assert!(shop.buys(false, None).await);
    tokio::time::sleep(SOON).await;
    assert!(!shop.buys(true, None).await);
    shop.0.ledger.recover().await.expect("a usable ledger");
    assert!(shop.buys(true, None).await);
}

/// The first attempt may have been served.
#[tokio::test(start_paused = true)]
async fn marked_retry_after_refusal_of_a_retry_joins_delivered_reply() {
    let shop = Shop::open();
    assert!(shop.buys(false, None).await);
    tokio::time::sleep(SOON).await;
    let first = purchase();
    let key = reservation(&first, &shop.0.terms).dedupe_key;
    let ledger::DedupeKey::Fingerprint(DuplicateCheck { fingerprint, .. }) = key else {
        panic!("{key:?}");
    };
    let retry = PurchaseRequest { attempt: Some(1), ..first };
    note_refusal(&shop.0.ledger, &retry, Some(fingerprint));
    assert!(!shop.buys(true, None).await);
}

#[tokio::test(start_paused = true)]
async fn step_of_the_wall_clock_hides_no_purchase_from_its_retries() {
    let step = 720 * MINUTE;
    for is_ahead in [true, false] {
        let shop = Shop::open();
        assert!(shop.buys(false, None).await);
        let unknown = PurchaseRequest { caller: Caller::Member("ann".into()), ..purchase() };
        let lost = purchases(&shop.0, |_| std::future::ready(Err(Error::Timeout(SOON))));
        assert!(lost.complete(&Arc::new(unknown.clone())).await.is_err(), "its reply was lost");
        let wall = clock::wall();
        clock::set_wall(Some(if is_ahead { wall + step } else { wall - step }));
        tokio::time::sleep(SOON / 2).await;
        assert!(!shop.buys(true, None).await, "{is_ahead}");
        let again = PurchaseRequest { id: PurchaseId::generate(), ..unknown };
        let again = purchases(&shop.0, |_| async { panic!("it was sent again") })
            .complete(&Arc::new(again))
            .await;
        assert_eq!(again.unwrap_err().kind().code, "outcome_unknown", "{is_ahead}");
    }
}

async fn left_in(context: &PurchaseContext) -> Usd {
    context.ledger.remaining_credit().await.unwrap().expect("it was told").amount
}

#[tokio::test]
async fn outcome_changes_remaining_budget_by_its_charge() {
    const SAID: &str = r#"{"request_id":"r","balance":"$41.50"}"#;
    type Answer = fn() -> Result<GatewayReply, Error>;
    let outcomes: [(Answer, u64); 5] = [
        (|| Ok(accepted()), 47_000_000),
        (|| Ok(answered(200, SAID)), 41_500_000),
        (|| Ok(answered(402, SAID)), 50_000_000),
        (|| Err(Error::ClosedBeforeSend), 50_000_000),
        (|| Err(Error::Timeout(SOON)), 47_000_000),
    ];
    for (outcome, left) in outcomes {
        let context = context(SOON);
        context.ledger.record_balance(CreditWatermark::default(), Usd::dollars(50));
        let gateway = move |_| std::future::ready(outcome());
        let _ = purchases(&context, gateway).complete(&purchase().into()).await;
        assert_eq!(left_in(&context).await, Usd::micros(left), "{:?}", outcome());
    }
}

#[tokio::test]
async fn purchase_dropped_half_way_counts_as_spent() {
    let context = context(SOON);
    context.ledger.record_balance(CreditWatermark::default(), Usd::dollars(50));
    let endless = purchases(&context, |ask| async move {
        ask.before_send.expect("the ledger decides").authorize().await.expect("somebody waits");
        std::future::pending().await
    });
    let (first, second) = (keyed(), keyed());
    let waits = [&first, &second].map(|one| one.waiters.add(Session::default()));
    drop(endless.complete(&first));
    assert_eq!(left_in(&context).await, Usd::dollars(50));
    assert!(endless.complete(&second).now_or_never().is_none());
    drop(waits);
    assert_eq!(left_in(&context).await, Usd::dollars(47));
}

#[tokio::test]
async fn refusal_names_a_remedy_but_no_balance() {
    let context = context(SOON);
    let limits = Budgets { balance_floor: Usd::dollars(1), ..Budgets::default() };
    let context = PurchaseContext { terms: PurchaseTerms { limits, ..context.terms }, ..context };
    context.ledger.record_balance(CreditWatermark::default(), Usd::micros(2_109_999));
    let unsent = purchases(&context, |_| async { panic!("it is not sent") });
    let problem = unsent.complete(&purchase().into()).await.expect_err("not covered");
    assert_eq!(problem.kind().code, "insufficient_credit");
    let answer = problem.into_response("");
    let body = answer.into_body();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("costs $3.00, more than the account"), "{text}");
    assert!(!text.contains("2.1") && !text.contains("1.00"), "{text}");
    assert!(text.contains("ask the operator of this service to add credit"), "{text}");
}

/// The names of the steps on the ledger, in order.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<&'static str>>>);

impl Steps {
    fn note(&self, op: StoreOp<'_>) {
        let name = match op {
            StoreOp::Reserve(_) => "reserve",
            StoreOp::ReserveAndSend(..) => "reserve and send",
            StoreOp::TakeSlot(_) => "take slot",
            StoreOp::MarkSent(_) => "mark sent",
            StoreOp::Settle(..) => "settle",
            StoreOp::SlotReplied(_) => "slot replied, later",
            StoreOp::ReleaseSlot(_) => "release slot, later",
            StoreOp::MarkDelivered(_) => "mark delivered, later",
            StoreOp::NoteRefusal(_) => "note refusal, later",
            StoreOp::SettleLater(..) => "settle, later",
            StoreOp::Other(name) => name,
        };
        lock(&self.0).push(name);
    }
}

impl StoreHook for Steps {
    fn before<'a>(&'a self, op: StoreOp<'a>) -> HookFuture<'a, Result<(), ledger::Unavailable>> {
        self.note(op);
        Box::pin(std::future::ready(Ok(())))
    }

    fn after<'a>(&'a self, _: StoreOp<'a>, _: &'a Result<(), ReserveError>) -> HookFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn allows(&self, op: StoreOp<'_>) -> bool {
        self.note(op);
        true
    }
}

/// A ledger and a rate limit whose steps are noted.
fn noted() -> (Steps, PurchaseContext) {
    let steps = Steps::default();
    let plain = context(SOON);
    let ledger = plain.ledger.with_hook(Arc::new(steps.clone()));
    let rate_limit = wide_over(ledger.clone());
    (steps, PurchaseContext { ledger, rate_limit, ..plain })
}

#[tokio::test]
async fn purchase_with_a_free_slot_waits_for_two_writes() {
    let (steps, context) = noted();
    let shop = purchases(&context, |ask| async move {
        let before_send = ask.before_send.expect("the ledger decides");
        let slot = before_send.take_slot();
        before_send.authorize().await.expect("somebody waits");
        drop(slot.expect("it is recorded"));
        Ok(accepted())
    });
    let purchase = Arc::new(purchase());
    let _waiting = purchase.waiters.add(Session::default());
    let receipt = shop.complete(&purchase).await.expect("bought");
    receipt.delivery.expect("it has no key").record();
    let taken = lock(&steps.0).clone();
    let expected = ["reserve and send", "slot replied, later", "settle", "mark delivered, later"];
    assert_eq!(
        taken.iter().filter(|step| **step != "find_job").copied().collect::<Vec<_>>(),
        expected
    );
}

#[tokio::test]
async fn purchase_that_is_aborted_after_its_record_is_released() {
    let (steps, context) = noted();
    let shop = purchases(&context, |ask| async move {
        let before_send = ask.before_send.expect("the ledger decides");
        let _slot = before_send.take_slot();
        Err(Error::Aborted(before_send.authorize().await.expect_err("nobody waits")))
    });
    let purchase = keyed();
    let problem = shop.complete(&purchase).await.expect_err("it is not sent");
    assert_eq!(problem.charge(), Charged::No);
    assert!(lock(&steps.0).contains(&"reserve and send"));
    let row = context.ledger.purchase(purchase.id).await.unwrap().expect("it is there");
    assert_eq!(row.state, PurchaseState::Released);
}

#[tokio::test]
async fn unused_slot_is_free_at_once() {
    let (_, context) = noted();
    let shop = purchases(&context, |_| async { Err(Error::AllKeysRejected) });
    let free = context.rate_limit.free_slots();
    assert!(shop.complete(&keyed()).await.is_err());
    assert_eq!(context.rate_limit.free_slots(), free);
    assert!(context.ledger.recent_replies(MINUTE).await.unwrap().is_empty());
}
