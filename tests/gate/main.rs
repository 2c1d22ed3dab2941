//! The promises of tollgate, each a module, kept over real sockets between a client and a gateway
//! that both do whatever a test wants.
#![cfg(test)]

mod browsers;
mod commands;
mod heads;
mod limits;
mod patience;
mod signals;
mod support;

use support::{Gate, Reply, Upstream};

#[test]
fn smoke() {
    let upstream = Upstream::start(|heard| match heard.target.as_str() {
        "/api/v1/chat" => Reply::chat("hi"),
        _ => Reply::video("job-1"),
    });
    let gate = Gate::start(&upstream, "");
    let a = gate.chat();
    println!("{a:?}");
    assert_eq!((a.status, a.toll()), (200, Some(6_000)), "{}", a.text());
    let a = gate.video();
    assert_eq!((a.status, a.toll()), (200, Some(3_000_000)), "{}", a.text());
    let gate = Gate::binary(&upstream, "", &[]);
    drop(gate);
}
