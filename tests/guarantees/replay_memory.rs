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

/// Asks for the answer again, and takes next to nothing of it.
fn asks(gate: &Gate) -> Client {
    let mut client = gate.narrow_client();
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
        let mut unread = [asks(&gate), asks(&gate)].map(Some);
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
    const UNREAD: usize = 80;
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(BYTES)));
    let gate = Gate::binary(&upstream, "store.url = \"sqlite:ledger.db\"", &[]);
    let first = chat(&gate);
    assert_eq!(first.status, 200);
    let before = resident(&gate);
    let mut unread: Vec<_> = (0..UNREAD).map(|_| asks(&gate)).collect();
    let begun = |clients: &[Client]| clients.iter().filter(|client| has_begun(client)).count();
    until("some are being answered", || begun(&unread) >= 15);
    // The ledger has answered all of them before this one, which needs no room.
    assert_eq!(gate.chat().status, 200);
    let held = resident(&gate) - before;
    assert!(held < 150 << 10, "{held} KiB for {UNREAD} replays of {BYTES} bytes");
    // As the others leave, it is the turn of one that waits.
    let waits = unread.iter().position(|client| !has_begun(client)).expect("not all at once");
    let mut waiting = unread.swap_remove(waits);
    drop(unread);
    let answer = waiting.answer();
    assert!(answer.is_replay() && answer.body == first.body);
}
