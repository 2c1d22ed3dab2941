//! Where the limit comes from: the settings, the gateway, or nowhere.

use super::*;
use crate::gateway::rate_limit::scheduler::PURCHASE_WAIT_FOR_LIMIT;

fn billing(requests: u64, window_seconds: u64) -> AccountLimit {
    AccountLimit { requests, window_seconds }
}

fn auto() -> Arc<RateLimit> {
    RateLimit::new(memory(), None, CancellationToken::new())
}

#[tokio::test(start_paused = true)]
async fn purchases_wait_five_seconds_for_limit_and_internal_request_does_not() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let waited = async |rate_limit: &Arc<RateLimit>, attempt: Attempt| {
        let start = clock::now();
        gateway.request(rate_limit, attempt).await.unwrap();
        (clock::now() - start).as_secs()
    };
    let request = |what| Attempt { request: GatewayRequest::free(what), ..chat("") };
    let (silent, reported) = (auto(), auto());
    assert_eq!(waited(&silent, request(GatewayCall::Billing)).await, 0);
    assert_eq!(
        waited(
            &silent,
            request(GatewayCall::VideoStatus { request_id: "r".into(), is_watched: true })
        )
        .await,
        1
    );
    assert_eq!(waited(&silent, chat("a")).await, 4);
    assert_eq!(silent.free_slots(), 57);

    reported.set_limit(billing(7, 30));
    assert_eq!((waited(&reported, chat("a")).await, reported.free_slots()), (0, 6));
}

#[tokio::test(start_paused = true)]
async fn reported_limit_releases_waiting_requests() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let rate_limit = auto();
    let start = clock::now();
    let answer = async {
        sleep(SECOND).await;
        rate_limit.set_limit(billing(7, 30));
    };
    let (bought, ()) = tokio::join!(gateway.request(&rate_limit, chat("a")), answer);
    bought.unwrap();
    assert_eq!(clock::now() - start, SECOND);
}

#[tokio::test(start_paused = true)]
async fn missing_limit_releases_waiting_requests() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let rate_limit = auto();
    let start = clock::now();
    let silence = async {
        sleep(SECOND).await;
        assert_eq!(rate_limit.waiting_count(), 1);
        rate_limit.assume_default();
    };
    let (bought, ()) = tokio::join!(gateway.request(&rate_limit, chat("a")), silence);
    bought.unwrap();
    assert_eq!((clock::now() - start, rate_limit.waiting_count()), (SECOND, 0));
}

#[tokio::test(start_paused = true)]
async fn invalid_limit_is_ignored_and_setting_wins() {
    let rate_limit = auto();
    let longest = MAX_PERIOD.as_secs();
    for limit in [billing(0, 60), billing(7, 0), billing(7, longest + 1)] {
        rate_limit.set_limit(limit);
        assert_eq!(rate_limit.free_slots(), 60, "{limit:?}");
    }
    rate_limit.set_limit(billing(7, longest));
    assert_eq!(rate_limit.free_slots(), 7);
    rate_limit.set_limit(billing(u64::MAX, 60));
    assert!(rate_limit.free_slots() > 1_000_000);
    rate_limit.reconfigure(setting(3, 1));
    rate_limit.set_limit(billing(60, 60));
    assert_eq!(rate_limit.free_slots(), 3);
    // A reload sends no request: the limit reported meanwhile applies.
    rate_limit.reconfigure(None);
    assert_eq!(rate_limit.free_slots(), 60);
}

#[tokio::test(start_paused = true)]
async fn restart_restores_last_reported_limit() {
    let log = memory();
    let begin = async |setting: Option<RequestLimit>| {
        let rate_limit = RateLimit::new(log.clone(), setting, CancellationToken::new());
        rate_limit.restore().await;
        rate_limit
    };
    let gateway = Gateway::new(|_| Ok(reply()));
    let first = begin(None).await;
    first.set_limit(billing(1_000, 60));
    first.set_limit(billing(0, 60));
    for _ in 0..100 {
        gateway.request(&first, chat("a")).await.unwrap();
    }
    let second = begin(None).await;
    assert_eq!(second.free_slots(), 900);
    let start = clock::now();
    gateway.request(&second, chat("a")).await.unwrap();
    assert_eq!(clock::now(), start, "nothing is waited for");
    // A gateway that does not answer changes nothing.
    second.assume_default();
    assert_eq!(second.free_slots(), 899);
    second.set_limit(billing(5, 60));

    let fixed = begin(setting(500, 60)).await;
    assert_eq!(fixed.free_slots(), 399, "the settings win");
    fixed.set_limit(billing(200, 60));
    fixed.reconfigure(None);
    assert_eq!(fixed.free_slots(), 99, "and the limit reported meanwhile is kept");
    assert_eq!(begin(None).await.free_slots(), 99);
}

#[tokio::test(start_paused = true)]
async fn wait_for_limit_restarts_when_ledger_opens() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let rate_limit = auto();
    sleep(60 * SECOND).await;
    rate_limit.restore().await;
    let start = clock::now();
    let answer = async {
        sleep(2 * SECOND).await;
        assert_eq!(gateway.request_count(), 0);
        rate_limit.set_limit(billing(7, 30));
    };
    let (bought, ()) = tokio::join!(gateway.request(&rate_limit, chat("a")), answer);
    bought.unwrap();
    assert_eq!((clock::now() - start, rate_limit.free_slots()), (2 * SECOND, 6));
}

#[tokio::test(start_paused = true)]
async fn limit_of_former_account_is_forgotten() {
    let gateway = Gateway::new(|_| Ok(reply()));
    for (reported, free) in [((1_000, 60), 60), ((5, 60), 5), ((1, 60), 1), ((30, 3_600), 30)] {
        let rate_limit = auto();
        rate_limit.set_limit(billing(reported.0, reported.1));
        rate_limit.forget_limit();
        assert_eq!(rate_limit.free_slots(), free);
        let start = clock::now();
        if free > 1 {
            let question =
                Attempt { request: GatewayRequest::free(GatewayCall::Billing), ..chat("") };
            gateway.request(&rate_limit, question).await.unwrap();
            assert_eq!(clock::now(), start, "the question does not wait");
        }
        gateway.request(&rate_limit, chat("a")).await.unwrap();
        assert_eq!(clock::now() - start, PURCHASE_WAIT_FOR_LIMIT);
        // A gateway that does not answer brings the former limit not back, nor does a reload.
        rate_limit.assume_default();
        rate_limit.reconfigure(None);
        assert!(rate_limit.free_slots() < free);
        // The same limit is news.
        rate_limit.set_limit(billing(2_000, 60));
        assert!(rate_limit.free_slots() > 1_900);
    }

    let fixed = rate_limit(500, 60);
    fixed.set_limit(billing(7, 60));
    fixed.forget_limit();
    assert_eq!(fixed.free_slots(), 500);
    let start = clock::now();
    gateway.request(&fixed, chat("a")).await.unwrap();
    assert_eq!(clock::now(), start, "nothing is waited for");
    fixed.reconfigure(None);
    assert_eq!(fixed.free_slots(), 499, "what holds stays until the new account tells its own");
}

#[tokio::test(start_paused = true)]
async fn billing_request_is_sent_at_once_when_keys_change_under_load() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let question =
        || Attempt { request: GatewayRequest::free(GatewayCall::Billing).patient(), ..chat("") };
    for (sent, waits) in [(99, false), (100, true)] {
        let rate_limit = auto();
        rate_limit.set_limit(billing(100, 60));
        for _ in 0..sent {
            gateway.request(&rate_limit, chat("a")).await.unwrap();
        }
        // As when one key of several is rotated: it may be the same account.
        rate_limit.forget_limit();
        rate_limit.forget_limit();
        assert_eq!(rate_limit.free_slots(), 0);
        let start = clock::now();
        gateway.request(&rate_limit, question()).await.unwrap();
        assert_eq!(clock::now() > start, waits, "{sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn billing_request_is_sent_at_once_after_start_with_new_account_under_load() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let log = memory();
    let begin = || RateLimit::new(log.clone(), None, CancellationToken::new());
    let earlier = begin();
    earlier.set_limit(billing(1_000, 60));
    for _ in 0..100 {
        gateway.request(&earlier, chat("a")).await.unwrap();
    }
    let rate_limit = begin();
    rate_limit.forget_limit();
    rate_limit.restore().await;
    assert_eq!(rate_limit.free_slots(), 0);
    let start = clock::now();
    let question =
        Attempt { request: GatewayRequest::free(GatewayCall::Billing).patient(), ..chat("") };
    gateway.request(&rate_limit, question).await.unwrap();
    assert_eq!(clock::now(), start);
}

#[tokio::test(start_paused = true)]
async fn start_with_new_account_ignores_stored_limit() {
    let log = memory();
    let begin = || RateLimit::new(log.clone(), None, CancellationToken::new());
    begin().set_limit(billing(1_000, 60));
    let rate_limit = begin();
    rate_limit.forget_limit();
    rate_limit.restore().await;
    assert_eq!(rate_limit.free_slots(), 60);
    let start = clock::now();
    Gateway::new(|_| Ok(reply())).request(&rate_limit, chat("a")).await.unwrap();
    assert_eq!(clock::now() - start, PURCHASE_WAIT_FOR_LIMIT);
    // Also one that is the same as the former.
    rate_limit.set_limit(billing(1_000, 60));
    let next = begin();
    next.restore().await;
    assert_eq!((rate_limit.free_slots(), next.free_slots()), (999, 999));
}

#[tokio::test(start_paused = true)]
async fn request_waits_up_to_max_wait_for_unknown_limit() {
    let transport = |_: Attempt| ready(Ok::<_, Error>(reply()));
    for (told_after, served_after) in [(1, Some(1)), (3, None)] {
        let log = memory();
        // As many as the assumed limit allows, and more.
        for _ in 0..100 {
            let place = SlotId::generate();
            log.take_slot(place).await.unwrap();
            log.slot_replied(place);
        }
        let rate_limit = RateLimit::new(log, None, CancellationToken::new());
        rate_limit.restore().await;
        let start = clock::now();
        let asking = send(&rate_limit, 2 * SECOND, transport, chat("a"));
        let telling = async {
            sleep(told_after * SECOND).await;
            rate_limit.set_limit(billing(1_000, 60));
        };
        let asking = async { (asking.await, clock::now() - start) };
        let ((outcome, took), ()) = tokio::join!(asking, telling);
        match served_after {
            Some(seconds) => {
                outcome.unwrap();
                assert_eq!(took, seconds * SECOND);
            }
            None => {
                retry_after(outcome);
                assert_eq!(took, 2 * SECOND);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn billing_request_gets_slot_although_purchases_fill_assumed_limit() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let rate_limit = auto();
    rate_limit.assume_default();
    for _ in 0..59 {
        gateway.request(&rate_limit, chat("a")).await.unwrap();
    }
    retry_after(gateway.request(&rate_limit, chat("b")).await);
    let question = |request: GatewayRequest| Attempt { request, ..chat("") };
    let start = clock::now();
    gateway
        .request(&rate_limit, question(GatewayRequest::free(GatewayCall::Billing)))
        .await
        .unwrap();
    assert_eq!((clock::now(), gateway.request_count()), (start, 60));
    // Beyond the assumed limit, a command fails and the server itself waits.
    retry_after(
        gateway.request(&rate_limit, question(GatewayRequest::free(GatewayCall::Billing))).await,
    );
    gateway
        .request(&rate_limit, question(GatewayRequest::free(GatewayCall::Billing).patient()))
        .await
        .unwrap();
    assert!(clock::now() - start >= 60 * SECOND);
}
