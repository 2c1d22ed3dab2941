//! Where the limit comes from: the settings, the gateway's books, or nowhere.

use super::*;

fn billing(requests: u64, window_seconds: u64) -> RateLimit {
    RateLimit { requests, window_seconds }
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
    assert_eq!(waited(&silent, ask(What::VideoStatus { request_id: "r".into() })).await, 1);
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
        tokio::time::sleep(SECOND).await;
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
        tokio::time::sleep(SECOND).await;
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
    window.follow(config::Window::Auto);
    assert_eq!(window.free(), 3);
    window.set_limit(billing(60, 60));
    assert_eq!(window.free(), 60);
}

#[tokio::test(start_paused = true)]
async fn an_idle_window_has_room_for_polls_but_for_what_is_kept_for_purchases() {
    let window = window(60, 60);
    assert_eq!((window.free(), window.room()), (60, 54));
}
