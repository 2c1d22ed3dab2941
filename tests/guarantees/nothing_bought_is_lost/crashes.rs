//! Stops, crashes and `kill -9`: what was bought is replayed, what may have been bought is unknown,
//! and the money adds up.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, thread};

use tollgate::clock;
use tollgate::gateway::contract::money::Usd;
use tollgate::ledger::{BudgetScope, PurchaseRecord, PurchaseState, Store};

use crate::support::client::Answer;
use crate::support::process::Signal;
use crate::support::received::ReceivedRequest;
use crate::support::reply::Latch;
use crate::support::{self, CHAT, Ending, Gate, Reply, Upstream, VIDEO, until};

/// A ledger in a file, and no page of ours: to compress it takes most of a start.
const SETTINGS: &str = "store.url = \"sqlite:ledger.db\"\npage.dir = \"site\"";

fn start(upstream: &Upstream) -> Gate {
    Gate::binary_in(upstream, SETTINGS, |folder| fs::create_dir(folder.join("site")).unwrap())
}

#[test]
fn purchase_in_flight_at_a_stop_is_replayed_after_restart() {
    let latch = Latch::new();
    let upstream = Upstream::start(move |received| {
        let is_video = received.target.ends_with("/video");
        let reply = if is_video { Reply::video("job-1") } else { Reply::chat("hi") };
        reply.when(latch)
    });
    let mut gate = start(&upstream);
    let headers = [("idempotency-key", "k")];
    let (mut waits, mut leaves) = (gate.client(), gate.client());
    waits.send("POST", "/api/v1/video", &headers, VIDEO);
    leaves.send("POST", "/api/v1/chat", &headers, CHAT);
    upstream.wait_for(2);
    drop(leaves);
    gate.signal(Signal::SIGTERM);
    until("it is stopping", || gate.printed().contains("drain started"));
    latch.open();
    let answer = waits.answer();
    // A gate that ends waits a second for clients to close their connections.
    drop(waits);
    assert_eq!(gate.wait().code(), Some(0));
    gate.restart();
    let again = gate.ask("POST", "/api/v1/video", &headers, VIDEO);
    assert_eq!((again.status, again.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!((&again.body, again.cost()), (&answer.body, answer.cost()));
    let kept = gate.ask("POST", "/api/v1/chat", &headers, CHAT);
    assert_eq!((kept.status, kept.value("idempotent-replayed")), (200, Some("true")));
    assert_eq!(upstream.purchases(), 2);
}

#[test]
fn unknown_outcome_survives_a_crash() {
    let upstream = Upstream::start(|received| match received.number {
        0 => Reply::error(500).charged(true),
        _ => Reply::nothing(Ending::Hang).charged(true),
    });
    let mut gate = start(&upstream);
    let told = gate.ask("POST", "/api/v1/chat", &[("idempotency-key", "told")], CHAT);
    assert_eq!(told.status, 424);
    let mut client = gate.client();
    client.send("POST", "/api/v1/video", &[("idempotency-key", "cut")], VIDEO);
    upstream.wait_for(2);
    gate.kill();
    assert!(client.try_answer().is_none());
    for _ in 0..2 {
        gate.restart();
        for (key, target, body) in [("told", "/api/v1/chat", CHAT), ("cut", "/api/v1/video", VIDEO)]
        {
            let again = gate.ask("POST", target, &[("idempotency-key", key)], body);
            assert_eq!((again.status, again.charged().as_deref()), (424, Some("unknown")), "{key}");
            assert_eq!(again.value("idempotent-replayed"), Some("true"));
        }
        gate.kill();
    }
    assert_eq!(upstream.charges(), [6_000, 3_000_000]);
}

/// A purchase that a client tried, with what it was told.
#[derive(Clone)]
struct Tried {
    key: String,
    is_video: bool,
    told: Option<Answer>,
}

impl Tried {
    fn new(key: String, is_video: bool) -> Self {
        Self { key, is_video, told: None }
    }

    fn target(&self) -> &'static str {
        if self.is_video { "/api/v1/video" } else { "/api/v1/chat" }
    }

    /// Each has words of its own, so that the gateway can tell whose charge is whose.
    fn body(&self) -> String {
        let key = &self.key;
        match self.is_video {
            true => format!(r#"{{"prompt":"{key}","model":"video-a-2","duration":8}}"#),
            false => format!(
                r#"{{"model":"alpha-sonnet-4.5","messages":[{{"role":"user","content":"{key}"}}]}}"#
            ),
        }
    }

    fn ask(&self, gate: &Gate) -> Option<Answer> {
        let mut client = gate.try_client()?;
        client.send("POST", self.target(), &[("idempotency-key", &self.key)], &self.body());
        client.try_answer()
    }
}

/// A small generator: the same rounds every time, as far as threads allow.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// What the gateway sells: a reply that names its buyer; nothing, to those who hang.
fn sell(received: &ReceivedRequest) -> Reply {
    let words = String::from_utf8_lossy(&received.body).into_owned();
    let key = words.split('"').find(|word| word.starts_with("round-")).unwrap_or_default();
    let pause = Duration::from_millis(received.number as u64 * 5 % 9);
    match (received.target.as_str(), key.contains("hangs")) {
        (_, true) => Reply::nothing(Ending::Hang).charged(true),
        ("/api/v1/chat", _) => Reply::chat(key).after(pause),
        _ => Reply::video(key).after(pause),
    }
}

/// Buys until the gate is gone, and counts the answers.
fn shop(
    gate: &Gate,
    round: usize,
    shopper: usize,
    (ends, answered): &(AtomicBool, AtomicUsize),
) -> Vec<Tried> {
    let mut all = Vec::new();
    while !ends.load(Ordering::SeqCst) {
        let call = all.len();
        let mut tried = Tried::new(format!("round-{round}-{shopper}-{call}"), call % 3 == 2);
        tried.told = tried.ask(gate);
        answered.fetch_add(usize::from(tried.told.is_some()), Ordering::SeqCst);
        all.push(tried);
    }
    all
}

#[test]
fn kill_9_at_any_moment_loses_and_repeats_nothing() {
    const ROUNDS: usize = 30;
    const SHOPPERS: usize = 3;
    let upstream = Upstream::start(sell);
    let mut gate = start(&upstream);
    let mut dice = Dice(0x7011_6a7e);
    let mut all: Vec<Tried> = Vec::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for round in 0..ROUNDS {
        let hanging = Tried::new(format!("round-{round}-hangs"), round % 2 == 0);
        let mut hanger = gate.client();
        let before = upstream.purchases();
        hanger.send(
            "POST",
            hanging.target(),
            &[("idempotency-key", &hanging.key)],
            &hanging.body(),
        );
        until("the gateway hears it", || upstream.purchases() > before);
        let state = (AtomicBool::new(false), AtomicUsize::new(0));
        // So many purchases come to their end, however slow the machine is, and others do not.
        let answers = 2 + usize::try_from(dice.roll(4)).unwrap();
        let pause = Duration::from_micros(dice.roll(10_000));
        let bought = thread::scope(|scope| {
            let (shared, state) = (&gate, &state);
            let shoppers: Vec<_> = (0..SHOPPERS)
                .map(|shopper| scope.spawn(move || shop(shared, round, shopper, state)))
                .collect();
            until("purchases are answered", || state.1.load(Ordering::SeqCst) >= answers);
            support::pause(pause);
            gate.signal(Signal::SIGKILL);
            state.0.store(true, Ordering::SeqCst);
            shoppers.into_iter().flat_map(|shopper| shopper.join().unwrap()).collect::<Vec<_>>()
        });
        drop(hanger);
        gate.kill();
        if round % 3 == 0 {
            gate.start_and_kill(Duration::from_micros(dice.roll(8_000)));
        }
        gate.restart();
        assert_books(&gate, &upstream, "after the crash");
        let now: Vec<_> = bought.into_iter().chain([hanging]).collect();
        for tried in &now {
            *counts.entry(judge(&gate, &upstream, tried)).or_default() += 1;
        }
        all.extend(now);
    }
    // Old ones, too, after however many crashes.
    for tried in all.iter().step_by(17) {
        judge(&gate, &upstream, tried);
    }
    let books = assert_books(&gate, &upstream, "at the end");
    println!("{} purchases: {counts:?}; {books}", all.len());
    assert!(counts["unknown"] >= ROUNDS, "{counts:?}");
    assert!(counts["replayed"] > ROUNDS, "{counts:?}");
}

/// Sends it again: what was told stays so, what was bought is replayed, what is unknown stays so.
fn judge(gate: &Gate, upstream: &Upstream, tried: &Tried) -> &'static str {
    let key = &tried.key;
    let charges = || {
        let words = format!("\"{key}\"");
        let is_it = |fingerprint: &Option<String>| {
            fingerprint.as_ref().is_some_and(|fingerprint| fingerprint.contains(&words))
        };
        upstream.charged().iter().filter(|charge| is_it(&charge.fingerprint)).count()
    };
    let before = charges();
    assert!(before <= 1, "{key} was charged {before} times");
    let again = tried.ask(gate).expect("it runs");
    let is_replay = again.value("idempotent-replayed") == Some("true");
    let hangs = key.contains("hangs");
    match (again.status, is_replay) {
        (200, true) => {
            assert!(!hangs && charges() == 1, "{key}");
            assert!(again.text().contains(key.as_str()), "{key}: {}", again.text());
            if let Some(told) = &tried.told {
                assert_eq!((told.status, &told.body), (200, &again.body), "{key}");
                assert_eq!(told.cost(), again.cost(), "{key}");
            }
            "replayed"
        }
        (424, true) => {
            assert!(tried.told.is_none(), "{key}: it was told {:?}", tried.told);
            assert_eq!(again.charged().as_deref(), Some("unknown"), "{key}");
            assert_eq!(charges(), before, "{key}");
            "unknown"
        }
        // It had not been sent: now it is bought.
        (200, false) => {
            assert!(tried.told.is_none() && before == 0 && !hangs, "{key}");
            assert_eq!(charges(), 1, "{key}");
            "bought anew"
        }
        _ => panic!("{key}: {again:?}"),
    }
}

/// The ledger's sums, held against what the gateway took.
fn assert_books(gate: &Gate, upstream: &Upstream, when: &str) -> String {
    let ledger = gate.folder().join("ledger.db");
    let (rows, spent) = read(&ledger);
    let sum = |states: &[PurchaseState]| -> u64 {
        let counts = |row: &&PurchaseRecord| states.contains(&row.state);
        rows.iter().filter(counts).map(|row| row.price.as_micros()).sum()
    };
    let (booked, unknown) = (sum(&[PurchaseState::Charged]), sum(&[PurchaseState::Unknown]));
    let charged: u64 = upstream.charges().iter().sum();
    let books = format!("booked {booked}, unknown {unknown}, charged {charged}");
    assert_eq!(sum(&[PurchaseState::Held, PurchaseState::Sent]), 0, "{when}: {books}");
    assert!(booked <= charged && charged <= booked + unknown, "{when}: {books}");
    let day = |row: &PurchaseRecord| row.at.as_secs() / 86_400;
    let is_one_day = rows.iter().all(|row| day(row) == day(&rows[0]));
    if is_one_day {
        assert_eq!(spent.as_micros(), booked + unknown, "{when}: {books}");
    }
    books
}

fn read(ledger: &Path) -> (Vec<PurchaseRecord>, Usd) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ledger = Store::open_read_only(ledger, Arc::new(clock::wall)).unwrap();
        let rows = ledger.purchases_since(Duration::ZERO).await.unwrap();
        (rows, ledger.current_spend(BudgetScope::Total).await.unwrap().day)
    })
}
