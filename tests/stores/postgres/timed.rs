//! Servers whose time the test passes: their clocks stand still otherwise, and so does the database's.

use std::ops::Deref;
use std::sync::mpsc;
use std::time::Duration;

use tokio::task::{spawn_blocking, yield_now};
use tokio_postgres::{Client, NoTls};
use tollgate::store::Store;

use crate::cluster::Cluster;
use crate::fixture::*;
use crate::moment::{PATIENCE, moment};

/// How often a server beats.
pub(crate) const BEAT: Duration = Duration::from_secs(2);
/// How long a server waits at least before it connects again.
pub(crate) const RECONNECT: Duration = Duration::from_millis(50);
/// Statements find this clock before the database's own.
const CLOCK: &str = "
CREATE TABLE set_time (at timestamptz NOT NULL);
INSERT INTO set_time VALUES ('epoch');
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT at FROM set_time'";
const SET_TIME: &str = "UPDATE set_time SET at = to_timestamp($1::bigint / 1000.0)";

/// A fixture for tests with `#[tokio::test(start_paused = true)]`.
pub(crate) struct Timed {
    fixture: Fixture,
    clock: Client,
    /// While a blocking task waits for it, the runtime's time does not run ahead by itself.
    _still: mpsc::Sender<()>,
}

impl Deref for Timed {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl Timed {
    pub(crate) async fn new() -> Self {
        let (still, ended) = mpsc::channel::<()>();
        // A test that hangs fails: from then on, its timeouts end.
        drop(spawn_blocking(move || ended.recv_timeout(5 * PATIENCE).is_err()));
        let database = Cluster::shared().database();
        let name = &database.name;
        database
            .sql(&format!("{CLOCK}; ALTER DATABASE {name} SET search_path = public, pg_catalog"));
        let (clock, connection) =
            tokio_postgres::connect(&database.url(), NoTls).await.expect("it connects");
        drop(tokio::spawn(connection));
        set(&clock, START).await;
        let fixture = Fixture::on_set_clock(database).await;
        Self { fixture, clock, _still: still }
    }

    /// Advances all clocks, beat by beat. Each time, these servers do what is due.
    pub(crate) async fn pass(&self, time: Duration, servers: &[&Store]) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(BEAT);
            left -= step;
            self.advance(step).await;
            for server in servers {
                self.catch_up(server).await;
            }
        }
    }

    /// Does the same beat by beat until the condition is true.
    pub(crate) async fn pass_until(
        &self,
        what: &str,
        servers: &[&Store],
        is_so: impl Fn() -> bool,
    ) {
        const MAX_BEATS: u32 = 50;
        for _ in 0..MAX_BEATS {
            if is_so() {
                return;
            }
            self.pass(BEAT, servers).await;
        }
        panic!("not after {MAX_BEATS} beats: {what}");
    }

    /// Advances all clocks at once.
    pub(crate) async fn advance(&self, time: Duration) {
        self.set_database_ahead(time).await;
        tokio::time::advance(time).await;
    }

    /// Advances only the database's clock.
    pub(crate) async fn set_database_ahead(&self, time: Duration) {
        self.fixture.set(self.now() + time);
        set(&self.clock, self.now()).await;
    }

    /// Waits until a server has done what was due. If it has to connect again, time passes.
    async fn catch_up(&self, server: &Store) {
        // Each question is answered after all that was asked before it on its connection: the beat, the
        // search for the dead, the burial and the sweep come one after the other.
        for _ in 0..4 {
            yield_now().await;
            while server.heartbeats_answered().await.is_err()
                || server.recorded_rate_limit().await.is_err()
            {
                moment().await;
                self.advance(RECONNECT).await;
            }
        }
    }
}

async fn set(clock: &Client, now: Duration) {
    let millis = i64::try_from(now.as_millis()).expect("this century");
    clock.execute(SET_TIME, &[&millis]).await.expect("set");
}
