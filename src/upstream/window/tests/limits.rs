//! Where the limit comes from: the settings, the gateway's books, or nowhere.

use super::*;

fn billing(requests: u64, window_seconds: u64) -> AccountLimit {
    AccountLimit { requests, window_seconds }
}

fn auto() -> Arc<Window> {
    Window::new(memory(), config::Window::Auto, CancellationToken::new())
}

#[tokio::test(start_paused = true)]
async fn purchases_wait_for_the_gateways_word_five_seconds_at_most_and_its_own_question_does_not() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let waited = async |window: &Arc<Window>, attempt: Attempt| {
        let start = clock::now();
        gateway.ask(window, attempt).await.unwrap();
        (clock::now() - start).as_secs()
    };
    let ask = |what| Attempt { ask: Ask::free(what), ..chat("") };
    let (silent, told) = (auto(), auto());
    assert_eq!(waited(&silent, ask(What::Billing)).await, 0);
    assert_eq!(
        waited(&silent, ask(What::VideoStatus { request_id: "r".into(), is_watched: true })).await,
        1
    );
    assert_eq!(waited(&silent, chat("a")).await, 4);
    assert_eq!(silent.free(), 57);

    told.set_limit(billing(7, 30));
    assert_eq!((waited(&told, chat("a")).await, told.free()), (0, 6));
}

#[tokio::test(start_paused = true)]
async fn an_answer_lets_those_go_who_wait_for_it() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let window = auto();
    let start = clock::now();
    let answer = async {
        sleep(SECOND).await;
        window.set_limit(billing(7, 30));
    };
    let (bought, ()) = tokio::join!(gateway.ask(&window, chat("a")), answer);
    bought.unwrap();
    assert_eq!(clock::now() - start, SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_does_not_tell_lets_those_go_who_wait_for_its_word() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let window = auto();
    let start = clock::now();
    let silence = async {
        sleep(SECOND).await;
        assert_eq!(window.waiting(), 1);
        window.assume();
    };
    let (bought, ()) = tokio::join!(gateway.ask(&window, chat("a")), silence);
    bought.unwrap();
    assert_eq!((clock::now() - start, window.waiting()), (SECOND, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_limit_is_passed_over_and_a_setting_wins() {
    let window = auto();
    let longest = LONGEST.as_secs();
    for limit in [billing(0, 60), billing(7, 0), billing(7, longest + 1)] {
        window.set_limit(limit);
        assert_eq!(window.free(), 60, "{limit:?}");
    }
    window.set_limit(billing(7, longest));
    assert_eq!(window.free(), 7);
    window.set_limit(billing(u64::MAX, 60));
    assert!(window.free() > 1_000_000);
    window.follow(setting(3, 1));
    window.set_limit(billing(60, 60));
    assert_eq!(window.free(), 3);
    // Nothing is asked again at a reload: what was told meanwhile holds.
    window.follow(config::Window::Auto);
    assert_eq!(window.free(), 60);
}

#[tokio::test(start_paused = true)]
async fn restart_begins_with_limit_that_was_told_last() {
    let log = memory();
    let begin = async |setting: config::Window| {
        let window = Window::new(log.clone(), setting, CancellationToken::new());
        window.restore().await;
        window
    };
    let gateway = Gateway::new(|_| Ok(reply()));
    let first = begin(config::Window::Auto).await;
    first.set_limit(billing(1_000, 60));
    first.set_limit(billing(0, 60));
    for _ in 0..100 {
        gateway.ask(&first, chat("a")).await.unwrap();
    }
    let second = begin(config::Window::Auto).await;
    assert_eq!(second.free(), 900);
    let start = clock::now();
    gateway.ask(&second, chat("a")).await.unwrap();
    assert_eq!(clock::now(), start, "nothing is waited for");
    // A gateway that does not answer changes nothing.
    second.assume();
    assert_eq!(second.free(), 899);
    second.set_limit(billing(5, 60));

    let fixed = begin(setting(500, 60)).await;
    assert_eq!(fixed.free(), 399, "the settings win");
    fixed.set_limit(billing(200, 60));
    fixed.follow(config::Window::Auto);
    assert_eq!(fixed.free(), 99, "and what was told meanwhile is not forgotten");
    assert_eq!(begin(config::Window::Auto).await.free(), 99);
}

#[tokio::test(start_paused = true)]
async fn hold_begins_anew_when_ledger_has_opened() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let window = auto();
    sleep(60 * SECOND).await;
    window.restore().await;
    let start = clock::now();
    let answer = async {
        sleep(2 * SECOND).await;
        assert_eq!(gateway.asked(), 0);
        window.set_limit(billing(7, 30));
    };
    let (bought, ()) = tokio::join!(gateway.ask(&window, chat("a")), answer);
    bought.unwrap();
    assert_eq!((clock::now() - start, window.free()), (2 * SECOND, 6));
}

#[tokio::test(start_paused = true)]
async fn limit_of_former_account_is_forgotten() {
    let gateway = Gateway::new(|_| Ok(reply()));
    for (told, free) in [((1_000, 60), 60), ((5, 60), 5), ((1, 60), 1), ((30, 3_600), 30)] {
        let window = auto();
        window.set_limit(billing(told.0, told.1));
        window.forget_limit();
        assert_eq!(window.free(), free);
        let start = clock::now();
        if free > 1 {
            let question = Attempt { ask: Ask::free(What::Billing), ..chat("") };
            gateway.ask(&window, question).await.unwrap();
            assert_eq!(clock::now(), start, "the question does not wait");
        }
        gateway.ask(&window, chat("a")).await.unwrap();
        assert_eq!(clock::now() - start, PURCHASES_HOLD);
        // A gateway that does not answer brings the former limit not back, nor does a reload.
        window.assume();
        window.follow(config::Window::Auto);
        assert!(window.free() < free);
        // The same limit is news.
        window.set_limit(billing(2_000, 60));
        assert!(window.free() > 1_900);
    }

    let fixed = window(500, 60);
    fixed.set_limit(billing(7, 60));
    fixed.forget_limit();
    assert_eq!(fixed.free(), 500);
    let start = clock::now();
    gateway.ask(&fixed, chat("a")).await.unwrap();
    assert_eq!(clock::now(), start, "nothing is waited for");
    fixed.follow(config::Window::Auto);
    assert_eq!(fixed.free(), 499, "what holds stays until the new account tells its own");
}

#[tokio::test(start_paused = true)]
async fn limit_question_leaves_at_once_when_keys_change_under_load() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let question = || Attempt { ask: Ask::free(What::Billing).patient(), ..chat("") };
    for (sent, waits) in [(99, false), (100, true)] {
        let window = auto();
        window.set_limit(billing(100, 60));
        for _ in 0..sent {
            gateway.ask(&window, chat("a")).await.unwrap();
        }
        // As when one key of several is rotated: it may be the same account.
        window.forget_limit();
        window.forget_limit();
        assert_eq!(window.free(), 0);
        let start = clock::now();
        gateway.ask(&window, question()).await.unwrap();
        assert_eq!(clock::now() > start, waits, "{sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn limit_question_leaves_at_once_when_a_start_under_load_is_for_a_new_account() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let log = memory();
    let begin = || Window::new(log.clone(), config::Window::Auto, CancellationToken::new());
    let earlier = begin();
    earlier.set_limit(billing(1_000, 60));
    for _ in 0..100 {
        gateway.ask(&earlier, chat("a")).await.unwrap();
    }
    let window = begin();
    window.forget_limit();
    window.restore().await;
    assert_eq!(window.free(), 0);
    let start = clock::now();
    let question = Attempt { ask: Ask::free(What::Billing).patient(), ..chat("") };
    gateway.ask(&window, question).await.unwrap();
    assert_eq!(clock::now(), start);
}

#[tokio::test(start_paused = true)]
async fn start_for_new_account_passes_over_stored_limit() {
    let log = memory();
    let begin = || Window::new(log.clone(), config::Window::Auto, CancellationToken::new());
    begin().set_limit(billing(1_000, 60));
    let window = begin();
    window.forget_limit();
    window.restore().await;
    assert_eq!(window.free(), 60);
    let start = clock::now();
    Gateway::new(|_| Ok(reply())).ask(&window, chat("a")).await.unwrap();
    assert_eq!(clock::now() - start, PURCHASES_HOLD);
    // Also one that is the same as the former.
    window.set_limit(billing(1_000, 60));
    let next = begin();
    next.restore().await;
    assert_eq!((window.free(), next.free()), (999, 999));
}

#[tokio::test(start_paused = true)]
async fn request_waits_up_to_max_wait_for_limit_that_is_not_known_yet() {
    let transport = |_: Attempt| ready(Ok::<_, Error>(reply()));
    for (told_after, served_after) in [(1, Some(1)), (3, None)] {
        let log = memory();
        // As many as the assumed limit allows, and more.
        for _ in 0..100 {
            let place = Place::new();
            log.took(place).await.unwrap();
            log.replied(place);
        }
        let window = Window::new(log, config::Window::Auto, CancellationToken::new());
        window.restore().await;
        let start = clock::now();
        let asking = send(&window, 2 * SECOND, transport, chat("a"));
        let telling = async {
            sleep(told_after * SECOND).await;
            window.set_limit(billing(1_000, 60));
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
async fn limit_question_finds_its_slot_although_purchases_fill_assumed_limit() {
    let gateway = Gateway::new(|_| Ok(reply()));
    let window = auto();
    window.assume();
    for _ in 0..59 {
        gateway.ask(&window, chat("a")).await.unwrap();
    }
    retry_after(gateway.ask(&window, chat("b")).await);
    let question = |ask: Ask| Attempt { ask, ..chat("") };
    let start = clock::now();
    gateway.ask(&window, question(Ask::free(What::Billing))).await.unwrap();
    assert_eq!((clock::now(), gateway.asked()), (start, 60));
    // Beyond the assumed limit nothing is sent: a command is told so, and the server itself waits.
    retry_after(gateway.ask(&window, question(Ask::free(What::Billing))).await);
    gateway.ask(&window, question(Ask::free(What::Billing).patient())).await.unwrap();
    assert!(clock::now() - start >= 60 * SECOND);
}
