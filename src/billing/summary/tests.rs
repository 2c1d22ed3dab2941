//! One question for all who want to know, and what becomes of its answer.

use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use http::StatusCode;
use tower::service_fn;

use super::*;
use crate::upstream::Abort;

fn listing(cents: u64, keys: &str) -> Bytes {
    format!(
        r#"{{"keys":[{keys}],"billing":{{"balanceCents":{cents},"rateLimit":{{"requests":60,"windowSeconds":60}},"usage":{{"chat":{{"count":0,"costCents":0}},"totalSpentCents":0}}}}}}"#
    )
    .into()
}

/// Books whose gateway answers its `n`th question (from 0) so; with the questions counted, and the
/// balances heard.
fn books(
    answer: impl Fn(usize) -> Option<Bytes> + Clone + Send + Sync + 'static,
) -> (Books, Arc<AtomicUsize>, Arc<Mutex<Vec<u64>>>) {
    let (count, heard) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counted, hears) = (Arc::clone(&count), Arc::clone(&heard));
    let gateway = service_fn(move |_: Ask| {
        let answer = answer(counted.fetch_add(1, Ordering::SeqCst));
        async move {
            tokio::task::yield_now().await;
            let body = answer.ok_or(Error::NotTaken)?;
            Ok(Reply { status: StatusCode::OK, is_json: true, body, key: 0, video: None })
        }
    });
    let ears = move || {
        let hears = Arc::clone(&hears);
        move |billing: &Billing| hears.lock().unwrap().push(billing.balance_cents)
    };
    (Books::new(gateway, ears, |prefix| "svc_sk_ab12rest".starts_with(prefix)), count, heard)
}

#[tokio::test]
async fn two_hundred_who_want_to_know_are_one_question() {
    let (books, count, heard) = books(|_| Some(listing(4_210, "")));
    futures_util::future::join_all((0..200).map(|_| books.refresh())).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(*heard.lock().unwrap(), [4_210]);
    assert!(!books.is_stale());
    let limit = *books.limit().borrow();
    assert_eq!(limit, Some(Told::Limit(RateLimit { requests: 60, window_seconds: 60 })));
}

#[tokio::test]
async fn a_gateway_that_does_not_answer_is_not_asked_more_often_and_what_was_known_is_stale() {
    let (books, count, heard) = books(|nth| (nth == 0).then(|| listing(4_210, "")));
    books.refresh().await;
    books.0.asked.invalidate(&()).await;
    for _ in 0..10 {
        books.refresh().await;
    }
    assert_eq!(count.load(Ordering::SeqCst), 2);
    assert!(books.is_stale());
    assert_eq!(*heard.lock().unwrap(), [4_210]);
    assert!(books.limit().borrow().is_some());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_gateway_that_hangs() {
    let hangs = service_fn(|_: Ask| std::future::pending::<Result<Reply, Error>>());
    let books = Books::new(hangs, || |_: &Billing| {}, |_| false);
    timeout(Duration::from_secs(2), books.refresh()).await.expect("it is given up");
}

#[tokio::test(start_paused = true)]
async fn operators_question_does_not_wait_for_patient_one() {
    let gateway = service_fn(|asked: Ask| async move {
        match asked.is_patient {
            true => std::future::pending().await,
            false => sleep(3 * PATIENCE).await,
        }
        Ok(Reply {
            status: StatusCode::OK,
            is_json: true,
            body: listing(7, ""),
            key: 0,
            video: None,
        })
    });
    let books = Books::new(gateway, || |_: &Billing| {}, |_| false);
    // Nobody else asks: its own answer is waited for.
    let began = clock::now();
    billing::ask(books.gateway()).await.unwrap();
    assert_eq!(began.elapsed(), 3 * PATIENCE);
    books.0.asked.invalidate(&()).await;
    tokio::spawn(books.follow(|| true));
    sleep(PATIENCE).await;
    let began = clock::now();
    let answer = timeout(100 * PATIENCE, billing::ask(books.gateway())).await;
    assert_eq!(answer.expect("an answer").unwrap().billing.balance_cents, 7);
    assert_eq!(began.elapsed(), 4 * PATIENCE);
}

#[tokio::test]
async fn same_limit_of_another_account_is_told() {
    let (books, _, _) = books(|_| Some(listing(1, "")));
    billing::ask(books.gateway()).await.unwrap();
    let mut limit = books.limit();
    let before = *limit.borrow_and_update();
    let gateway = lock(&books.0.current).gateway.clone();
    books.ask_through(gateway, |_| false, true);
    assert_eq!(*limit.borrow_and_update(), None);
    billing::ask(books.gateway()).await.unwrap();
    assert!(limit.has_changed().unwrap() && before.is_some());
    assert_eq!(*limit.borrow_and_update(), before);
}

#[tokio::test]
async fn who_follows_a_limit_is_told_of_changes_only() {
    let (books, _, _) = books(|_| Some(listing(1, "")));
    let mut limit = books.limit();
    billing::ask(books.gateway()).await.unwrap();
    assert!(limit.has_changed().unwrap());
    limit.mark_unchanged();
    billing::ask(books.gateway()).await.unwrap();
    assert!(!limit.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_books_are_followed_while_there_are_sales_and_as_long_as_they_are_held() {
    let (books, count, _) = books(|_| Some(listing(1, "")));
    let used = Arc::new(AtomicBool::new(false));
    let is_used = Arc::clone(&used);
    let following = tokio::spawn(books.follow(move || is_used.swap(false, Ordering::SeqCst)));
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    used.store(true, Ordering::SeqCst);
    books.0.asked.invalidate(&()).await;
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
    drop(books);
    timeout(Duration::from_secs(3_600), following).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn a_revoked_key_of_ours_is_told_once() {
    let row = |name: &str, prefix: &str, revoked: bool| {
        let revoked = if revoked { r#""2025-01-01T00:00:00Z""# } else { "null" };
        format!(r#"{{"name":"{name}","keyPrefix":"{prefix}","revokedAt":{revoked}}}"#)
    };
    for (keys, told) in [
        (vec![row("ours", "svc_sk_ab12", true)], &["svc_sk_ab12"][..]),
        (
            vec![row("ours", "svc_sk_ab12…", true), row("ours", "svc_sk_ab12", true)],
            &["svc_sk_ab12"],
        ),
        (vec![row("ours", "svc_sk_ab12", false), row("theirs", "svc_sk_cd34", true)], &[]),
        (vec![row("says nothing", "svc_sk_", true)], &[]),
        (vec![row("one of two", "svc_sk_ab", true), row("the other", "svc_sk_ab", false)], &[]),
    ] {
        let answer = listing(1, &keys.join(","));
        let (books, _, _) = books(move |_| Some(answer.clone()));
        billing::ask(books.gateway()).await.unwrap();
        billing::ask(books.gateway()).await.unwrap();
        let names = books.0.told.lock().unwrap().iter().cloned().collect::<Vec<_>>();
        assert_eq!(names, told);
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_settings_asks_nothing_and_change_of_account_asks_at_once() {
    let (books, count, _) = books(|_| Some(listing(1, "")));
    let following = tokio::spawn(books.follow(|| true));
    sleep(Duration::from_secs(1)).await;
    let others = Arc::new(AtomicUsize::new(0));
    let other = {
        let others = Arc::clone(&others);
        service_fn(move |_: Ask| {
            others.fetch_add(1, Ordering::SeqCst);
            let body = listing(2, "");
            async move { Ok(Reply { status: StatusCode::OK, is_json: true, body, key: 0, video: None }) }
        })
    };
    let balance = || books.known().unwrap().listing.billing.balance_cents;
    for _ in 0..100 {
        books.ask_through(other.clone(), |_| false, false);
        books.refresh().await;
    }
    assert_eq!((others.load(Ordering::SeqCst), balance()), (0, 1));
    books.ask_through(other, |_| false, true);
    sleep(Duration::from_secs(1)).await;
    assert_eq!((others.load(Ordering::SeqCst), balance()), (1, 2));
    books.0.asked.invalidate(&()).await;
    books.refresh().await;
    assert_eq!((count.load(Ordering::SeqCst), others.load(Ordering::SeqCst)), (1, 2));
    drop(books);
    timeout(Duration::from_secs(600), following).await.expect("there is one follower").unwrap();
}

/// Books whose first question is answered only after the gateway was exchanged.
async fn exchanged_while_asked(is_another: bool) -> (Books, Arc<Mutex<Vec<u64>>>) {
    let answer = Arc::new(Notify::new());
    let answered = Arc::clone(&answer);
    let late = service_fn(move |_: Ask| {
        let answered = Arc::clone(&answered);
        async move {
            answered.notified().await;
            let body = listing(1, "");
            Ok(Reply { status: StatusCode::OK, is_json: true, body, key: 0, video: None })
        }
    });
    let balances = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&balances);
    let ears = move || {
        let hears = Arc::clone(&hears);
        move |billing: &Billing| hears.lock().unwrap().push(billing.balance_cents)
    };
    let books = Books::new(late, ears, |_| false);
    let asking = books.gateway().oneshot(question());
    let exchange = async {
        let next = service_fn(|_: Ask| async {
            let body = listing(2, "");
            Ok(Reply { status: StatusCode::OK, is_json: true, body, key: 0, video: None })
        });
        books.ask_through(next, |_| false, is_another);
        answer.notify_one();
    };
    let (reply, ()) = tokio::join!(asking, exchange);
    assert!(reply.is_ok(), "it is still a reply for the one that asked");
    (books, balances)
}

#[tokio::test]
async fn late_answer_of_former_gateway_has_no_effect() {
    let (books, balances) = exchanged_while_asked(true).await;
    assert!(balances.lock().unwrap().is_empty());
    assert!(books.known().is_none() && books.limit().borrow().is_none());
    assert!(matches!(*books.heard().borrow(), Heard::NotYet));
    billing::ask(books.gateway()).await.unwrap();
    assert_eq!(*balances.lock().unwrap(), [2]);
    assert!(matches!(*books.heard().borrow(), Heard::Listing(_)));
}

#[tokio::test]
async fn late_answer_counts_if_only_other_settings_changed() {
    let (books, balances) = exchanged_while_asked(false).await;
    assert_eq!(*balances.lock().unwrap(), [1]);
    assert!(books.known().is_some());
}

#[tokio::test(start_paused = true)]
async fn question_that_was_held_back_here_tells_nothing_of_the_gateway() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    // As while the ledger is being opened: a page asks, and nothing can be noted in the window's log.
    let gateway = service_fn(move |_: Ask| {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                return Err(Error::Aborted(Abort::Unrecorded));
            }
            Ok(Reply {
                status: StatusCode::OK,
                is_json: true,
                body: listing(7, ""),
                key: 0,
                video: None,
            })
        }
    });
    let books = Books::new(gateway, || |_: &Billing| {}, |_| false);
    books.refresh().await;
    assert!(books.limit().borrow().is_none() && books.is_stale());
    assert!(matches!(*books.heard().borrow(), Heard::NotYet));

    let following = tokio::spawn(books.follow(|| true));
    sleep(Duration::from_secs(1)).await;
    assert!(matches!(*books.heard().borrow(), Heard::Listing(_)), "it is asked at once");
    assert_eq!(count.load(Ordering::SeqCst), 2);
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn another_gateway_is_asked_at_once_although_the_former_one_hangs() {
    let hangs = service_fn(|_: Ask| std::future::pending::<Result<Reply, Error>>());
    let books = Books::new(hangs, || |_: &Billing| {}, |_| false);
    let following = tokio::spawn(books.follow(|| true));
    sleep(Duration::from_secs(1)).await;
    let next = service_fn(|_: Ask| async {
        Ok(Reply {
            status: StatusCode::OK,
            is_json: true,
            body: listing(2, ""),
            key: 0,
            video: None,
        })
    });
    books.ask_through(next, |_| false, true);
    sleep(Duration::from_millis(100)).await;
    assert!(matches!(*books.heard().borrow(), Heard::Listing(_)));
    following.abort();
}
