//! A folder with a sandbox as its live gateway and a ledger, and the real binary in it.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::clock;
use tollgate::gateway::contract::money::Usd;
use tollgate::gateway::sandbox::{Sandbox, SandboxSettings};
use tollgate::ledger::{
    AccountStatus, Budgets, Checkpoint, DedupeKey, KeptReply, PurchaseId, PurchaseRecord,
    PurchaseState, Reservation, Service, Settlement, Snapshot, Store,
};

pub(crate) use crate::support::server::Server;
use crate::support::server::{exchange, serve};
use crate::support::{process, until};

pub(crate) const KEY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";
pub(crate) const OTHER_KEY: &str = "svc_sk_ZANARY_fedcba9876543210fedcba9876";
pub(crate) const CHAT: (Service, &str, Usd) = (Service::Chat, "eta-5-mini", Usd::mills(3));
pub(crate) const VIDEO: (Service, &str, Usd) = (Service::Video, "video-a-2", Usd::dollars(3));
pub(crate) const EXPENSIVE_VIDEO: (Service, &str, Usd) =
    (Service::Video, "video-d-3.1", Usd::dollars(5));
pub(crate) const CHAT_BODY: &str =
    r#"{"model":"eta-5-mini","messages":[{"role":"user","content":"hello"}]}"#;
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A folder with settings, a sandbox as its live gateway, a ledger.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) sandbox: Sandbox,
    address: SocketAddr,
    pub(crate) runtime: Runtime,
}

pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Fixture {
    pub(crate) fn open() -> Self {
        let runtime = Runtime::new().unwrap();
        let (sandbox, address) = gateway(&runtime, SandboxSettings::default().seed);
        let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
        fs::write(
            folder.path().join("proxy.toml"),
            format!(
                "[gateway]\nbase_url = \"http://{address}\"\n\n\
                 [page]\nmedia_origins = [\"http://{address}\"]\n\n\
                 [videos]\nkeep = \"0s\"\n"
            ),
        )
        .unwrap();
        Self { folder, sandbox, address, runtime }
    }

    pub(crate) fn with_ledger() -> Self {
        let fixture = Self::open();
        drop(fixture.ledger(Duration::ZERO));
        fixture
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("tollgate.db")
    }

    /// The ledger as a server has it. Once for each fixture: a command that another test starts just now
    /// holds a copy of the lock for a moment.
    pub(crate) fn server(&self) -> Store {
        Store::serve(&self.path(), Arc::new(clock::wall)).unwrap()
    }

    /// The ledger for a while, so long ago.
    pub(crate) fn ledger(&self, ago: Duration) -> Store {
        Store::open_shared(&self.path(), Arc::new(move || clock::wall() - ago)).unwrap()
    }

    /// The command in this folder; whatever it prints, no key is in it.
    pub(crate) fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
        let keys = format!("{KEY},{OTHER_KEY}");
        let environment = [&[("GATEWAY_API_KEY", keys.as_str())], environment].concat();
        let ended = process::run(self.folder.path(), arguments, &environment);
        let ended = Ended { code: ended.code, out: ended.stdout, err: ended.stderr };
        for key in [KEY, OTHER_KEY] {
            let secret = &key[24..];
            assert!(!ended.out.contains(secret) && !ended.err.contains(secret), "{}", ended.said());
        }
        ended
    }

    /// The command, which has to do well; what it prints.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments, &[]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}: {}", ended.out);
        ended.out
    }

    /// `reconcile`, which has to leave unknown outcomes; what it prints.
    pub(crate) fn left(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments, &[]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(3), ""), "{arguments:?}: {}", ended.out);
        ended.out
    }

    /// Enters a purchase so long ago; without an end it stays under way.
    pub(crate) fn enter(
        &self,
        (service, model, price): (Service, &str, Usd),
        caller: &str,
        ending: Option<Settlement>,
        ago: Duration,
    ) -> PurchaseId {
        let ledger = self.ledger(ago);
        let id = PurchaseId::generate();
        let mut key = [0; 32];
        key[..16].copy_from_slice(id.0.as_bytes());
        let reservation = Reservation {
            id,
            caller: caller.into(),
            service,
            model: model.to_owned().into(),
            price,
            dedupe_key: DedupeKey::IdempotencyKey { key, payload: key },
            group: None,
            token: None,
            budgets: Budgets::default(),
            attempt: 0,
            replay_only: false,
            requires: Default::default(),
        };
        self.runtime.block_on(async {
            ledger.reserve(&reservation).await.unwrap();
            if let Some(ending) = ending {
                ledger.mark_sent(id, AccountStatus::Confirmed).await.unwrap();
                ledger.settle(id, ending).await.unwrap();
            }
        });
        id
    }

    /// One that was sent so long ago, and lost only then.
    pub(crate) fn lose_slowly(
        &self,
        what: (Service, &str, Usd),
        sent: Duration,
        lost: Duration,
    ) -> PurchaseId {
        let id = self.enter(what, "192.0.2.1", None, sent);
        let ledger = self.ledger(lost);
        self.runtime.block_on(async {
            ledger.mark_sent(id, AccountStatus::Confirmed).await.unwrap();
            ledger.settle(id, Settlement::Unknown).await.unwrap();
        });
        id
    }

    pub(crate) fn lose(&self, what: (Service, &str, Usd), ago: Duration) -> PurchaseId {
        self.enter(what, "192.0.2.1", Some(Settlement::Unknown), ago)
    }

    /// Notes what the gateway's books say now, as if it had been noted so long ago.
    pub(crate) fn checkpoint(&self, ago: Duration) {
        self.checkpoint_with(ago, self.sandbox.charges().chat);
    }

    /// The same, except that the gateway had counted so many chats.
    pub(crate) fn checkpoint_with(&self, ago: Duration, chats: u64) {
        let cents = |micros: u64| micros / 10_000;
        let snapshot = Snapshot {
            at: clock::wall() - ago,
            balance_cents: i64::try_from(cents(self.sandbox.balance().as_micros())).unwrap(),
            chats,
            chat_cents: cents(chats * 3_000),
            spent_cents: cents(self.sandbox.charged().as_micros()),
        };
        let ledger = self.ledger(Duration::ZERO);
        self.runtime.block_on(ledger.record_checkpoint(snapshot)).unwrap();
    }

    pub(crate) fn checked(&self) -> Option<Checkpoint> {
        let ledger = Store::open_read_only(&self.path(), Arc::new(clock::wall)).unwrap();
        self.runtime.block_on(ledger.latest_checkpoint()).unwrap()
    }

    pub(crate) fn rows(&self) -> Vec<PurchaseRecord> {
        let ledger = Store::open_read_only(&self.path(), Arc::new(clock::wall)).unwrap();
        self.runtime.block_on(ledger.purchases_since(Duration::ZERO)).unwrap()
    }

    pub(crate) fn state(&self, id: PurchaseId) -> PurchaseState {
        self.rows().into_iter().find(|row| row.id == id).expect("it is there").state
    }

    /// Runs `tollgate serve` before the sandbox.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&["serve"], &[])
    }

    /// The same; it has noted its first checkpoint, and notes no other.
    pub(crate) fn serve_noted(&self) -> Server {
        let (before, server) = (self.checked(), self.serve());
        until("a start notes a checkpoint", || self.checked() != before);
        server
    }

    /// The same with these arguments, and with more in its environment.
    pub(crate) fn serve_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Server {
        let environment = [&[("GATEWAY_API_KEY", KEY)], environment].concat();
        Server::start(self.folder.path(), arguments, &environment)
    }

    /// Has the gateway charge for something.
    pub(crate) fn charge(&self, path: &str, body: &str) {
        let key = format!("Authorization: Bearer {KEY}");
        let answer = post(self.address, path, &key, body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    pub(crate) fn charge_chat(&self) {
        self.charge("/api/v1/chat", CHAT_BODY);
    }

    pub(crate) fn charge_video(&self, model: &str) {
        let body = format!(r#"{{"model":"{model}","prompt":"a lighthouse","duration":8}}"#);
        self.charge("/api/v1/video", &body);
    }
}

/// Starts another gateway; with another seed, its account is another one.
pub(crate) fn gateway(runtime: &Runtime, seed: u64) -> (Sandbox, SocketAddr) {
    let keys = vec![KEY.to_owned(), OTHER_KEY.to_owned()];
    let settings =
        SandboxSettings { keys, seed, reply_delay: Duration::ZERO, ..SandboxSettings::default() };
    let sandbox = Sandbox::new(settings);
    let address = serve(&sandbox, runtime);
    (sandbox, address)
}

impl Ended {
    pub(crate) fn said(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// The whole answer to a POST with one more header.
pub(crate) fn post(address: SocketAddr, path: &str, header: &str, body: &str) -> String {
    let header = header.split_once(": ").expect("a name and a value");
    exchange(address, "POST", path, &[header], body)
}

/// The status of what a bearer of this token gets.
pub(crate) fn get(address: SocketAddr, path: &str, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let answer = exchange(address, "GET", path, &[("Authorization", &bearer)], "");
    answer.split(' ').nth(1).expect("a status").parse().unwrap()
}

pub(crate) fn charged(cost: Usd) -> Option<Settlement> {
    let reply = KeptReply { status: 200, is_json: true, body: "{}".into() };
    Some(Settlement::Charged { cost, reply: Some(reply), keep: MINUTE, job: None })
}

pub(crate) fn line(out: &str, id: PurchaseId) -> &str {
    let id = id.to_string();
    out.lines().find(|line| line.contains(&id)).unwrap_or_else(|| panic!("no {id} in {out}"))
}
