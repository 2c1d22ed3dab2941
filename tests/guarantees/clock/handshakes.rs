//! How long a TLS handshake may take.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tollgate::clock;

use crate::guarantees::tls::Server;
use crate::support::{PATIENCE, until};

#[test]
fn failed_handshakes_are_counted_and_slow_ones_end() {
    const TIMEOUT: Duration = Duration::from_millis(400);
    let server =
        Server::start("server.header_timeout = \"400ms\"\nserver.idle_timeout = \"600s\"\n");
    // A ClientHello that never ends, and nothing at all.
    for hello in [&b"\x16\x03\x01\x02\x00\x01"[..], b""] {
        let started = clock::now();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // On a busy machine, the gate may have closed it.
        stream.write_all(hello).ok();
        let end = stream.read(&mut [0]);
        assert!(end.is_ok_and(|read| read == 0), "no answer, and an end");
        let took = started.elapsed();
        assert!(took >= TIMEOUT, "{took:?}");
    }
    // A scrape has as little time, and may have to be repeated.
    let metrics = || {
        let mut text = String::new();
        let mut stream = TcpStream::connect(server.process.address("admin")).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).ok();
        stream.read_to_string(&mut text).ok();
        text
    };
    until("both are counted", || {
        let metrics = metrics();
        metrics.contains("tollgate_tls_handshakes_failed_total 2")
            && metrics.contains("tollgate_certificate_expires_seconds ")
    });
    let log = server.process.printed();
    assert!(!log.contains("WARN\",\"message\":\"tls"), "a scanner fills no log: {log}");
}
