//! HTTP/2 frames that no client library sends. Whatever they do, the gate serves other callers, and
//! nothing is bought.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use socket2::SockRef;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use crate::support::bridge::{Transport, connector};
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, PATIENCE, Reply, Upstream, until};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

type Connection = StreamOwned<ClientConnection, TcpStream>;

#[derive(Debug)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header that is not indexed.
fn field(name: &str, value: &str) -> Vec<u8> {
    let short = |text: &str| u8::try_from(text.len()).unwrap();
    [&[0, short(name)], name.as_bytes(), &[short(value)], value.as_bytes()].concat()
}

/// The head of a request with JSON.
fn post(target: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x83, 0x87];
    let fields =
        [(":path", target), (":authority", "localhost"), ("content-type", "application/json")];
    for (name, value) in fields.iter().chain(more) {
        block.extend(field(name, value));
    }
    block
}

/// Opens a connection that has sent its preface.
fn connect(gate: &Gate) -> Connection {
    let config = Arc::clone(connector(gate.certificate(), true).config());
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(gate.behind_bridge()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut connection = StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream);
    connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    connection.write_all(&frame(SETTINGS, 0, 0, b"")).unwrap();
    connection
}

fn next(connection: &mut Connection) -> Option<Frame> {
    let mut head = [0; 9];
    connection.read_exact(&mut head).ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    connection.read_exact(&mut payload).ok()?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some(Frame { kind: head[3], stream, payload })
}

/// Returns the error code of the GOAWAY with which the gate ends the connection.
fn goaway(connection: &mut Connection) -> u8 {
    loop {
        match next(connection) {
            Some(Frame { kind: GOAWAY, payload, .. }) => return payload[7],
            Some(_) => {}
            None => panic!("the connection ended without a GOAWAY"),
        }
    }
}

fn gate(upstream: &Upstream, settings: &str) -> Gate {
    Gate::over(Transport::Http2, upstream, settings)
}

#[test]
fn rapid_reset_ends_the_connection_and_buys_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = gate(&upstream, "");
    let mut connection = connect(&gate);
    let head = post("/api/v1/chat", &[]);
    let mut sent = 0;
    for stream in (1..20_000).step_by(2) {
        let open = frame(HEADERS, END_HEADERS, stream, &head);
        let reset = frame(RST_STREAM, 0, stream, &8u32.to_be_bytes());
        if connection.write_all(&[open, reset].concat()).is_err() {
            break;
        }
        sent += 1;
    }
    println!("{sent} streams were reset");
    // The gate may have closed the connection while this one wrote.
    while next(&mut connection).is_some_and(|frame| frame.kind != GOAWAY) {}
    assert_eq!(upstream.requests(), 0);
    assert_eq!(gate.chat().status, 200);
}

#[test]
fn server_made_resets_end_the_connection() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = gate(&upstream, "");
    let mut connection = connect(&gate);
    let head = post("/api/v1/chat", &[]);
    for stream in (1..2_000).step_by(2) {
        // A window update of zero is an error of the stream.
        let open = frame(HEADERS, END_HEADERS, stream, &head);
        let mistake = frame(WINDOW_UPDATE, 0, stream, &0u32.to_be_bytes());
        if connection.write_all(&[open, mistake].concat()).is_err() {
            break;
        }
    }
    while next(&mut connection).is_some_and(|frame| frame.kind != GOAWAY) {}
    assert_eq!(upstream.requests(), 0);
    assert_eq!(gate.chat().status, 200);
}

#[test]
fn endless_head_ends_the_connection() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = gate(&upstream, "");
    let mut connection = connect(&gate);
    connection.write_all(&frame(HEADERS, END_STREAM, 1, &post("/", &[]))).unwrap();
    let part = field("x", &"x".repeat(100)).repeat(100);
    let is_ended =
        (0..10_000).any(|_| connection.write_all(&frame(CONTINUATION, 0, 1, &part)).is_err());
    assert!(is_ended, "100 MB of a head were taken");
    assert_eq!(gate.chat().status, 200);
}

#[test]
fn large_head_is_refused() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = gate(&upstream, "");
    let many: Vec<_> = (0..70).map(|n| format!("x-{n}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).collect();
    let long = "x".repeat(120);
    let large: Vec<_> = (0..150).map(|_| ("x", long.as_str())).collect();
    for more in [many, large] {
        let answer = answer_to(&gate, &post("/api/v1/chat", &more), 0);
        assert_eq!(answer.kind, HEADERS, "{answer:?}");
        // An indexed field would be one of the seven known statuses.
        assert!(!(0x88..=0x8e).contains(&answer.payload[0]), "{answer:?}");
    }
    assert_eq!(upstream.requests(), 0);
}

/// Sends a head in as many frames as it takes, and returns the first frame of the answer.
fn answer_to(gate: &Gate, block: &[u8], end: u8) -> Frame {
    let mut connection = connect(gate);
    let parts: Vec<_> = block.chunks(16_000).collect();
    for (place, part) in parts.iter().enumerate() {
        let (kind, end) = if place == 0 { (HEADERS, end) } else { (CONTINUATION, 0) };
        let end = if place + 1 == parts.len() { end | END_HEADERS } else { end };
        connection.write_all(&frame(kind, end, 1, part)).unwrap();
    }
    loop {
        let answer = next(&mut connection).expect("an answer");
        if answer.stream == 1 {
            return answer;
        }
    }
}

#[test]
fn cookies_count_as_in_http_1_however_they_are_split() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = gate(&upstream, "");
    let mut block = vec![0x82, 0x87];
    block.extend([field(":path", "/bff/me"), field(":authority", "localhost")].concat());
    // As many as a browser keeps for a site. In HTTP/1, they are one header of 15.5 KB.
    let cookies = |length: usize| -> Vec<u8> {
        (100..280).flat_map(|n| field("cookie", &format!("c{n}={}", "x".repeat(length)))).collect()
    };
    let small = answer_to(&gate, &[&*block, &cookies(79)].concat(), END_STREAM);
    assert_eq!((small.kind, small.payload[0]), (HEADERS, 0x88), "{small:?}");
    let large = answer_to(&gate, &[&*block, &cookies(90)].concat(), END_STREAM);
    assert_eq!(large.kind, HEADERS);
    assert!(!(0x88..=0x8e).contains(&large.payload[0]), "{large:?}");
}

#[test]
fn settings_and_ping_floods_do_not_hold_up_others() {
    /// Ten times what the runtime lets a connection read before it turns to the next.
    const FRAMES: usize = 2_000;
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = gate(&upstream, "");
    for flood in [frame(SETTINGS, 0, 0, b""), frame(PING, 0, 0, b"12345678")] {
        let mut connection = connect(&gate);
        let socket = connection.sock.try_clone().unwrap();
        SockRef::from(&socket).set_recv_buffer_size(4_096).unwrap();
        let taken = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The answers are not read.
                while taken.load(Ordering::SeqCst) < FRAMES
                    && connection.write_all(&flood.repeat(100)).is_ok()
                {
                    taken.fetch_add(100, Ordering::SeqCst);
                }
            });
            for frames in [100, FRAMES / 2] {
                until("it floods", || taken.load(Ordering::SeqCst) >= frames);
                assert_eq!(gate.chat().status, 200);
            }
            socket.shutdown(Shutdown::Both).ok();
        });
        println!("{taken:?} frames were taken");
    }
}

#[test]
fn further_streams_than_allowed_are_refused() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |_| Reply::chat("hello").when(latch));
    let gate = gate(&upstream, "server.streams = 4");
    let mut connection = connect(&gate);
    for stream in [1, 3, 5, 7, 9] {
        let key = format!("key-{stream}");
        let head = post("/api/v1/chat", &[("idempotency-key", &key)]);
        gate.told_elsewhere(if stream == 9 { 0 } else { 6_000 });
        let body = frame(DATA, END_STREAM, stream, CHAT.as_bytes());
        connection.write_all(&[frame(HEADERS, END_HEADERS, stream, &head), body].concat()).unwrap();
    }
    let refused = loop {
        let frame = next(&mut connection).expect("a refusal");
        if frame.kind == RST_STREAM {
            break frame;
        }
    };
    assert_eq!((refused.stream, refused.payload), (9, 7u32.to_be_bytes().to_vec()));
    until("the others are bought", || upstream.requests() == 4);
    latch.open();
    let mut answered = 0;
    while answered < 4 {
        answered += usize::from(next(&mut connection).expect("an answer").kind == HEADERS);
    }
}

#[test]
fn heads_that_wait_for_their_body_hold_bounded_memory() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let server = "server = { max_body_memory = \"16MiB\", body_timeout = \"10m\", streams = 200 }";
    let gate = gate(&upstream, server);
    let long = "x".repeat(120);
    let fields: Vec<_> = (0..50).map(|n| (format!("x-pad-{n}"), long.as_str())).collect();
    let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    // One connection has more of them than the share of an address.
    let mut connection = connect(&gate);
    for stream in (1..384).step_by(2) {
        let head = post("/bff/login", &fields);
        connection.write_all(&frame(HEADERS, END_HEADERS, stream, &head)).unwrap();
    }
    let refusal = loop {
        let frame = next(&mut connection).expect("a refusal");
        if frame.kind == DATA && frame.stream != 0 {
            break String::from_utf8_lossy(&frame.payload).into_owned();
        }
    };
    assert!(refusal.contains("overloaded"), "{refusal}");
    let mut client = gate.client_from([127, 0, 0, 2].into(), gate.address());
    client.send("POST", "/api/v1/chat", &[], CHAT);
    assert_eq!(client.answer().status, 200, "another address");
}

#[test]
fn nonsense_ends_the_connection() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = gate(&upstream, "");
    let head = post("/", &[]);
    for (sent, code) in [
        // A frame larger than allowed, DATA of a stream that was never opened, a stream that the
        // client may not open, a head between the parts of another.
        (frame(SETTINGS, 0, 0, &vec![0; 20_000]), 6),
        (frame(DATA, 0, 1, b"x"), 1),
        (frame(HEADERS, END_HEADERS, 2, &head), 1),
        ([frame(HEADERS, 0, 1, &head), frame(HEADERS, END_HEADERS, 3, &head)].concat(), 1),
        (frame(WINDOW_UPDATE, 0, 0, &0u32.to_be_bytes()), 1),
    ] {
        let mut connection = connect(&gate);
        connection.write_all(&sent).unwrap();
        assert_eq!(goaway(&mut connection), code, "{:?}", &sent[..9]);
    }
    // CONNECT and extended CONNECT are no requests for a page.
    for block in [
        [field(":method", "CONNECT"), field(":authority", "localhost:22")].concat(),
        [
            field(":method", "CONNECT"),
            field(":protocol", "websocket"),
            field(":scheme", "https"),
            field(":path", "/"),
            field(":authority", "localhost"),
        ]
        .concat(),
    ] {
        let mut connection = connect(&gate);
        connection.write_all(&frame(HEADERS, END_HEADERS, 1, &block)).unwrap();
        let answer = loop {
            let answer = next(&mut connection).expect("an answer");
            if answer.stream == 1 {
                break answer;
            }
        };
        // 400 or 404, by their places in HPACK's table.
        let is_refused = answer.kind == HEADERS && [0x8c, 0x8d].contains(&answer.payload[0]);
        assert!(is_refused || answer.kind == RST_STREAM, "{answer:?}");
    }
    assert_eq!(gate.chat().status, 200);
}
