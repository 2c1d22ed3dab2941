//! A folder with a sandbox as its live gateway and a ledger, and the real binary in it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate::clock;
use tollgate::contract::money::Usd;
use tollgate::sandbox::{Sandbox, Settings};
use tollgate::store::{
    Account, Checkpoint, Claim, Ending, KeptReply, Limits, PurchaseId, Reservation, Row, Service,
    Snapshot, State, Store,
};

pub(crate) const KEY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";
pub(crate) const OTHER_KEY: &str = "svc_sk_ZANARY_fedcba9876543210fedcba9876";
pub(crate) const CHAT: (Service, &str, Usd) = (Service::Chat, "eta-5-mini", Usd::mills(3));
pub(crate) const VIDEO: (Service, &str, Usd) = (Service::Video, "video-a-2", Usd::dollars(3));
pub(crate) const DEAR: (Service, &str, Usd) = (Service::Video, "video-d-3.1", Usd::dollars(5));
pub(crate) const CHAT_BODY: &str =
    r#"{"model":"eta-5-mini","messages":[{"role":"user","content":"hello"}]}"#;
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A folder with settings, a sandbox as its live gateway, a ledger.
pub(crate) struct Desk {
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

impl Desk {
    pub(crate) fn open() -> Self {
        let runtime = Runtime::new().unwrap();
        let (sandbox, address) = gateway(&runtime, Settings::default().seed);
        let folder = TempDir::with_prefix("tollgate-commands-").unwrap();
        fs::write(
            folder.path().join("proxy.toml"),
            format!(
                "[gateway]\nbase_url = \"http://{address}\"\n\n\
                 [page]\nmedia_origins = [\"http://{address}\"]\n"
            ),
        )
        .unwrap();
        Self { folder, sandbox, address, runtime }
    }

    pub(crate) fn with_ledger() -> Self {
        let desk = Self::open();
        drop(desk.ledger(Duration::ZERO));
        desk
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("tollgate.db")
    }

    /// The ledger as a server has it. Once for each desk: a command that another test starts just now
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
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(arguments)
            .env_clear()
            .env("GATEWAY_API_KEY", keys)
            .envs(environment.iter().copied())
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ended = Ended {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        };
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
        (service, model, toll): (Service, &str, Usd),
        caller: &str,
        ending: Option<Ending>,
        ago: Duration,
    ) -> PurchaseId {
        let ledger = self.ledger(ago);
        let id = PurchaseId::new();
        let mut key = [0; 32];
        key[..16].copy_from_slice(id.0.as_bytes());
        let reservation = Reservation {
            id,
            caller: caller.to_owned(),
            service,
            model: model.into(),
            toll,
            claim: Claim::Key { key, payload: key },
            limits: Limits::default(),
        };
        self.runtime.block_on(async {
            ledger.reserve(&reservation).await.unwrap();
            if let Some(ending) = ending {
                ledger.sent(id, Account::Recognised).await.unwrap();
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
            ledger.sent(id, Account::Recognised).await.unwrap();
            ledger.settle(id, Ending::Unknown).await.unwrap();
        });
        id
    }

    pub(crate) fn lose(&self, what: (Service, &str, Usd), ago: Duration) -> PurchaseId {
        self.enter(what, "192.0.2.1", Some(Ending::Unknown), ago)
    }

    /// Notes what the gateway's books say now, as if it had been noted so long ago.
    pub(crate) fn checkpoint(&self, ago: Duration) {
        let charges = self.sandbox.charges();
        let cents = |micros: u64| micros / 10_000;
        let snapshot = Snapshot {
            at: clock::wall() - ago,
            balance_cents: cents(self.sandbox.balance().as_micros()),
            chats: charges.chat,
            chat_cents: cents(charges.chat * 3_000),
            spent_cents: cents(self.sandbox.charged().as_micros()),
        };
        let ledger = self.ledger(Duration::ZERO);
        self.runtime.block_on(ledger.check(snapshot)).unwrap();
    }

    pub(crate) fn checked(&self) -> Option<Checkpoint> {
        let ledger = Store::open_read_only(&self.path(), Arc::new(clock::wall)).unwrap();
        self.runtime.block_on(ledger.last_check()).unwrap()
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        let ledger = Store::open_read_only(&self.path(), Arc::new(clock::wall)).unwrap();
        self.runtime.block_on(ledger.rows(Duration::ZERO)).unwrap()
    }

    pub(crate) fn state(&self, id: PurchaseId) -> State {
        self.rows().into_iter().find(|row| row.id == id).expect("it is there").state
    }

    /// Runs `tollgate serve` before the sandbox.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&["serve"], &[])
    }

    /// The same with these arguments, and with more in its environment. Its log is in `server.log`.
    pub(crate) fn serve_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Server {
        let log = fs::File::create(self.folder.path().join("server.log")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(arguments)
            .env_clear()
            .env("GATEWAY_API_KEY", KEY)
            .envs(environment.iter().copied())
            .env("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0")
            .env("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0")
            .current_dir(self.folder.path())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<_> = out.lines().map(Result::unwrap).take(6).collect();
        let listens = |word| {
            let address =
                lines.iter().find_map(|line| line.strip_prefix(word)).expect("its address");
            address.trim().trim_start_matches("http://").parse().unwrap()
        };
        Server { child, address: listens("page"), admin: listens("admin") }
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
    let settings = Settings { keys, seed, reply_delay: Duration::ZERO, ..Settings::default() };
    let sandbox = Sandbox::new(settings);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let served = sandbox.clone();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        served.serve(listener, std::future::pending()).await;
    });
    (sandbox, address)
}

/// A running server; it is killed with the value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Server {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Ended {
    pub(crate) fn said(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// The whole answer to a POST with one more header.
pub(crate) fn post(address: SocketAddr, path: &str, header: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{header}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The status of what a bearer of this token gets.
pub(crate) fn get(address: SocketAddr, path: &str, token: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\n\r\n",
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).expect("a status").parse().unwrap()
}

pub(crate) fn posted(cost: Usd) -> Option<Ending> {
    let reply = KeptReply { status: 200, is_json: true, body: "{}".into() };
    Some(Ending::Posted { cost, reply: Some(reply), keep: MINUTE, job: None })
}

pub(crate) fn line(out: &str, id: PurchaseId) -> &str {
    let id = id.to_string();
    out.lines().find(|line| line.contains(&id)).unwrap_or_else(|| panic!("no {id} in {out}"))
}
