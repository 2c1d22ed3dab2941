//! Three servers, each behind relays of its own, and what has to be true after every fault.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::crashes::{HOLD, MARK_SENT, SLOT};
use super::relay::{Point, Relay, Traffic};
use crate::support::client::{Answer, Client, Record};
use crate::support::fleet::Fleet;
use crate::support::postgres::{Cluster, Database};
use crate::support::process::PROGRAM;
use crate::support::{CHAT, Reply, Upstream, lock, until_within};

pub(super) const SERVERS: usize = 3;
/// Longer than it takes others to end what a dead server has left.
pub(super) const RECOVERY: Duration = Duration::from_secs(180);
const CHATS: &str = "/api/v1/chat";
/// The gateway's limit, which these tests reach.
const LIMIT: usize = 30;
const PERIOD: Duration = Duration::from_secs(2);
/// Others end what a dead server has held after 35 seconds, and what it has sent after 50.
const SETTINGS: &str = "gateway.rate_limit = { requests = 30, seconds = 2 }\n\
                        gateway.max_wait = \"5s\"\n\
                        gateway.connect_timeout = \"5s\"\n\
                        gateway.chat_timeout = \"10s\"\n\
                        gateway.video_timeout = \"10s\"\n";
/// How many callers buy at a time.
const CALLERS: usize = 3;

const OPEN: &str = "SELECT (SELECT count(*) FROM purchases WHERE ended_at IS NULL)
    + (SELECT count(*) FROM slots WHERE replied IS NULL)";
/// Has no slot come free for a moment.
const BLOCK: &str = "UPDATE ledger
    SET blocked_until = (extract(epoch FROM clock_timestamp()) + 3) * 1000000000";
const UNKNOWN: &str = "SELECT count(*) FROM purchases WHERE state = 'unknown'";
/// What was charged, and what may have been.
const SUMS: &str = "SELECT coalesce(sum(cost_micros) FILTER (WHERE state = 'charged'), 0),
    coalesce(sum(price_micros) FILTER (WHERE state = 'unknown'), 0) FROM purchases";
/// The counters that differ from the purchases that they count.
const WRONG_COUNTERS: &str = "
WITH counted AS (
  SELECT c.scope, c.unit, c.period, sum(CASE state WHEN 'charged' THEN cost_micros
    WHEN 'released' THEN 0 ELSE price_micros END) AS expected
  FROM purchases, LATERAL (VALUES ('total', 'day', day), ('total', 'month', month),
    ('caller ' || caller, 'day', day), ('caller ' || caller, 'month', month))
    AS c(scope, unit, period)
  GROUP BY c.scope, c.unit, c.period
)
SELECT count(*) FROM counted FULL JOIN spent USING (scope, unit, period)
WHERE coalesce(expected, 0) <> coalesce(micros, 0)";

/// Runs each case, some at a time.
pub(super) fn each<T: Copy + Send + Sync>(cases: &[T], run: impl Fn(T) + Sync) {
    const AT_ONCE: usize = 4;
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    run(*case);
                }
            });
        }
    });
}

/// Waits until this many seconds have passed by the clock that deadlines are judged by.
pub(super) fn wait_for_clock(database: &Database<'_>, seconds: u64) {
    const NOW: &str = "extract(epoch FROM clock_timestamp())";
    let end = database.sql(&format!("SELECT {NOW} + {seconds}"));
    let ask = format!("SELECT {NOW} > {end}");
    until_within(RECOVERY, "time passes", || database.sql(&ask) == "t");
}

/// A chat that resembles no other.
pub(super) fn chat(words: &str) -> String {
    CHAT.replace("hello", words)
}

/// A fleet whose traffic the test can stop.
pub(super) struct Trial<'a> {
    /// Dropped before its relays.
    pub(super) fleet: Fleet<'a>,
    pub(super) callers: Arc<Callers>,
    pub(super) upstream: Upstream,
    /// By server: to the database, and to the gateway.
    pub(super) to_database: Vec<Relay>,
    pub(super) to_gateway: Vec<Relay>,
}

/// Buys at all servers, as a program that retries until it knows the outcome.
pub(super) struct Callers {
    addresses: Mutex<Vec<SocketAddr>>,
    record: Arc<Record>,
    keys: Mutex<Vec<String>>,
}

impl<'a> Trial<'a> {
    pub(super) fn start(cluster: &'a Cluster) -> Self {
        Self::start_with(cluster, "", [&[]; SERVERS])
    }

    /// Starts it with servers of another build of tollgate.
    pub(super) fn start_of(program: &Path, cluster: &'a Cluster) -> Self {
        let mut trial = Self::empty(cluster, "");
        (0..SERVERS).for_each(|_| trial.add_of(program, cluster.address(), &[]));
        trial
    }

    /// Starts it with more settings, and with variables of its own for each server.
    pub(super) fn start_with(
        cluster: &'a Cluster,
        settings: &str,
        own: [&[(&str, &str)]; SERVERS],
    ) -> Self {
        let mut trial = Self::empty(cluster, settings);
        own.into_iter().for_each(|own| trial.add(cluster.address(), own));
        trial
    }

    fn empty(cluster: &'a Cluster, settings: &str) -> Self {
        let upstream = Upstream::start(|received| {
            let words = received.json()["messages"][0]["content"].clone();
            Reply::chat(words.as_str().unwrap_or_default())
        });
        let fleet = Fleet::start(cluster, &upstream, &format!("{SETTINGS}{settings}"), 0);
        let callers =
            Callers { addresses: Mutex::default(), record: fleet.record(), keys: Mutex::default() };
        Self {
            fleet,
            callers: Arc::new(callers),
            upstream,
            to_database: Vec::new(),
            to_gateway: Vec::new(),
        }
    }

    /// Starts one more server.
    pub(super) fn add(&mut self, database: SocketAddr, own: &[(&str, &str)]) {
        self.add_of(Path::new(PROGRAM), database, own);
    }

    fn add_of(&mut self, program: &Path, database: SocketAddr, own: &[(&str, &str)]) {
        let (ledger, gateway) = (Relay::to(database), Relay::to(self.upstream.address()));
        let url = self.fleet.database.url_at(ledger.address);
        let base_url = format!("http://{}", gateway.address);
        let links = [("DATABASE_URL", &*url), ("TOLLGATE_GATEWAY__BASE_URL", &*base_url)];
        self.fleet.add_of(program, &[&links[..], own].concat());
        self.to_database.push(ledger);
        self.to_gateway.push(gateway);
        let started = self.fleet.servers.last().expect("it has started");
        lock(&self.callers.addresses).push(started.address);
    }

    /// Buys a chat by a key of the same words at the first server, and stops the purchase there.
    pub(super) fn stop_at(&self, point: Point, key: &str) -> (Client, &Relay) {
        let relay = match point.traffic {
            Traffic::Transaction(_) | Traffic::Statement(..) => &self.to_database[0],
            Traffic::Purchase => &self.to_gateway[0],
        };
        if matches!(point.traffic, HOLD | SLOT | MARK_SENT) {
            self.fleet.database.sql(BLOCK);
        }
        relay.arm(point);
        let client = self.callers.send(key, 0);
        relay.wait_until_stopped();
        (client, relay)
    }

    /// Has callers buy at all servers meanwhile.
    pub(super) fn under_load<T>(&mut self, course: impl FnOnce(&mut Self) -> T) -> T {
        let ends = Ends(Arc::new(AtomicBool::new(false)));
        let callers = (0..CALLERS).map(|caller| {
            let (callers, ends) = (Arc::clone(&self.callers), Arc::clone(&ends.0));
            thread::spawn(move || {
                for number in 0.. {
                    if ends.load(Ordering::SeqCst) {
                        return;
                    }
                    callers.buy(&format!("load-{caller}-{number}"), caller + number);
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        self.wait_for_purchases(CALLERS);
        let result = course(self);
        self.wait_for_purchases(CALLERS);
        drop(ends);
        for caller in callers {
            caller.join().expect("each purchase ends");
        }
        result
    }

    /// Waits until the gateway has sold so many more.
    pub(super) fn wait_for_purchases(&self, more: usize) {
        let before = self.upstream.purchases();
        let sold = || self.upstream.purchases() >= before + more;
        until_within(RECOVERY, "the fleet sells", sold);
    }

    /// Returns how often the gateway has charged for this chat.
    pub(super) fn charges(&self, words: &str) -> usize {
        let text = format!("\"{words}\"");
        let charged = self.upstream.charged();
        charged
            .iter()
            .filter_map(|one| one.fingerprint.as_ref())
            .filter(|it| it.contains(&text))
            .count()
    }

    pub(super) fn unknown(&self) -> String {
        self.fleet.database.sql(UNKNOWN)
    }

    /// Asserts what has to be true after every fault. Servers that have ended have been removed from
    /// the callers' addresses.
    pub(super) fn finish(&self) {
        let database = &self.fleet.database;
        until_within(RECOVERY, "nothing is open", || database.sql(OPEN) == "0");
        // Each key is answered in the same way wherever it is repeated.
        let keys = lock(&self.callers.keys).clone();
        let servers = lock(&self.callers.addresses).len();
        let unknown = keys.iter().enumerate().filter(|(number, key)| {
            let answers = [*number, number + 1].map(|first| self.callers.buy(key, first % servers));
            assert_eq!(answers[0].status, answers[1].status, "{key}");
            answers[0].status == 424
        });
        assert_eq!(unknown.count().to_string(), self.unknown());
        self.upstream.assert_held(LIMIT, PERIOD);
        self.assert_sums();
        self.fleet.assert_balanced(&self.upstream);
        for server in &self.fleet.servers {
            let printed = server.process.printed();
            assert!(!printed.contains("panic"), "{printed}");
        }
    }

    fn assert_sums(&self) {
        let database = &self.fleet.database;
        until_within(RECOVERY, "nothing is open", || database.sql(OPEN) == "0");
        let mut times = BTreeMap::new();
        for charge in self.upstream.charged() {
            *times.entry(charge.fingerprint).or_insert(0) += 1;
        }
        let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "charged twice: {twice:?}");
        let gateway: u64 = self.upstream.charges().iter().sum();
        let sums = database.sql(SUMS);
        let (charged, unknown) = sums.split_once('|').expect("two columns");
        let (charged, unknown): (u64, u64) =
            (charged.parse().expect("a sum"), unknown.parse().expect("a sum"));
        assert!(
            charged <= gateway && gateway <= charged + unknown,
            "charged {charged}, at the gateway {gateway}, unknown {unknown}"
        );
        assert_eq!(database.sql(WRONG_COUNTERS), "0", "counters differ from their purchases");
    }
}

/// Ends the load, also if the course has failed.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Callers {
    /// Buys a chat by a key of the same words, first at this server, until the outcome is known.
    pub(super) fn buy(&self, key: &str, first: usize) -> Answer {
        let mut keys = lock(&self.keys);
        if !keys.iter().any(|known| known == key) {
            keys.push(key.to_owned());
        }
        drop(keys);
        let (mut turn, mut last) = (first, None);
        until_within(RECOVERY, "a purchase ends", || {
            let addresses = lock(&self.addresses).clone();
            last = self.try_buy(key, addresses[turn % addresses.len()]);
            turn += 1;
            let status = last.as_ref().map(|answer| answer.status);
            assert!(!matches!(status, Some(400 | 422)), "{last:?}");
            matches!(status, Some(200 | 424))
        });
        last.expect("until it was answered")
    }

    fn try_buy(&self, key: &str, address: SocketAddr) -> Option<Answer> {
        let mut client = Client::try_connect(address, &self.record)?;
        client.send("POST", CHATS, &[("idempotency-key", key)], &chat(key));
        client.try_answer()
    }

    /// Sends a purchase, and leaves its answer to the test.
    pub(super) fn send(&self, key: &str, server: usize) -> Client {
        let address = lock(&self.addresses)[server];
        lock(&self.keys).push(key.to_owned());
        let mut client = Client::connect(address, &self.record);
        client.send("POST", CHATS, &[("idempotency-key", key)], &chat(key));
        client
    }

    /// Uses another address in place of this one.
    pub(super) fn replace(&self, old: SocketAddr, new: Option<SocketAddr>) {
        let mut addresses = lock(&self.addresses);
        let place = addresses.iter().position(|known| *known == old).expect("a known server");
        match new {
            Some(new) => addresses[place] = new,
            None => _ = addresses.remove(place),
        }
    }
}
