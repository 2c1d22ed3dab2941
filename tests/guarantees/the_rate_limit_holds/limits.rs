//! Never more than the limit, wherever it comes from, whatever is asked, and across restarts.

use super::*;
use crate::support::reply::Latch;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn rate_limit_of_five_a_second_holds_for_all_requests() {
    in_time("half of them are served", |slower| {
        let (upstream, answers) = forty_requests(6 * slower);
        answers.iter().for_each(assert_honest);
        assert!(
            upstream.received_requests().iter().any(|received| received.method == "GET"),
            "polls are among them"
        );
        upstream.assert_held(5, SECOND);
        (answers.iter().filter(|answer| answer.status == 200).count() >= 20).then_some(())
    });
}

/// Chats and polls at once, which wait for a slot for so many seconds.
fn forty_requests(max_wait: u64) -> (Upstream, Vec<Answer>) {
    let upstream = upstream();
    let limit = "gateway.rate_limit = { requests = 5, seconds = 1 }";
    let gate = gate(&upstream, &format!("{limit}\ngateway.max_wait = \"{max_wait}s\""));
    let job = |answer: &Answer| answer.json()["request_id"].as_str().unwrap().to_owned();
    let jobs = [job(&gate.video()), job(&gate.video())];
    let answers = thread::scope(|scope| {
        let chats = (0..34).map(|number| {
            let mut client = send(&gate, number % 4, &format!("chat {number}"));
            scope.spawn(move || client.answer())
        });
        let chats: Vec<_> = chats.collect();
        let polls = (0..6).map(|number| {
            let target = format!("/api/v1/video/status?request_id={}", jobs[number % 2]);
            let gate = &gate;
            scope.spawn(move || gate.get(&target))
        });
        let polls: Vec<_> = polls.collect();
        chats.into_iter().chain(polls).map(|asking| asking.join().unwrap()).collect()
    });
    (upstream, answers)
}

#[test]
fn retry_after_a_429_takes_its_own_slot() {
    let upstream = Upstream::start(|received| match received.number {
        0 => Reply::error(429).header("retry-after", "1"),
        _ => Reply::chat("hi"),
    });
    let settings = "gateway.rate_limit = { requests = 3, seconds = 60 }\ngateway.max_wait = \"5s\"";
    let gate = gate(&upstream, settings);
    assert_eq!((gate.chat().status, upstream.requests()), (200, 2));
    assert_eq!(figure(&gate, "rate_limit_free"), 1);
    assert_eq!((gate.chat().status, upstream.requests()), (200, 3));
    assert_eq!((gate.chat().status, upstream.requests()), (503, 3));
}

#[test]
fn slow_reply_keeps_its_slot_for_a_window_after_it() {
    let upstream = Upstream::start(|_| Reply::chat("hi").after(Duration::from_millis(600)));
    let gate = gate(&upstream, "gateway.rate_limit = { requests = 2, seconds = 1 }");
    let clients: Vec<_> = (0..6).map(|caller| send(&gate, caller, "hi")).collect();
    for mut client in clients {
        assert_eq!(client.answer().status, 200);
    }
    let arrivals = upstream.arrivals();
    assert!(arrivals[5] - arrivals[0] >= 2 * (SECOND + Duration::from_millis(600)));
}

#[test]
fn rate_limit_survives_a_restart() {
    // Side by side, as they wait for the window most of the time.
    thread::scope(|scope| {
        for how in [Signal::SIGTERM, Signal::SIGKILL] {
            scope.spawn(move || {
                in_time("it starts twice in a window", |slower| {
                    goes_on_with_the_window(how, 9 * slower)
                });
            });
        }
    });
}

/// Returns nothing if the window was over too soon.
fn goes_on_with_the_window(how: Signal, seconds: u64) -> Option<()> {
    let (upstream, period) = (upstream(), Duration::from_secs(seconds));
    let settings = format!(
        "gateway.rate_limit = {{ requests = 3, seconds = {seconds} }}\ngateway.max_wait = \"{}s\"",
        2 * seconds
    );
    let mut gate = Gate::binary(&upstream, &settings, &[]);
    // At its start it asks for the books, which counts as well.
    until("the books were asked for", || upstream.arrivals().len() == 1);
    assert_eq!((gate.chat().status, gate.chat().status), (200, 200));
    gate.signal(how);
    gate.wait();
    gate.restart();
    let free = figure(&gate, "rate_limit_free");
    if upstream.arrivals()[0].elapsed() >= period {
        return None;
    }
    assert_eq!(free, 0, "{how}");
    assert_eq!(gate.chat().status, 200, "{how}");
    assert_eq!(upstream.requests(), 3);
    upstream.assert_held(3, period);
    Some(())
}

#[test]
fn call_cut_off_by_a_crash_counts_from_the_restart() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hi").when(latch));
    let settings = "gateway.rate_limit = { requests = 2, seconds = 4 }";
    let mut gate = Gate::binary(&upstream, settings, &[]);
    until("the books were asked for", || upstream.arrivals().len() == 1);
    let client = send(&gate, 1, "cut off");
    upstream.wait_for(1);
    gate.kill();
    latch.open();
    drop(client);
    gate.restart();
    assert_eq!(gate.chat().status, 200);
    upstream.assert_held(2, 4 * SECOND);
}

#[test]
fn auto_rate_limit_follows_the_gateway() {
    let upstream = upstream();
    upstream.set_listing(books(7, 1));
    let gate = gate(&upstream, "gateway.rate_limit = \"auto\"");
    let clients: Vec<_> = (0..20).map(|caller| send(&gate, caller, "hi")).collect();
    for mut client in clients {
        assert_eq!(client.answer().status, 200);
    }
    upstream.assert_held(7, SECOND);
    until("the window is empty again", || figure(&gate, "rate_limit_free") == 7);
}

#[test]
fn silent_billing_delays_purchases_five_seconds_at_most() {
    in_time("a purchase after five seconds", |_| {
        let started = tollgate::clock::now();
        let silent = upstream();
        silent.set_listing(Reply::nothing(Ending::Hang));
        let waits = gate(&silent, "gateway.rate_limit = \"auto\"");
        assert_eq!(waits.chat().status, 200);
        let took = started.elapsed();
        assert!(took >= 4 * SECOND, "{took:?}");
        (took < 15 * SECOND).then_some(())
    });
    in_time("a purchase at once", |_| {
        let refuses = upstream();
        let waits = gate(&refuses, "gateway.rate_limit = \"auto\"");
        let started = tollgate::clock::now();
        assert_eq!(waits.chat().status, 200);
        (started.elapsed() < 4 * SECOND).then_some(())
    });
}
