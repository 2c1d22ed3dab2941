//! A raw HTTP client.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use socket2::{Domain, Socket, Type};

use super::accounting::{Books, Errand};
use super::received::{parse_head, read_head, values};
use super::{PATIENCE, lock, patiently};

/// State that all clients of a gate share.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Every byte that the gate sent.
    pub(super) received: Mutex<Vec<u8>>,
    pub(crate) books: Books,
}

/// An open connection to a gate.
pub(crate) struct Client {
    stream: TcpStream,
    address: SocketAddr,
    record: Arc<Record>,
    /// The requests without an answer yet, oldest first.
    pending: VecDeque<Errand>,
}

/// An answer as it came over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case, in wire order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether it closes the connection.
    pub(crate) closes: bool,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, record: &Arc<Record>) -> Self {
        Self::try_connect(address, record).expect("the gate listens")
    }

    /// Connects, or returns `None` if nobody listens.
    pub(crate) fn try_connect(address: SocketAddr, record: &Arc<Record>) -> Option<Self> {
        TcpStream::connect(address).ok().map(|stream| Self::over(stream, address, record))
    }

    /// Connects from this loopback address with a small receive buffer.
    pub(crate) fn narrow(source: Ipv4Addr, address: SocketAddr, record: &Arc<Record>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        socket.connect(&address.into()).expect("the gate listens");
        Self::over(socket.into(), address, record)
    }

    /// Connects from this loopback address.
    pub(crate) fn from(source: Ipv4Addr, address: SocketAddr, record: &Arc<Record>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        socket.connect(&address.into()).expect("the gate listens");
        Self::over(socket.into(), address, record)
    }

    fn over(stream: TcpStream, address: SocketAddr, record: &Arc<Record>) -> Self {
        // A gate that has just ended leaves a socket that rejects options.
        stream.set_nodelay(true).ok();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, address, record: Arc::clone(record), pending: VecDeque::new() }
    }

    /// Writes raw bytes. Purchases use [`Client::send`], which records them.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.record.books.blind();
        self.stream.write_all(bytes).expect("the gate reads");
    }

    /// Writes bytes that the gate may no longer read.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.record.books.blind();
        self.stream.write_all(bytes)
    }

    /// Sends a request with a JSON body, or without a body if it is empty.
    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) {
        let bytes = request(self.address, method, target, headers, body);
        self.pending.push_back(self.record.books.asked(method, target, headers, body));
        // The gate may have ended meanwhile, so no answer will come.
        self.stream.write_all(&bytes).ok();
    }

    /// Reads the next answer. Interim answers (1xx) are skipped.
    pub(crate) fn answer(&mut self) -> Answer {
        self.try_answer().expect("the gate answers")
    }

    /// Reads the next answer, or returns `None` if the gate closes the connection.
    pub(crate) fn try_answer(&mut self) -> Option<Answer> {
        loop {
            let answer = read_answer(&mut Tap { stream: &self.stream, record: &self.record })?;
            if answer.status >= 200 {
                self.record.books.answered(&answer, self.pending.pop_front());
                return Some(answer);
            }
        }
    }

    /// Reads until the gate closes the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset counts as the end.
        Tap { stream: &self.stream, record: &self.record }.read_to_end(&mut rest).ok();
        rest
    }

    /// Returns whether something has arrived, or the gate has closed the connection. Does not wait.
    pub(crate) fn has_news(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        !peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Returns whether the gate closes the connection without an answer.
    pub(crate) fn is_closed(&self) -> bool {
        match patiently(|| (&self.stream).read(&mut [0])) {
            Ok(read) => read == 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("still open after {PATIENCE:?}")
            }
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Shuts down the write half.
    pub(crate) fn end_of_requests(&mut self) {
        self.stream.shutdown(Shutdown::Write).ok();
    }

    /// The socket itself.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for errand in self.pending.drain(..) {
            self.record.books.unanswered(errand);
        }
    }
}

impl Answer {
    /// Returns the value of a header that occurs at most once.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let values = values(&self.headers, name);
        assert!(values.len() <= 1, "{name} several times: {values:?}");
        values.first().copied()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// `code` of a problem.
    pub(crate) fn code(&self) -> String {
        self.problem_field("code").unwrap_or_default()
    }

    /// `charged` of a problem.
    pub(crate) fn charged(&self) -> Option<String> {
        self.problem_field("charged")
    }

    /// Returns whether it is the answer of an earlier or running purchase.
    pub(crate) fn is_replay(&self) -> bool {
        let told = self.value("idempotent-replayed") == Some("true");
        told || self.events().iter().any(|event| event["replayed"] == true)
    }

    /// Returns the JSON data of its events, if it is a stream.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        let is_stream = self.value("content-type") == Some("text/event-stream");
        let text = if is_stream { self.text() } else { String::new() };
        let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        data.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }

    /// Returns `Tollgate-Cost`, or a stream's `cost`, in micro-dollars.
    pub(crate) fn cost(&self) -> Option<u64> {
        let events = self.events();
        let told = events.iter().find_map(|event| event["cost"].as_str());
        let text = self.value("tollgate-cost").or(told)?;
        let (dollars, micros) = text.split_once('.').expect("dollars with a point");
        assert_eq!(micros.len(), 6, "six places: {text}");
        Some(dollars.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap())
    }

    fn problem_field(&self, name: &str) -> Option<String> {
        let text = |document: &serde_json::Value| document[name].as_str().map(str::to_owned);
        match self.value("content-type") {
            Some("application/problem+json") => Some(text(&self.json()).unwrap_or_default()),
            // OpenAI's shape contains ours.
            Some("application/json") if self.status >= 400 => text(&self.json()["error"]),
            Some("text/event-stream") => {
                self.events().iter().find_map(|event| text(&event["error"]))
            }
            _ => None,
        }
    }
}

/// A request as a browser's `fetch` would write it.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    let has = |name: &str| headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    if !has("host") {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    if !body.is_empty() {
        if !has("content-type") {
            head.push_str("Content-Type: application/json\r\n");
        }
        if !has("content-length") && !has("transfer-encoding") {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body.as_bytes()].concat()
}

/// A stream that records what it reads.
struct Tap<'a> {
    stream: &'a TcpStream,
    record: &'a Record,
}

impl Read for Tap<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = patiently(|| self.stream.read(buffer));
        let is_late = read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!is_late, "nothing from the gate, and no end, within {PATIENCE:?}");
        let read = read?;
        lock(&self.record.received).extend_from_slice(&buffer[..read]);
        Ok(read)
    }
}

fn read_answer(stream: &mut impl Read) -> Option<Answer> {
    let (first, headers) = parse_head(&read_head(stream)?);
    let status: u16 = first.split(' ').nth(1)?.parse().expect("a status");
    let closes = values(&headers, "connection").iter().any(|value| value.contains("close"));
    let mut body = Vec::new();
    let length = values(&headers, "content-length").first().map(|text| text.parse().unwrap());
    let is_chunked = !values(&headers, "transfer-encoding").is_empty();
    assert!(!(is_chunked && length.is_some()), "two lengths: {headers:?}");
    match length {
        _ if status < 200 || matches!(status, 204 | 304) => {}
        Some(length) => {
            body.resize(length, 0);
            stream.read_exact(&mut body).ok()?;
        }
        None if is_chunked => body = read_chunks(stream)?,
        None => {
            stream.read_to_end(&mut body).ok()?;
        }
    }
    Some(Answer { status, headers, body, closes })
}

fn read_chunks(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut size = Vec::new();
        while !size.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).ok()?;
            size.push(byte[0]);
        }
        let size = usize::from_str_radix(String::from_utf8_lossy(&size).trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunk[..size]);
    }
}
