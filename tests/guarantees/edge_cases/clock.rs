//! A client that reads slowly, for longer than a connection may be idle.

use std::io::Read;
use std::time::Duration;

use socket2::SockRef;

use crate::support::{CHAT, Gate, Reply, Upstream, pause};

#[test]
fn slow_reader_gets_a_large_reply_whole() {
    const LENGTH: usize = 4_000_000;
    let big = "x".repeat(LENGTH);
    let upstream = Upstream::start(move |_| Reply::chat(&big));
    let settings = "server.idle_timeout = \"500ms\"\nserver.header_timeout = \"2s\"";
    let gate = Gate::start(&upstream, settings);
    let mut client = gate.client();
    SockRef::from(client.stream()).set_recv_buffer_size(65_536).unwrap();
    client.send("POST", "/api/v1/chat", &[("idempotency-key", "k")], CHAT);
    let mut stream = client.stream();
    let mut read = 0;
    let mut some = vec![0; LENGTH / 20];
    while read < LENGTH {
        match stream.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(more) => read += more,
        }
        pause(Duration::from_millis(40));
    }
    assert!(read >= LENGTH, "only {read} bytes came, though the client read all the time");
}
