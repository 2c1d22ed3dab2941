//! A restart begins with the limit that the gateway told the last process.

use super::*;

const AUTO: &str = "gateway.rate_limit = \"auto\"";

/// Answers each of so many callers, all at once.
fn chats(gate: &Gate, count: usize) -> Vec<u16> {
    let clients: Vec<_> = (0..count).map(|caller| send(gate, caller, "hi")).collect();
    clients.into_iter().map(|mut client| client.answer().status).collect()
}

fn served(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status == 200).count()
}

#[test]
fn small_rate_limit_holds_after_a_crash_with_silent_billing() {
    let upstream = upstream();
    upstream.set_listing(books(5, 60));
    let settings = format!("{AUTO}\ngateway.max_wait = \"7s\"");
    let mut gate = Gate::binary(&upstream, &settings, &[]);
    until("the limit is known", || figure(&gate, "rate_limit_free") == 4);
    assert_eq!(served(&chats(&gate, 8)), 4);
    // It is asked, and does not answer; an assumed limit would hold in five seconds.
    upstream.set_listing(Reply::nothing(Ending::Hang));
    gate.kill();
    gate.restart();
    assert_eq!(served(&chats(&gate, 20)), 0);
    upstream.assert_held(5, Duration::from_secs(60));
}

#[test]
fn large_account_is_served_right_after_a_restart_under_load() {
    let upstream = upstream();
    upstream.set_listing(books(1_000, 60));
    let mut gate = Gate::binary(&upstream, AUTO, &[]);
    until("the limit is known", || figure(&gate, "rate_limit_free") > 900);
    assert_eq!(served(&chats(&gate, 120)), 120);
    upstream.set_listing(Reply::nothing(Ending::Hang));
    in_time("a purchase right after a restart", |_| {
        gate.restart();
        let start = tollgate::clock::now();
        assert_eq!(gate.chat().status, 200);
        (start.elapsed() < Duration::from_secs(4)).then_some(())
    });
    upstream.assert_held(1_000, Duration::from_secs(60));
}
