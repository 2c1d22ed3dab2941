//! A running tollgate in front of a scripted gateway. The invariants are checked when it ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use tempfile::TempDir;
use tollgate::access::Authenticator;
use tollgate::config::Environment;
use tollgate::ledger::Store;
use zeroize::Zeroizing;

use super::bridge::{Bridge, Transport};
use super::certificate;
use super::client::{Answer, Client, Record};
use super::in_process::InProcess;
use super::members::Secrets;
use super::process::{Process, Signal};
use super::settings::{environment, no_kept_videos, no_rate_limit, stored, whole};
use super::upstream::Upstream;
use super::{lock, until};

const SETTINGS: &str = "proxy.toml";

/// A test may connect long before it sends a head, on a busy machine.
const NO_TIMEOUT: &str = "600s";

/// A running tollgate, stopped on drop.
pub(crate) struct Gate {
    upstream: Upstream,
    record: Arc<Record>,
    running: Running,
    page: SocketAddr,
    admin: SocketAddr,
    /// Where clients connect if the gate speaks TLS.
    bridge: Option<Bridge>,
    transport: Transport,
    certificate: Vec<u8>,
    folder: TempDir,
    /// The number of charges that the gateway had made before.
    earlier: usize,
    home: Home,
    environment: Vec<(String, String)>,
    /// What it printed before the last restart.
    before: String,
    /// Tokens that must not leak.
    pub(super) secrets: Secrets,
}

/// How a gate runs.
#[derive(Clone, Copy)]
enum Home {
    /// In this process, with this wall clock if any.
    Here(Option<fn() -> Duration>),
    Apart,
    ApartUnharmed,
}

impl Home {
    fn start(self, folder: &Path, environment: &[(String, String)]) -> Running {
        let lent: Vec<_> =
            environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        match self {
            Self::Here(wall) => {
                let own: Environment = environment
                    .iter()
                    .map(|(name, value)| (name.clone(), Zeroizing::new(value.clone())))
                    .collect();
                let settings = fs::read_to_string(folder.join(SETTINGS)).unwrap();
                Running::Here(InProcess::start(&settings, &own, folder, wall.map(|wall| wall())))
            }
            Self::Apart => Running::Apart(Process::start(folder, &lent)),
            Self::ApartUnharmed => Running::Apart(Process::start_unharmed(folder, &lent)),
        }
    }
}

enum Running {
    Here(InProcess),
    Apart(Process),
}

impl Running {
    /// The addresses of the callers' and the ops listener.
    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Here(here) => (here.page, here.admin),
            Self::Apart(process) => (process.address("page"), process.address("admin")),
        }
    }
}

impl Gate {
    /// Starts it in this process. `settings` is a `proxy.toml` to which addresses and keys are
    /// added: `gateway.chat_timeout = "300ms"`.
    pub(crate) fn start(upstream: &Upstream, settings: &str) -> Self {
        Self::here(upstream, settings, None)
    }

    /// The same, reached over this transport.
    pub(crate) fn over(transport: Transport, upstream: &Upstream, settings: &str) -> Self {
        let folder = folder_with(settings);
        Self::begin(transport, upstream, folder, Home::Here(None), &[])
    }

    /// The same with a wall clock that begins at this time. A ledger in a file has its own.
    pub(crate) fn start_at(upstream: &Upstream, settings: &str, wall: fn() -> Duration) -> Self {
        Self::here(upstream, settings, Some(wall))
    }

    fn here(upstream: &Upstream, settings: &str, wall: Option<fn() -> Duration>) -> Self {
        let transport = Transport::of_suite();
        Self::begin(transport, upstream, folder_with(settings), Home::Here(wall), &[])
    }

    /// Starts the real binary in an empty folder with this `proxy.toml`. Its environment has only
    /// addresses, keys and `more`.
    pub(crate) fn binary(upstream: &Upstream, settings: &str, more: &[(&str, &str)]) -> Self {
        let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
        fs::write(folder.path().join(SETTINGS), whole(settings)).unwrap();
        Self::begin(Transport::of_suite(), upstream, folder, Home::Apart, more)
    }

    /// Starts the real binary, reached over this transport.
    pub(crate) fn binary_over(transport: Transport, upstream: &Upstream, settings: &str) -> Self {
        let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
        fs::write(folder.path().join(SETTINGS), whole(settings)).unwrap();
        Self::begin(transport, upstream, folder, Home::Apart, &[])
    }

    /// Does the same in a folder that `prepare` has changed. A full file is a write error.
    pub(crate) fn binary_in(
        upstream: &Upstream,
        settings: &str,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
        fs::write(folder.path().join(SETTINGS), whole(settings)).unwrap();
        prepare(folder.path());
        Self::begin(Transport::of_suite(), upstream, folder, Home::ApartUnharmed, &[])
    }

    fn begin(
        transport: Transport,
        upstream: &Upstream,
        folder: TempDir,
        home: Home,
        more: &[(&str, &str)],
    ) -> Self {
        let mut environment = environment(upstream);
        let mut certificate = Vec::new();
        if transport != Transport::Plain {
            certificate = certificate::write(folder.path(), &["localhost", "127.0.0.1"]);
            environment.push(("TOLLGATE_SERVER__TLS".to_owned(), certificate::SETTING.to_owned()));
        }
        let settings = fs::read_to_string(folder.path().join(SETTINGS)).unwrap();
        environment.extend(no_rate_limit(&settings));
        environment.extend(no_kept_videos(&settings));
        if !settings.contains("header_timeout") {
            environment.push(("TOLLGATE_SERVER__HEADER_TIMEOUT".to_owned(), NO_TIMEOUT.to_owned()));
        }
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        environment.extend(more);
        let running = home.start(folder.path(), &environment);
        let (page, admin) = running.addresses();
        let (upstream, record) = (upstream.clone(), Arc::default());
        let earlier = upstream.charges().len();
        let mut gate = Self {
            upstream,
            record,
            running,
            page,
            admin,
            bridge: None,
            transport,
            certificate,
            folder,
            earlier,
            home,
            environment,
            before: String::new(),
            secrets: Secrets::default(),
        };
        gate.connect_bridge();
        gate
    }

    /// Puts a bridge before a gate that speaks TLS.
    fn connect_bridge(&mut self) {
        if self.transport != Transport::Plain {
            let bridge = Bridge::start(self.page, &self.certificate, self.transport);
            self.page = bridge.address;
            self.bridge = Some(bridge);
        }
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        match &mut self.running {
            Running::Here(_) => panic!("not a process: Gate::binary starts one"),
            Running::Apart(process) => process.kill(),
        }
    }

    /// Starts it again after its end, and kills it during the start.
    pub(crate) fn start_and_kill(&mut self, after: Duration) {
        let Running::Apart(mut process) = self.home.start(self.folder.path(), &self.environment)
        else {
            panic!("not a process: Gate::binary starts one");
        };
        super::pause(after);
        process.kill();
        self.before.push_str(&process.printed());
    }

    /// Stops it if it still runs, and starts it again in the same folder, with new
    /// addresses.
    pub(crate) fn restart(&mut self) {
        match &mut self.running {
            Running::Here(here) => here.stop(),
            Running::Apart(process) => {
                if process.is_running() {
                    process.signal(Signal::SIGTERM);
                }
                process.wait();
                self.before.push_str(&process.printed());
            }
        }
        self.running = self.home.start(self.folder.path(), &self.environment);
        (self.page, self.admin) = self.running.addresses();
        self.connect_bridge();
    }

    /// Starts it again after its end, and returns when it listens. Its ledger may not be open yet.
    pub(crate) fn start_listening(&mut self) {
        self.before.push_str(&self.process().printed());
        self.running = self.home.start(self.folder.path(), &self.environment);
        (self.page, self.admin) = self.process().listening();
        self.connect_bridge();
    }

    /// The address of the callers' listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.page
    }

    /// The address of its own listener, also if clients reach it over a bridge.
    pub(crate) fn behind_bridge(&self) -> SocketAddr {
        self.running.addresses().0
    }

    /// Its certificate in DER.
    pub(crate) fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The address of the ops listener.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The folder of its settings and its store.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its members.
    pub(super) fn members(&self) -> (Store, Arc<Authenticator>) {
        match &self.running {
            Running::Here(here) => here.known.clone().expect("it runs"),
            Running::Apart(_) => panic!("a process has its own: tollgate member add"),
        }
    }

    /// A new connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.page, &self.record)
    }

    /// Opens a connection, if the gate still listens.
    pub(crate) fn try_client(&self) -> Option<Client> {
        Client::try_connect(self.page, &self.record)
    }

    /// Opens a connection with a small receive buffer.
    pub(crate) fn narrow_client(&self) -> Client {
        self.narrow_client_from(Ipv4Addr::LOCALHOST)
    }

    /// Does the same from this loopback address.
    pub(crate) fn narrow_client_from(&self, source: Ipv4Addr) -> Client {
        Client::narrow(source, self.page, &self.record)
    }

    /// Records a charge, certain or possible, of programs that are no clients of the
    /// test.
    pub(crate) fn told_elsewhere(&self, micros: u64) {
        self.record.books.told_elsewhere(micros);
    }

    /// From now on, keys may be used for other purchases.
    pub(crate) fn forget_keys(&self) {
        self.record.books.forget_keys();
    }

    /// A new connection to another of its listeners.
    pub(crate) fn client_of(&self, address: SocketAddr) -> Client {
        Client::connect(address, &self.record)
    }

    /// Opens a connection from this address to the gate, or to the proxy in front of it.
    pub(crate) fn client_from(&self, source: Ipv4Addr, address: SocketAddr) -> Client {
        Client::from(source, address, &self.record)
    }

    /// A new connection to the admin listener.
    pub(crate) fn admin_client(&self) -> Client {
        Client::connect(self.admin, &self.record)
    }

    /// An answer, on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[], "")
    }

    /// An answer, on a connection of its own.
    pub(crate) fn post(&self, target: &str, body: &str) -> Answer {
        self.ask("POST", target, &[], body)
    }

    /// Buys a chat with a new key and returns the answer.
    pub(crate) fn chat(&self) -> Answer {
        self.buy("/api/v1/chat", super::CHAT)
    }

    /// Buys a video with a new key and returns the answer.
    pub(crate) fn video(&self) -> Answer {
        self.buy("/api/v1/video", super::VIDEO)
    }

    fn buy(&self, target: &str, body: &str) -> Answer {
        let key = uuid::Uuid::now_v7().to_string();
        self.ask("POST", target, &[("idempotency-key", &key)], body)
    }

    /// An answer, on a connection of its own.
    pub(crate) fn ask(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut client = self.client();
        client.send(method, target, headers, body);
        client.answer()
    }

    /// Returns once each request that was sent before has been looked up in the ledger, in this
    /// process: a lookup that buys nothing takes the same way, behind them.
    pub(crate) fn catch_up(&self) {
        let key = uuid::Uuid::now_v7().to_string();
        let headers = [("idempotency-key", key.as_str()), ("tollgate-replay", "only")];
        let body = super::CHAT.replace("hello", "a lookup");
        assert_eq!(self.ask("POST", "/api/v1/chat", &headers, &body).status, 404);
    }

    /// Waits until the gate has this many client connections, not counting the one that reads the metrics.
    pub(crate) fn wait_for_clients(&self, count: usize) {
        let row = format!("tollgate_connections {}", count + 1);
        until("the gate counts the connections", || self.metrics().lines().any(|line| line == row));
    }

    /// Returns the metrics.
    pub(crate) fn metrics(&self) -> String {
        let mut client = self.admin_client();
        client.send("GET", "/metrics", &[], "");
        client.answer().text()
    }

    /// Returns what it printed and logged so far. In this process, these are the logs of all gates.
    pub(crate) fn printed(&self) -> String {
        match &self.running {
            Running::Here(_) => String::from_utf8_lossy(&self.upstream.logged()).into_owned(),
            Running::Apart(process) => format!("{}{}", self.before, process.printed()),
        }
    }

    /// The process's id.
    pub(crate) fn id(&self) -> u32 {
        self.process().id()
    }

    /// Sends the process a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process().signal(signal);
    }

    /// Waits for the process's end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        match &mut self.running {
            Running::Here(_) => panic!("not a process: Gate::binary starts one"),
            Running::Apart(process) => process.wait(),
        }
    }

    fn process(&self) -> &Process {
        match &self.running {
            Running::Here(_) => panic!("not a process: Gate::binary starts one"),
            Running::Apart(process) => process,
        }
    }

    /// Stops it, and returns its last metrics if it still ran.
    fn end(&mut self) -> String {
        match &mut self.running {
            Running::Here(_) => {
                let metrics = self.metrics();
                if let Running::Here(here) = &mut self.running {
                    here.stop();
                }
                metrics
            }
            Running::Apart(_) => {
                let asked = std::net::TcpStream::connect(self.admin).is_ok();
                let metrics = if asked { self.metrics() } else { String::new() };
                if let Running::Apart(process) = &mut self.running {
                    process.kill();
                }
                metrics
            }
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if thread::panicking() {
            if let Running::Apart(process) = &mut self.running {
                process.kill();
                eprintln!("tollgate printed:\n{}", process.printed());
            }
            return;
        }
        // Purchases that wait for a hanging gateway must not wait for their timeout.
        self.upstream.hang_up();
        let metrics = self.end();
        self.upstream.assert_keys_in_their_place();
        let mut places = vec![
            ("what clients were sent".to_owned(), lock(&self.record.received).clone()),
            ("what was printed or logged".to_owned(), self.printed().into_bytes()),
            ("/metrics".to_owned(), metrics.into_bytes()),
        ];
        places.extend(files_in(self.folder.path()));
        for (place, text) in &places {
            self.upstream.canaries().iter().for_each(|key| key.assert_absent(place, text));
            self.secrets.assert_absent(place, text);
        }
        self.record.books.assert_balanced(&self.upstream.charged()[self.earlier..]);
    }
}

/// A folder with these settings, and a store in memory if they name none.
fn folder_with(settings: &str) -> TempDir {
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    fs::write(folder.path().join(SETTINGS), stored(settings)).unwrap();
    folder
}

pub(super) fn files_in(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else if let Ok(bytes) = fs::read(&path) {
            files.push((path.display().to_string(), bytes));
        }
    }
    files
}
