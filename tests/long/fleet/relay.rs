//! A TCP proxy between a server and its database or the gateway. A test stops the traffic at a
//! point of a purchase, and then lets it pass, or cuts the connection.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use crate::support::{PATIENCE, lock};

/// Where the traffic stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) traffic: Traffic,
    pub(super) side: Side,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// A transaction that does this for a purchase.
    Transaction(Step),
    /// A statement that begins with this text, and contains the other.
    Statement(&'static str, &'static str),
    /// A purchase on its way to the gateway.
    Purchase,
}

/// A step of a purchase, in one transaction of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Holds its price and takes a slot.
    Sell,
    /// Holds its price only.
    Hold,
    /// Takes a slot only.
    TakeSlot,
    MarkSent,
    Settle,
}

impl Step {
    fn is_done_by(self, statements: &[String]) -> bool {
        let has = |part: &str| statements.iter().any(|sql| sql.contains(part));
        let (holds, takes_slot) = (has("INSERT INTO purchases"), has("INSERT INTO slots"));
        match self {
            Self::Sell => holds && takes_slot,
            Self::Hold => holds && !takes_slot,
            Self::TakeSlot => takes_slot && !holds,
            Self::MarkSent => has("SET state = 'sent'"),
            Self::Settle => has("INSERT INTO replies"),
        }
    }
}

impl Traffic {
    fn is_statement(self, sql: &str) -> bool {
        match self {
            Self::Statement(begin, part) => sql.starts_with(begin) && sql.contains(part),
            Self::Transaction(_) | Self::Purchase => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The COMMIT, the statement, or the request, has not been passed on.
    Before,
    /// It has been answered, and the answer has not been passed on.
    After,
}

/// What becomes of stopped traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Cut,
}

/// A running proxy. It ends with this value.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    target: SocketAddr,
    /// The point at which the next connection that reaches it stops.
    armed: Option<Point>,
    is_stopped: bool,
    verdict: Option<Verdict>,
    /// Nothing passes, on any connection.
    is_silent: bool,
    ends: bool,
    connections: Vec<TcpStream>,
}

impl Relay {
    pub(super) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let state = State {
            target,
            armed: None,
            is_stopped: false,
            verdict: None,
            is_silent: false,
            ends: false,
            connections: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if lock(&accepting.state).ends {
                    return;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || carry(&client, &shared));
            }
        });
        Self { address, shared }
    }

    /// Stops the next connection that reaches this point.
    pub(super) fn arm(&self, point: Point) {
        let mut state = lock(&self.shared.state);
        (state.armed, state.is_stopped, state.verdict) = (Some(point), false, None);
    }

    /// Waits until a connection has reached the point.
    pub(super) fn wait_until_stopped(&self) {
        let state = lock(&self.shared.state);
        let waited =
            self.shared.changed.wait_timeout_while(state, PATIENCE, |state| !state.is_stopped);
        let (state, timeout) = waited.expect("no thread has panicked");
        assert!(!timeout.timed_out(), "nothing reaches {:?}", state.armed);
    }

    pub(super) fn has_stopped(&self) -> bool {
        lock(&self.shared.state).is_stopped
    }

    /// Decides what becomes of the stopped connection.
    pub(super) fn release(&self, verdict: Verdict) {
        lock(&self.shared.state).verdict = Some(verdict);
        self.shared.changed.notify_all();
    }

    /// Keeps everything back, as a network that loses all packets.
    pub(super) fn silence(&self) {
        lock(&self.shared.state).is_silent = true;
    }

    /// Ends the silence. What was kept back arrives late, or its connections are cut.
    pub(super) fn resume(&self, verdict: Verdict) {
        if verdict == Verdict::Cut {
            self.hang_up();
        }
        lock(&self.shared.state).is_silent = false;
        self.shared.changed.notify_all();
    }

    /// Connects to another server from now on, and ends the connections to this one.
    pub(super) fn redirect(&self, target: SocketAddr) {
        lock(&self.shared.state).target = target;
        self.hang_up();
    }

    fn hang_up(&self) {
        for connection in lock(&self.shared.state).connections.drain(..) {
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        (state.ends, state.verdict, state.is_silent) = (true, Some(Verdict::Cut), false);
        drop(state);
        self.shared.changed.notify_all();
        self.hang_up();
        // Wakes the accepting thread.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    fn wait_while(&self, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = lock(&self.state);
        self.changed.wait_while(state, |state| is_so(state)).expect("no thread has panicked")
    }

    /// Says that the point is reached, and returns what becomes of its connection.
    fn stop(&self) -> Verdict {
        lock(&self.state).is_stopped = true;
        self.changed.notify_all();
        self.wait_while(|state| state.verdict.is_none()).verdict.unwrap_or(Verdict::Cut)
    }

    fn wait_for_sound(&self) {
        drop(self.wait_while(|state| state.is_silent));
    }

    /// Returns on which side this traffic stops. It is armed for one connection only.
    fn take_point(&self, is_reached: impl Fn(Traffic) -> bool) -> Option<Side> {
        let mut state = lock(&self.state);
        let point = state.armed.filter(|point| is_reached(point.traffic))?;
        state.armed = None;
        Some(point.side)
    }
}

/// One connection. Its two directions share whether answers are kept back.
struct Line<'a> {
    client: &'a TcpStream,
    server: &'a TcpStream,
    shared: &'a Shared,
    /// What the answer contains that is kept back.
    expected: Mutex<Option<&'static [u8]>>,
}

fn carry(client: &TcpStream, shared: &Shared) {
    shared.wait_for_sound();
    let target = lock(&shared.state).target;
    let Ok(server) = TcpStream::connect(target) else { return };
    let line = Line { client, server: &server, shared, expected: Mutex::default() };
    for stream in [client, &server] {
        // The other side may have gone already.
        stream.set_nodelay(true).ok();
        lock(&shared.state).connections.push(stream.try_clone().expect("a descriptor"));
    }
    thread::scope(|scope| {
        scope.spawn(|| line.answer());
        line.ask();
    });
}

impl Line<'_> {
    /// Carries what the server sends, message by message.
    fn ask(&self) {
        let (mut from, mut to) = (self.client, self.server);
        let (mut bytes, mut pending) = (vec![0; 1 << 16], Vec::new());
        let mut reader = Messages::default();
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            pending.extend_from_slice(&bytes[..length]);
            while let Some((length, is_marked)) = reader.next(&pending, self.shared) {
                self.shared.wait_for_sound();
                let message: Vec<u8> = pending.drain(..length).collect();
                match is_marked {
                    Some(Side::Before) if self.shared.stop() == Verdict::Cut => {
                        return self.end();
                    }
                    Some(Side::After) => *lock(&self.expected) = Some(reader.answer()),
                    Some(Side::Before) | None => {}
                }
                if to.write_all(&message).is_err() {
                    return self.end();
                }
            }
        }
        self.end();
    }

    fn answer(&self) {
        let (mut from, mut to) = (self.server, self.client);
        let (mut bytes, mut kept) = (vec![0; 1 << 16], Vec::new());
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            self.shared.wait_for_sound();
            kept.extend_from_slice(&bytes[..length]);
            let expected = *lock(&self.expected);
            if let Some(text) = expected {
                if !kept.windows(text.len()).any(|part| part == text) {
                    continue;
                }
                *lock(&self.expected) = None;
                if self.shared.stop() == Verdict::Cut {
                    break;
                }
            }
            if to.write_all(&kept).is_err() {
                break;
            }
            kept.clear();
        }
        self.end();
    }

    fn end(&self) {
        for stream in [self.client, self.server] {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Splits what a server sends: PostgreSQL's messages, or pieces of HTTP as they come.
#[derive(Default)]
struct Messages {
    protocol: Option<Protocol>,
    /// SQL by the names of prepared statements.
    prepared: HashMap<Vec<u8>, String>,
    /// The statements of the transaction so far.
    statements: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Postgres,
    Http,
}

impl Messages {
    /// Returns the length of the first message, and where it stops the traffic.
    fn next(&mut self, bytes: &[u8], shared: &Shared) -> Option<(usize, Option<Side>)> {
        let first = *bytes.first()?;
        match self.protocol {
            // The first message has no type, and begins with its length.
            None if first == 0 => {
                let length = length_at(bytes, 0).filter(|length| bytes.len() >= *length)?;
                self.protocol = Some(Protocol::Postgres);
                Some((length, None))
            }
            None | Some(Protocol::Http) => {
                self.protocol = Some(Protocol::Http);
                let is_purchase = bytes.starts_with(b"POST ");
                let side =
                    is_purchase.then(|| shared.take_point(|traffic| traffic == Traffic::Purchase));
                Some((bytes.len(), side.flatten()))
            }
            Some(Protocol::Postgres) => {
                let length = 1 + length_at(bytes, 1)?;
                let message = bytes.get(5..length)?;
                Some((length, self.read(first, message, shared)))
            }
        }
    }

    fn read(&mut self, kind: u8, message: &[u8], shared: &Shared) -> Option<Side> {
        let mut texts = message.split(|byte| *byte == 0);
        let mut text = || texts.next().unwrap_or_default().to_vec();
        match kind {
            b'P' => {
                let (name, sql) = (text(), text());
                let sql = String::from_utf8_lossy(&sql).into_owned();
                let side = shared.take_point(|traffic| traffic.is_statement(&sql));
                self.prepared.insert(name, sql);
                return side;
            }
            b'B' => {
                let (_portal, name) = (text(), text());
                self.statements.extend(self.prepared.get(&name).cloned());
            }
            b'Q' if message.starts_with(b"UPDATE ledger SET version") => {
                let statements = std::mem::take(&mut self.statements);
                let sql = String::from_utf8_lossy(&text()).into_owned();
                return shared.take_point(|traffic| match traffic {
                    Traffic::Transaction(step) => step.is_done_by(&statements),
                    Traffic::Statement(..) => traffic.is_statement(&sql),
                    Traffic::Purchase => false,
                });
            }
            b'Q' => {
                self.statements.clear();
                let sql = String::from_utf8_lossy(&text()).into_owned();
                return shared.take_point(|traffic| traffic.is_statement(&sql));
            }
            _ => {}
        }
        None
    }

    /// Returns what the answer to a marked message contains.
    fn answer(&self) -> &'static [u8] {
        match self.protocol {
            Some(Protocol::Postgres) => b"COMMIT\0",
            Some(Protocol::Http) | None => b"HTTP/1.1 ",
        }
    }
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}
