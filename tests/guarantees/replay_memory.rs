//! Replies that are sent again: whoever does not read them holds a place, and not much memory.

use std::fs;
use std::io::Read;

use crate::support::client::{Answer, Client};
use crate::support::{CHAT, Gate, Reply, STORES, Upstream, until};

const BYTES: usize = 3 << 20;
const KEY: (&str, &str) = ("idempotency-key", "k");

fn chat(gate: &Gate) -> Answer {
    gate.ask("POST", "/api/v1/chat", &[KEY], CHAT)
}

/// Asks for the answer again from 127.0.0.`last`, and takes next to nothing of it.
fn asks(gate: &Gate, last: u8) -> Client {
    let mut client = gate.narrow_client_from([127, 0, 0, last].into());
    client.send("POST", "/api/v1/chat", &[KEY], CHAT);
    client
}

fn begins(client: &Client) {
    let mut some = [0; 12];
    client.stream().read_exact(&mut some).unwrap();
    assert_eq!(&some, b"HTTP/1.1 200");
}

/// Whether its answer has begun to arrive; nothing of it is taken.
fn has_begun(client: &Client) -> bool {
    client.stream().set_nonblocking(true).unwrap();
    let arrived = client.stream().peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
    client.stream().set_nonblocking(false).unwrap();
    arrived
}

/// Kibibytes that the process has in memory.
fn resident(gate: &Gate) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gate.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn unread_replay_counts_as_a_concurrent_call() {
    let limits = "limits = { requests = 1000, seconds = 1, burst = 1000, concurrent = 2 }";
    for store in STORES {
        let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(BYTES)));
        let gate = Gate::start(&upstream, &format!("{store}\n{limits}"));
        assert_eq!(chat(&gate).status, 200);
        let mut unread = [asks(&gate, 1), asks(&gate, 1)].map(Some);
        unread.iter().flatten().for_each(begins);
        let refused = chat(&gate);
        assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limited"), "{store}");
        // One that leaves makes room.
        unread[0] = None;
        until("its place is free", || chat(&gate).status == 200);
        assert_eq!(upstream.charges(), [6_000], "{store}");
    }
}

#[test]
fn unread_replays_hold_bounded_memory_and_are_answered_in_turn() {
    const CALLERS: u8 = 10;
    const EACH: usize = 8;
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(BYTES)));
    let gate = Gate::binary(&upstream, "store.url = \"sqlite:ledger.db\"", &[]);
    let first = chat(&gate);
    assert_eq!(first.status, 200);
    let before = resident(&gate);
    let unread = |last| (0..EACH).map(|_| asks(&gate, last)).collect::<Vec<_>>();
    let mut unread: Vec<_> = (2..2 + CALLERS).flat_map(unread).collect();
    let begun = |clients: &[Client]| clients.iter().filter(|client| has_begun(client)).count();
    until("some are being answered", || begun(&unread) >= 15);
    // The ledger has answered all of them before this one, which needs no room.
    assert_eq!(gate.chat().status, 200);
    let held = resident(&gate) - before;
    assert!(held < 150 << 10, "{held} KiB for {} replays of {BYTES} bytes", unread.len());
    // As the others leave, it is the turn of one that waits.
    let waits = unread.iter().position(|client| !has_begun(client)).expect("not all at once");
    let mut waiting = unread.swap_remove(waits);
    drop(unread);
    let answer = waiting.answer();
    assert!(answer.is_replay() && answer.body == first.body);
}

#[test]
fn callers_who_read_nothing_delay_no_replay_of_others() {
    const MEDIUM: usize = 200 << 10;
    let upstream = Upstream::start(|received| {
        let is_medium = String::from_utf8_lossy(&received.body).contains("medium");
        Reply::chat(&"x".repeat(if is_medium { MEDIUM } else { BYTES }))
    });
    let gate = Gate::start(&upstream, "store.url = \"sqlite:ledger.db\"");
    let medium = || {
        let body = CHAT.replace("hello", "medium");
        gate.ask("POST", "/api/v1/chat", &[("idempotency-key", "m")], &body)
    };
    assert_eq!([chat(&gate).status, medium().status], [200; 2]);
    // Each of them has its share. Without one, three have all of the room.
    let unread: Vec<_> = (2..5).flat_map(|last| [last; 8]).map(|last| asks(&gate, last)).collect();
    let begun = |clients: &[Client]| clients.iter().filter(|client| has_begun(client)).count();
    until("some are being answered", || begun(&unread) >= 6);
    gate.catch_up();
    assert!(chat(&gate).is_replay());
    // With many of them, it is the small replies that find room.
    let more: Vec<_> = (5..15).flat_map(|last| [last; 8]).map(|last| asks(&gate, last)).collect();
    until("the room is full", || begun(&unread) + begun(&more) >= 18);
    gate.catch_up();
    assert!(medium().is_replay());
}
