//! A scripted gateway. It records every byte that it receives, and counts what
//! it charged.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use socket2::{Domain, SockRef, Socket, Type};
use tollgate::clock::{self, Instant};

use super::canary::Canary;
use super::received::{ReceivedRequest, parse_head, read_head, values};
use super::reply::{Ending, Reply};
use super::{lock, log, patiently, until};

/// What happens to a new connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Welcome {
    /// Its requests are read and answered.
    Serve,
    /// Only this many bytes are read, and nothing is answered.
    Cut(usize, Ending),
}

type Greeting = Box<dyn Fn(usize) -> Welcome + Send + Sync>;
type Answering = Box<dyn Fn(&ReceivedRequest) -> Reply + Send + Sync>;

/// The listing of keys, which the gate fetches at start. Without `shows_books` it is refused, and
/// not recorded.
const BOOKS: &str = "/api/api-keys";
const NO_BOOKS: &[u8] = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// A running scripted gateway. It stops when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Running>);

struct Running {
    shared: Arc<Shared>,
    address: SocketAddr,
    socket: Socket,
    /// Connections that fill the backlog.
    backlog: Mutex<Vec<TcpStream>>,
}

struct Shared {
    canaries: Vec<Canary>,
    /// The length of the log before these keys existed.
    logged: usize,
    greet: Greeting,
    answer: Answering,
    ends: AtomicBool,
    next: AtomicUsize,
    connections: Mutex<Vec<Conversation>>,
    requests: Mutex<Vec<ReceivedRequest>>,
    shows_books: bool,
    /// The number of refused fetches of the listing.
    kept_back: AtomicUsize,
    arrivals: Mutex<Vec<Instant>>,
    books: Mutex<Option<Reply>>,
    charged: Mutex<Vec<Charge>>,
}

/// A charge.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) micros: u64,
    /// What was bought.
    pub(crate) fingerprint: Option<String>,
}

/// A connection: every byte received, and a handle to close it.
struct Conversation {
    received: Vec<u8>,
    stream: TcpStream,
}

impl Upstream {
    /// Starts one that answers every request with `answer`.
    pub(crate) fn start(
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::with(1, |_| Welcome::Serve, answer)
    }

    /// Starts one whose `answer` also serves the listing of keys. Others refuse it, and do not record
    /// it.
    pub(crate) fn with_books(
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let upstream = Self::new(1, |_| Welcome::Serve, answer, true);
        upstream.open();
        upstream
    }

    /// Starts one with this many keys, whose connection `n` (from 0) meets `greet(n)`.
    pub(crate) fn with(
        keys: usize,
        greet: impl Fn(usize) -> Welcome + Send + Sync + 'static,
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let upstream = Self::new(keys, greet, answer, false);
        upstream.open();
        upstream
    }

    /// Reserves an address, but accepts no connection before [`Upstream::open`].
    pub(crate) fn closed(
        keys: usize,
        greet: impl Fn(usize) -> Welcome + Send + Sync + 'static,
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::new(keys, greet, answer, false)
    }

    fn new(
        keys: usize,
        greet: impl Fn(usize) -> Welcome + Send + Sync + 'static,
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
        shows_books: bool,
    ) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let shared = Arc::new(Shared {
            logged: log::length(),
            canaries: (0..keys).map(|_| Canary::new()).collect(),
            greet: Box::new(greet),
            answer: Box::new(answer),
            ends: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            connections: Mutex::default(),
            requests: Mutex::default(),
            shows_books,
            kept_back: AtomicUsize::new(0),
            arrivals: Mutex::default(),
            books: Mutex::default(),
            charged: Mutex::default(),
        });
        Self(Arc::new(Running { shared, address, socket, backlog: Mutex::default() }))
    }

    /// Starts to accept connections.
    pub(crate) fn open(&self) {
        lock(&self.0.backlog).clear();
        self.0.socket.listen(1_024).unwrap();
        let listener = TcpListener::from(self.0.socket.try_clone().unwrap());
        let accepting = Arc::clone(&self.0.shared);
        thread::spawn(move || accept(&listener, &accepting));
    }

    /// Fills the backlog, so that connections wait until about a second after [`Upstream::open`].
    pub(crate) fn fill_backlog(&self) {
        self.0.socket.listen(0).unwrap();
        // It has room for one.
        lock(&self.0.backlog).push(TcpStream::connect(self.address()).unwrap());
        let port = format!(":{:04X}", self.address().port());
        until("the backlog is full", || {
            let is_it = |fields: &Vec<String>| fields[1].ends_with(&port) && fields[3] == LISTEN;
            let sockets = sockets();
            let found = sockets.iter().find(|fields| is_it(fields)).expect("it listens");
            found[4].ends_with(":00000001")
        });
    }

    /// Returns whether a connection waits, according to the system.
    pub(crate) fn is_waited_for(&self) -> bool {
        let port = format!(":{:04X}", self.address().port());
        sockets().iter().any(|fields| fields[2].ends_with(&port) && fields[3] == SYN_SENT)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Returns its keys, which must not leak.
    pub(crate) fn canaries(&self) -> &[Canary] {
        &self.0.shared.canaries
    }

    /// Returns what this process logged since these keys exist.
    pub(super) fn logged(&self) -> Vec<u8> {
        log::since(self.0.shared.logged)
    }

    /// Returns every request so far that was read completely.
    pub(crate) fn received_requests(&self) -> Vec<ReceivedRequest> {
        lock(&self.0.shared.requests).clone()
    }

    /// Returns when each request arrived, of any kind.
    pub(crate) fn arrivals(&self) -> Vec<Instant> {
        lock(&self.0.shared.arrivals).clone()
    }

    /// Asserts that at most `limit` requests arrived in any `period`. Arrivals are recorded before
    /// their replies, so the check is strict.
    pub(crate) fn assert_held(&self, limit: usize, period: Duration) {
        self.assert_held_after(0, limit, period);
    }

    /// Does the same without the first arrivals.
    pub(crate) fn assert_held_after(&self, first: usize, limit: usize, period: Duration) {
        let mut arrivals = self.arrivals().split_off(first);
        arrivals.sort_unstable();
        for (place, stretch) in arrivals.windows(limit + 1).enumerate() {
            let length = stretch[limit] - stretch[0];
            assert!(length >= period, "{} arrivals within {length:?}, from {place} on", limit + 1);
        }
    }

    /// Sets the reply to fetches of the listing.
    pub(crate) fn set_listing(&self, reply: Reply) {
        *lock(&self.0.shared.books) = Some(reply);
    }

    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> usize {
        lock(&self.0.shared.requests).len()
    }

    /// Returns the number of purchases. An accepted video is polled a second later, which is none.
    pub(crate) fn purchases(&self) -> usize {
        lock(&self.0.shared.requests).iter().filter(|received| received.method == "POST").count()
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> usize {
        lock(&self.0.shared.connections).len()
    }

    /// Returns every byte so far, by connection.
    pub(crate) fn received(&self) -> Vec<Vec<u8>> {
        lock(&self.0.shared.connections).iter().map(|one| one.received.clone()).collect()
    }

    /// Returns its charges in micro-dollars.
    pub(crate) fn charges(&self) -> Vec<u64> {
        self.charged().iter().map(|charge| charge.micros).collect()
    }

    /// Returns its charges, each with what was bought.
    pub(crate) fn charged(&self) -> Vec<Charge> {
        lock(&self.0.shared.charged).clone()
    }

    /// Waits until it has read this many requests.
    pub(crate) fn wait_for(&self, requests: usize) {
        until("the gateway hears the request", || self.requests() >= requests);
    }

    /// Closes every connection, and accepts new ones.
    pub(crate) fn hang_up(&self) {
        self.0.shared.hang_up();
    }

    /// Asserts that each request has exactly one key, in `authorization`.
    pub(crate) fn assert_keys_in_their_place(&self) {
        let count = |text: &[u8]| self.canaries().iter().map(|key| key.count(text)).sum::<usize>();
        for received in self.received_requests() {
            let [authorization] = received.values("authorization")[..] else {
                panic!("a request with not exactly one authorization: {received:?}");
            };
            let expected = |key: &Canary| authorization == format!("Bearer {}", key.key());
            assert!(self.canaries().iter().any(expected), "another authorization: {received:?}");
            assert_eq!(count(&received.bytes), 1, "the key is elsewhere, too: {received:?}");
        }
        let requests = self.requests() + self.0.shared.kept_back.load(Ordering::SeqCst);
        let received: usize = self.received().iter().map(|bytes| count(bytes)).sum();
        assert!(received >= requests, "{received} keys");
        // Each incomplete request adds at most one key per connection.
        assert!(received <= requests + self.connections(), "{received} keys");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.hang_up();
        // Wakes the accepting thread.
        TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).ok();
    }
}

impl Shared {
    fn hang_up(&self) {
        for conversation in lock(&self.connections).iter() {
            conversation.stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn received(&self, connection: usize, bytes: &[u8]) {
        lock(&self.connections)[connection].received.extend_from_slice(bytes);
    }
}

/// States of sockets in `/proc/net/tcp`.
const SYN_SENT: &str = "02";
const LISTEN: &str = "0A";

/// Returns the fields of every TCP socket: number, own address, peer, state, and the lengths of its queues.
fn sockets() -> Vec<Vec<String>> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    table.lines().skip(1).map(fields).collect()
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming().map_while(Result::ok) {
        if shared.ends.load(Ordering::SeqCst) {
            return;
        }
        stream.set_nodelay(true).unwrap();
        let mut connections = lock(&shared.connections);
        let number = connections.len();
        connections
            .push(Conversation { received: Vec::new(), stream: stream.try_clone().unwrap() });
        drop(connections);
        let shared = Arc::clone(shared);
        thread::spawn(move || converse(Tap { stream, number, shared: &shared }));
    }
}

/// A stream that records what it reads.
struct Tap<'a> {
    stream: TcpStream,
    number: usize,
    shared: &'a Shared,
}

impl Read for Tap<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = patiently(|| self.stream.read(buffer))?;
        self.shared.received(self.number, &buffer[..read]);
        Ok(read)
    }
}

fn converse(mut tap: Tap<'_>) {
    if let Welcome::Cut(bytes, ending) = (tap.shared.greet)(tap.number) {
        let mut buffer = vec![0; bytes];
        tap.read_exact(&mut buffer).ok();
        return end(tap, ending);
    }
    while let Some(received) = read_request(&mut tap) {
        lock(&tap.shared.arrivals).push(clock::now());
        if received.target == BOOKS && !tap.shared.shows_books {
            tap.shared.kept_back.fetch_add(1, Ordering::SeqCst);
            let told = lock(&tap.shared.books).clone();
            let (bytes, ending) = match &told {
                Some(reply) => (reply.bytes(), reply.ending),
                None => (NO_BOOKS.to_vec(), Ending::Fin),
            };
            tap.stream.write_all(&bytes).ok();
            if ending == Ending::Open {
                continue;
            }
            return end(tap, ending);
        }
        let reply = (tap.shared.answer)(&received);
        lock(&tap.shared.charged).extend(reply.charge(&received));
        // It is recorded only now, when its charge is known.
        lock(&tap.shared.requests).push(received);
        reply.wait(&tap.shared.ends);
        let bytes = reply.bytes();
        let segment = if reply.dribbles { 1 } else { bytes.len().max(1) };
        if !bytes.chunks(segment).all(|part| tap.stream.write_all(part).is_ok()) {
            return;
        }
        if let Some((pause, stray)) = &reply.stray {
            super::pause(*pause);
            tap.stream.write_all(stray).ok();
        }
        if reply.ending != Ending::Open {
            return end(tap, reply.ending);
        }
    }
}

fn read_request(tap: &mut Tap<'_>) -> Option<ReceivedRequest> {
    let head = read_head(tap)?;
    let (first, headers) = parse_head(&head);
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    assert!(values(&headers, "transfer-encoding").is_empty(), "the gate knows its lengths");
    let length = values(&headers, "content-length").first().map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    tap.read_exact(&mut body).ok()?;
    let bytes = [head, body.clone()].concat();
    let is_counted = target != BOOKS || tap.shared.shows_books;
    let number = tap.shared.next.fetch_add(usize::from(is_counted), Ordering::SeqCst);
    Some(ReceivedRequest { number, connection: tap.number, method, target, headers, body, bytes })
}

fn end(mut tap: Tap<'_>, ending: Ending) {
    match ending {
        Ending::Open | Ending::Fin => {}
        Ending::Later(pause) => super::pause(pause),
        Ending::Reset => SockRef::from(&tap.stream).set_linger(Some(Duration::ZERO)).unwrap(),
        Ending::Hang => while matches!(tap.read(&mut [0; 1_024]), Ok(1..)) {},
        Ending::Endless => while tap.stream.write_all(&[b' '; 16_384]).is_ok() {},
    }
    if ending == Ending::Reset {
        // A shutdown would send FIN first, and the kept clone would hold the socket open.
        lock(&tap.shared.connections)[tap.number].stream = TcpStream::from(dangling());
    } else {
        tap.stream.shutdown(Shutdown::Both).ok();
    }
}

/// Replaces a socket that must be closed.
fn dangling() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
}
