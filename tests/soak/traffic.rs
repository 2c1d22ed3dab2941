//! What callers do in a lap: most of it well, some of it badly, and some of it not to its end.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tollgate::clock;

use super::gate::Gate;
use super::talk::{self, Answer};
use crate::support::pause;

const CALLERS: u32 = 8;
/// Between two acts of one caller, so that all of them ask for less than 200 things a second.
const PACE: Duration = Duration::from_millis(40);
/// Connections that a caller leaves open at the same time.
const MOST_LEFT_OPEN: usize = 4;

type Act = fn(&mut Caller);

#[rustfmt::skip]
const ACTS: &[(&str, u32, Act)] = &[
    ("chat",            30, Caller::chat),
    ("chat, repeated",   6, Caller::repeat),
    ("video",            3, Caller::video),
    ("status",           8, Caller::status),
    ("events",           4, Caller::events),
    ("drop",             2, |caller| caller.fault("drop", 424)),
    ("502",              2, |caller| caller.fault("502", 424)),
    ("garbled",          2, |caller| caller.fault("garbled", 424)),
    ("slow",             2, |caller| caller.fault("slow", 200)),
    ("fail",             1, Caller::failing_video),
    ("invalid",          4, Caller::invalid),
    ("malformed",        3, Caller::malformed),
    ("too large",        1, Caller::too_large),
    ("another host",     2, Caller::another_host),
    ("no HTTP",          2, Caller::no_http),
    ("half a head",      1, Caller::half_a_head),
    ("slow body",        1, Caller::slow_body),
    ("hang-up in body",  3, Caller::hang_up_in_the_body),
    ("hang-up after it", 3, Caller::hang_up_after_the_body),
    ("left open",        3, Caller::leave_open),
    ("page",             3, Caller::page),
];

/// What a lap's callers did and were told.
#[derive(Default)]
pub(crate) struct LapReport {
    acts: BTreeMap<&'static str, u64>,
    chats: Vec<Duration>,
    answers: Vec<String>,
}

/// Runs a lap for so long.
pub(crate) fn run(gate: &Gate, lap: u32, time: Duration) -> LapReport {
    let ends = clock::now() + time;
    let report: Vec<LapReport> = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let mut caller = Caller::new(gate, format!("{lap}-{number}"));
                scope.spawn(move || {
                    // Once all that there is, in an order of its own, then as the dice say.
                    let start = (number as usize * ACTS.len()) / CALLERS as usize;
                    let mut every = ACTS.iter().cycle().skip(start).take(ACTS.len());
                    loop {
                        let act = match every.next() {
                            Some(act) => act,
                            // A busy machine takes longer, and does as much.
                            None if clock::now() < ends || caller.report.chats.len() < 2 => {
                                caller.choose()
                            }
                            None => break,
                        };
                        (act.2)(&mut caller);
                        *caller.report.acts.entry(act.0).or_default() += 1;
                        pause(PACE);
                    }
                    caller.report
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    });
    let mut all = LapReport::default();
    for report in report {
        report.acts.into_iter().for_each(|(act, times)| *all.acts.entry(act).or_default() += times);
        all.chats.extend(report.chats);
        all.answers.extend(report.answers);
    }
    all.chats.sort_unstable();
    all
}

struct Caller {
    address: std::net::SocketAddr,
    host: String,
    name: String,
    turn: u64,
    dice: u64,
    last: Option<(String, Answer)>,
    jobs: Vec<String>,
    open: Vec<TcpStream>,
    report: LapReport,
}

impl Caller {
    fn new(gate: &Gate, name: String) -> Self {
        let address = gate.address();
        let dice = name.bytes().fold(7, |seed: u64, byte| seed * 31 + u64::from(byte));
        Self {
            address,
            host: address.to_string(),
            name,
            turn: 0,
            dice,
            last: None,
            jobs: Vec::new(),
            open: Vec::new(),
            report: LapReport::default(),
        }
    }

    fn choose(&mut self) -> &'static (&'static str, u32, Act) {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let all: u32 = ACTS.iter().map(|act| act.1).sum();
        let mut rolled = (self.dice >> 33) as u32 % all;
        ACTS.iter()
            .find(|act| {
                let is_it = rolled < act.1;
                rolled = rolled.saturating_sub(act.1);
                is_it
            })
            .expect("one of them")
    }

    /// Words that nobody else says, as a chat with a key of its own.
    fn chat_about(&mut self, words: &str) -> String {
        self.turn += 1;
        let key = format!("{}-{}", self.name, self.turn);
        let content = format!("{words} {key}");
        let body = format!(
            r#"{{"model":"eta-5-mini","messages":[{{"role":"user","content":"{content}"}}]}}"#
        );
        talk::post(&self.host, "/api/v1/chat", &format!("idempotency-key: {key}\r\n"), &body)
    }

    fn ask(&mut self, request: &str) -> Answer {
        let answer = talk::ask(self.address, request);
        if answer.status >= 400 || self.turn.is_multiple_of(20) {
            self.report.answers.push(format!("{}\n{}", answer.head, answer.body));
        }
        answer
    }

    fn expect(&mut self, request: &str, status: u16) -> Answer {
        let answer = self.ask(request);
        assert_eq!(answer.status, status, "{request:.300}\n{answer:?}");
        answer
    }

    fn chat(&mut self) {
        let request = self.chat_about("hello");
        let begun = clock::now();
        let answer = self.expect(&request, 200);
        self.report.chats.push(begun.elapsed());
        self.last = Some((request, answer));
    }

    /// The same key has the same answer, and buys nothing.
    fn repeat(&mut self) {
        let Some((request, first)) = self.last.clone() else { return self.chat() };
        let again = self.expect(&request, first.status);
        match first.status {
            200 => assert_eq!(again.body, first.body),
            _ => assert_eq!(again.field("charged"), first.field("charged")),
        }
        assert!(again.head.contains("idempotent-replayed: true"), "{}", again.head);
    }

    fn fault(&mut self, fault: &str, status: u16) {
        let request = self.chat_about(&format!("sandbox:{fault}"));
        let answer = self.expect(&request, status);
        self.last = Some((request, answer));
    }

    fn order(&mut self, words: &str) -> Answer {
        self.turn += 1;
        let key = format!("{}-{}", self.name, self.turn);
        let body = format!(r#"{{"prompt":"{words} {key}","model":"video-a-2","duration":8}}"#);
        let key = format!("idempotency-key: {key}\r\n");
        let request = talk::post(&self.host, "/api/v1/video", &key, &body);
        self.expect(&request, 200)
    }

    fn video(&mut self) {
        let answer = self.order("a lighthouse");
        self.jobs.push(answer.field("request_id").expect("a job").to_owned());
    }

    fn failing_video(&mut self) {
        self.order("sandbox:fail");
    }

    fn job(&mut self) -> String {
        if self.jobs.is_empty() {
            self.video();
        }
        self.jobs.last().expect("one job").clone()
    }

    fn status(&mut self) {
        let path = format!("/api/v1/video/status?request_id={}", self.job());
        self.expect(&talk::get(&self.host.clone(), &path, "close"), 200);
    }

    /// Reads the beginning of a stream, and goes.
    fn events(&mut self) {
        let path = format!("/bff/events?request_id={}", self.job());
        let mut stream = talk::connect(self.address);
        stream.write_all(talk::get(&self.host, &path, "keep-alive").as_bytes()).unwrap();
        let mut begun = [0; 64];
        stream.read_exact(&mut begun).expect("a head");
        assert!(begun.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&begun));
    }

    fn invalid(&mut self) {
        let body = r#"{"model":"eta-5-mini","messages":[{"role":"nobody","content":" "}],"x":1}"#;
        self.expect(&talk::post(&self.host.clone(), "/api/v1/chat", "", body), 422);
    }

    fn malformed(&mut self) {
        let body = r#"{"model":"eta-5-mini","model":"#;
        self.expect(&talk::post(&self.host.clone(), "/api/v1/chat", "", body), 400);
    }

    fn too_large(&mut self) {
        let body = "x".repeat(128 * 1_024);
        self.expect(&talk::post(&self.host.clone(), "/api/v1/video", "", &body), 413);
    }

    fn another_host(&mut self) {
        self.expect(&talk::get("evil.example", "/bff/catalog", "close"), 421);
    }

    fn no_http(&mut self) {
        let mut stream = talk::connect(self.address);
        stream.write_all(b"\x16\x03\x01\x02\0\x01\0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    }

    /// Sends half a head, and waits to be sent away.
    fn half_a_head(&mut self) {
        let mut stream = talk::connect(self.address);
        stream.write_all(b"POST /api/v1/chat HTTP/1.1\r\nhost:").unwrap();
        stream.read_to_end(&mut Vec::new()).ok();
    }

    /// Sends a body more slowly than one may.
    fn slow_body(&mut self) {
        let request = self.chat_about("slowly");
        let (head, body) = request.split_at(request.len() - 40);
        let mut stream = talk::connect(self.address);
        stream.write_all(head.as_bytes()).unwrap();
        for byte in body.bytes().take(20) {
            pause(Duration::from_millis(100));
            if stream.write_all(&[byte]).is_err() {
                return;
            }
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"));
    }

    fn hang_up_in_the_body(&mut self) {
        let request = self.chat_about("cut");
        let mut stream = talk::connect(self.address);
        stream.write_all(&request.as_bytes()[..request.len() - 10]).unwrap();
    }

    /// What was sent is bought all the same, and kept for whoever asks again.
    fn hang_up_after_the_body(&mut self) {
        let request = self.chat_about("gone");
        talk::connect(self.address).write_all(request.as_bytes()).unwrap();
        if self.turn.is_multiple_of(2) {
            self.expect(&request, 200);
        }
    }

    fn leave_open(&mut self) {
        let mut stream = talk::connect(self.address);
        stream.write_all(talk::get(&self.host, "/healthz", "keep-alive").as_bytes()).unwrap();
        self.open.push(stream);
        if self.open.len() > MOST_LEFT_OPEN {
            self.open.remove(0);
        }
    }

    fn page(&mut self) {
        for path in ["/", "/bff/catalog", "/bff/me", "/healthz"] {
            self.expect(&talk::get(&self.host.clone(), path, "close"), 200);
        }
    }
}

impl LapReport {
    pub(crate) fn requests(&self) -> u64 {
        self.acts.values().sum()
    }

    /// How long a chat took in the middle of all of them.
    pub(crate) fn typical(&self) -> Duration {
        self.chats[self.chats.len() / 2]
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = &str> {
        self.answers.iter().map(String::as_str)
    }

    /// Nothing of the list was left out.
    pub(crate) fn has_everything(&self) {
        let missing: Vec<_> =
            ACTS.iter().filter(|act| !self.acts.contains_key(act.0)).map(|act| act.0).collect();
        assert!(missing.is_empty(), "never done: {}", missing.join(", "));
        assert!(self.chats.len() > 10, "{} chats", self.chats.len());
    }

    pub(crate) fn told(&self) -> String {
        let late = self.chats[self.chats.len() * 99 / 100];
        format!("{} acts, a chat takes {:?} (p99 {late:?})", self.requests(), self.typical())
    }
}
