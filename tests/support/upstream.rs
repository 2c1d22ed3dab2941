//! A gateway that does what a script says, writes down every byte that it receives, and counts what
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
use super::received::{Heard, fingerprint, parse_head, read_head, values};
use super::reply::{Ending, Reply};
use super::{lock, log, patiently, until};

/// What a connection meets before its first request is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Welcome {
    /// Its requests are read and answered.
    Serve,
    /// This many bytes are read, and nothing is answered.
    Cut(usize, Ending),
}

type Greeting = Box<dyn Fn(usize) -> Welcome + Send + Sync>;
type Answering = Box<dyn Fn(&Heard) -> Reply + Send + Sync>;

/// What the gate asks for at its start. Only the script of one with books answers it; with any other,
/// it is not among what was heard.
const BOOKS: &str = "/api/api-keys";
const NO_BOOKS: &[u8] = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// A running scripted gateway. Clones are the same one; it ends with the last.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Running>);

struct Running {
    shared: Arc<Shared>,
    address: SocketAddr,
    socket: Socket,
    /// Connections that leave no room for others.
    crowd: Mutex<Vec<TcpStream>>,
}

struct Shared {
    canaries: Vec<Canary>,
    /// How much this process had logged before there were these keys.
    logged: usize,
    greet: Greeting,
    answer: Answering,
    ends: AtomicBool,
    next: AtomicUsize,
    connections: Mutex<Vec<Conversation>>,
    heard: Mutex<Vec<Heard>>,
    shows_books: bool,
    /// Questions for the books that were refused.
    kept_back: AtomicUsize,
    arrivals: Mutex<Vec<Instant>>,
    books: Mutex<Option<Reply>>,
    charged: Mutex<Vec<Charge>>,
}

/// Money that it took.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) micros: u64,
    /// For what.
    pub(crate) fingerprint: Option<String>,
}

/// One connection: every byte that came, and a handle to end it.
struct Conversation {
    received: Vec<u8>,
    stream: TcpStream,
}

impl Upstream {
    /// One that answers every request so.
    pub(crate) fn start(answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static) -> Self {
        Self::with(1, |_| Welcome::Serve, answer)
    }

    /// One that answers questions for its books, too; any other refuses them, and does not count them
    /// among what it heard.
    pub(crate) fn with_books(answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static) -> Self {
        let upstream = Self::new(1, |_| Welcome::Serve, answer, true);
        upstream.open();
        upstream
    }

    /// One with this many keys, that greets its `n`th connection (from 0) so.
    pub(crate) fn with(
        keys: usize,
        greet: impl Fn(usize) -> Welcome + Send + Sync + 'static,
        answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let upstream = Self::new(keys, greet, answer, false);
        upstream.open();
        upstream
    }

    /// One that has an address and takes no connection before [`Upstream::open`].
    pub(crate) fn closed(
        keys: usize,
        greet: impl Fn(usize) -> Welcome + Send + Sync + 'static,
        answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::new(keys, greet, answer, false)
    }

    fn new(
        keys: usize,
        greet: impl Fn(usize) -> Welcome + Send + Sync + 'static,
        answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static,
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
            heard: Mutex::default(),
            shows_books,
            kept_back: AtomicUsize::new(0),
            arrivals: Mutex::default(),
            books: Mutex::default(),
            charged: Mutex::default(),
        });
        Self(Arc::new(Running { shared, address, socket, crowd: Mutex::default() }))
    }

    /// Takes connections from now on.
    pub(crate) fn open(&self) {
        lock(&self.0.crowd).clear();
        self.0.socket.listen(1_024).unwrap();
        let listener = TcpListener::from(self.0.socket.try_clone().unwrap());
        let accepting = Arc::clone(&self.0.shared);
        thread::spawn(move || accept(&listener, &accepting));
    }

    /// Whoever connects is kept waiting until [`Upstream::open`], a second or so longer.
    pub(crate) fn crowd(&self) {
        self.0.socket.listen(0).unwrap();
        let brief = Duration::from_millis(100);
        while let Ok(one) = TcpStream::connect_timeout(&self.address(), brief) {
            lock(&self.0.crowd).push(one);
        }
    }

    /// Whether somebody is being kept waiting so, as the system sees it.
    pub(crate) fn is_waited_for(&self) -> bool {
        const SYN_SENT: &str = "02";
        let port = format!(":{:04X}", self.address().port());
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let waits = |line: &str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.len() > 3 && fields[2].ends_with(&port) && fields[3] == SYN_SENT
        };
        table.lines().any(waits)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Its keys; each is looked for wherever it must not be.
    pub(crate) fn canaries(&self) -> &[Canary] {
        &self.0.shared.canaries
    }

    /// What this process has logged since there are these keys.
    pub(super) fn logged(&self) -> Vec<u8> {
        log::since(self.0.shared.logged)
    }

    /// Every request so far that was read to its end.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        lock(&self.0.shared.heard).clone()
    }

    /// When each request arrived, whatever it was.
    pub(crate) fn arrivals(&self) -> Vec<Instant> {
        lock(&self.0.shared.arrivals).clone()
    }

    /// Never more than `limit` arrivals in any stretch of `period`. An arrival is written down before its
    /// reply: no clock is lenient here.
    pub(crate) fn assert_held(&self, limit: usize, period: Duration) {
        let mut arrivals = self.arrivals();
        arrivals.sort_unstable();
        for (place, stretch) in arrivals.windows(limit + 1).enumerate() {
            let length = stretch[limit] - stretch[0];
            assert!(length >= period, "{} arrivals within {length:?}, from {place} on", limit + 1);
        }
    }

    /// Answers so whoever asks for the account's books.
    pub(crate) fn tell_books(&self, reply: Reply) {
        *lock(&self.0.shared.books) = Some(reply);
    }

    /// How many requests that were.
    pub(crate) fn requests(&self) -> usize {
        lock(&self.0.shared.heard).len()
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        lock(&self.0.shared.connections).len()
    }

    /// Every byte so far, by connection.
    pub(crate) fn received(&self) -> Vec<Vec<u8>> {
        lock(&self.0.shared.connections).iter().map(|one| one.received.clone()).collect()
    }

    /// The charges that it made, in micro-dollars.
    pub(crate) fn charges(&self) -> Vec<u64> {
        self.charged().iter().map(|charge| charge.micros).collect()
    }

    /// The same, each with what it was for.
    pub(crate) fn charged(&self) -> Vec<Charge> {
        lock(&self.0.shared.charged).clone()
    }

    /// Waits until it has read so many requests.
    pub(crate) fn wait_for(&self, requests: usize) {
        until("the gateway hears the request", || self.requests() >= requests);
    }

    /// Ends every connection in an orderly way, and takes new ones.
    pub(crate) fn hang_up(&self) {
        self.0.shared.hang_up();
    }

    /// On the gateway's side a key is in `authorization` alone, exactly once per request.
    pub(crate) fn assert_keys_in_their_place(&self) {
        let count = |text: &[u8]| self.canaries().iter().map(|key| key.count(text)).sum::<usize>();
        for heard in self.heard() {
            let [authorization] = heard.values("authorization")[..] else {
                panic!("a request with not exactly one authorization: {heard:?}");
            };
            let expected = |key: &Canary| authorization == format!("Bearer {}", key.key());
            assert!(self.canaries().iter().any(expected), "another authorization: {heard:?}");
            assert_eq!(count(&heard.bytes), 1, "the key is elsewhere, too: {heard:?}");
        }
        let heard = self.requests() + self.0.shared.kept_back.load(Ordering::SeqCst);
        let received: usize = self.received().iter().map(|bytes| count(bytes)).sum();
        assert!(received >= heard, "{received} keys");
        // What was cut holds at most one key more per connection.
        assert!(received <= heard + self.connections(), "{received} keys");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.hang_up();
        // Wakes the one who accepts.
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

/// A connection's stream that writes down what it reads.
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
    while let Some(heard) = hear(&mut tap) {
        lock(&tap.shared.arrivals).push(clock::now());
        if heard.target == BOOKS && !tap.shared.shows_books {
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
        let reply = (tap.shared.answer)(&heard);
        if reply.is_charged() {
            let micros = reply.price().unwrap_or_else(|| heard.price());
            let fingerprint = fingerprint(&heard.method, &heard.target, &heard.body);
            lock(&tap.shared.charged).push(Charge { micros, fingerprint });
        }
        // Only now is it seen by who waits for it: what it costs is known.
        lock(&tap.shared.heard).push(heard);
        thread::sleep(reply.delay);
        let bytes = reply.bytes();
        let segment = if reply.dribbles { 1 } else { bytes.len().max(1) };
        if !bytes.chunks(segment).all(|part| tap.stream.write_all(part).is_ok()) {
            return;
        }
        if let Some((pause, stray)) = &reply.stray {
            thread::sleep(*pause);
            tap.stream.write_all(stray).ok();
        }
        if reply.ending != Ending::Open {
            return end(tap, reply.ending);
        }
    }
}

fn hear(tap: &mut Tap<'_>) -> Option<Heard> {
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
    Some(Heard { number, connection: tap.number, method, target, headers, body, bytes })
}

fn end(mut tap: Tap<'_>, ending: Ending) {
    match ending {
        Ending::Open | Ending::Fin => {}
        Ending::Later(pause) => thread::sleep(pause),
        Ending::Reset => SockRef::from(&tap.stream).set_linger(Some(Duration::ZERO)).unwrap(),
        Ending::Hang => while matches!(tap.read(&mut [0; 1_024]), Ok(1..)) {},
        Ending::Endless => while tap.stream.write_all(&[b' '; 16_384]).is_ok() {},
    }
    if ending == Ending::Reset {
        // A shutdown would say FIN first; the clone that is kept would hold the socket open.
        lock(&tap.shared.connections)[tap.number].stream = TcpStream::from(dangling());
    } else {
        tap.stream.shutdown(Shutdown::Both).ok();
    }
}

/// A socket in the place of one that must be closed for good.
fn dangling() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
}
