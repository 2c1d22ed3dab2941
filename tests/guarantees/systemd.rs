//! Sockets that systemd passes, and what it is told.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use tollgate::clock;

use super::startup::ask;
use crate::long::packaging::{START, UNIT};
use crate::support::process::{Process, Signal};
use crate::support::server::{ReservedPort, exchange};
use crate::support::{CHAT, certificate, pause, until_within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");
/// A sandbox behind a passed socket, whose limits are no limit for a test.
const PASSED: &[(&str, &str)] = &[
    ("TOLLGATE_SERVER__LISTEN", "systemd"),
    ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ("TOLLGATE_SANDBOX__PUBLIC", "true"),
    ("TOLLGATE_SANDBOX__REPLY_DELAY", "0s"),
    ("TOLLGATE_SANDBOX__RATE_LIMIT", "{ requests = 100000, seconds = 1 }"),
    ("TOLLGATE_GATEWAY__RATE_LIMIT", "{ requests = 100000, seconds = 1 }"),
    ("TOLLGATE_LIMITS__REQUESTS", "100000"),
    ("TOLLGATE_LIMITS__BURST", "100000"),
    ("TOLLGATE_LIMITS__CONCURRENT", "10000"),
];

/// A socket that listens with the queue that systemd's have.
fn listening() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(1_024).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Runs tollgate with this as the socket that systemd passes.
fn passing(folder: &Path, socket: impl Into<OwnedFd>, more: &[(&str, &str)]) -> Command {
    let script =
        "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_FDNAMES=public exec \"$0\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, PROGRAM]).current_dir(folder).env_clear();
    command.envs(PASSED.iter().chain(more).copied()).stdin(Stdio::from(socket.into()));
    command
}

#[test]
fn restart_refuses_and_resets_no_connection() {
    const TOTAL: usize = 200;
    const INTERVAL: Duration = Duration::from_millis(5);
    const RESTARTS: usize = 3;
    let folder = TempDir::with_prefix("tollgate-systemd-").unwrap();
    let (socket, address) = listening();
    let start = || Process::spawn(passing(folder.path(), socket.try_clone().unwrap(), &[]));
    let (sent, begun) = (AtomicUsize::new(0), clock::now());
    let restarts = AtomicUsize::new(0);
    let mut server = start();
    thread::scope(|scope| {
        let mut due = begun;
        let client = scope.spawn({
            let (sent, restarts) = (&sent, &restarts);
            move || {
                for number in 0..20 * TOTAL {
                    let is_over = restarts.load(Ordering::Relaxed) == RESTARTS;
                    if number >= TOTAL && is_over {
                        return;
                    }
                    pause(due.saturating_duration_since(clock::now()));
                    // On a slow machine it goes on until the last restart.
                    due =
                        if number < TOTAL { due + INTERVAL } else { clock::now() + 10 * INTERVAL };
                    sent.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(move || {
                        let body = CHAT.replace("hello", &format!("hello {number}"));
                        let json = [("content-type", "application/json")];
                        let answer = exchange(address, "POST", "/api/v1/chat", &json, &body);
                        assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer}");
                    });
                }
            }
        });
        for restart in 1..=RESTARTS {
            server.address("page");
            until_within(START, "requests are sent", || {
                sent.load(Ordering::Relaxed) >= TOTAL * restart / 4 || client.is_finished()
            });
            assert!(!client.is_finished(), "requests were sent before restart {restart}");
            server.signal(Signal::SIGTERM);
            assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
            server = start();
            restarts.fetch_add(1, Ordering::Relaxed);
        }
    });
    server.address("page");
}

#[test]
fn unusable_and_unused_sockets_are_refused() {
    let folder = TempDir::with_prefix("tollgate-systemd-").unwrap();
    let quiet = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    quiet.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let datagram = UnixDatagram::unbound().unwrap();
    let own = ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0");
    let named = ("TOLLGATE_SERVER__LISTEN", "systemd:private");
    let admin = ("TOLLGATE_ADMIN__LISTEN", "systemd:public");
    let unix = UnixListener::bind(folder.path().join("admin.sock")).unwrap();
    for (socket, setting, expected) in [
        (OwnedFd::from(quiet), own, "does not listen"),
        (datagram.into(), own, "expected a listening TCP or unix stream socket"),
        (listening().0.into(), own, "named public, which no setting uses"),
        (listening().0.into(), named, "systemd:private: systemd passed no such socket"),
        (unix.into(), admin, "admin.listen: expected one TCP socket"),
    ] {
        let output = passing(folder.path(), socket, &[setting]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
    }
    let unpassed = Command::new(PROGRAM).env_clear().envs(PASSED.iter().copied()).output().unwrap();
    assert_eq!(unpassed.status.code(), Some(2), "{unpassed:?}");
}

/// The service manager's end of `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(START)).unwrap();
        Self { socket, path }
    }

    fn next(&self) -> String {
        let mut state = [0; 300];
        let length = self.socket.recv(&mut state).expect("a notification");
        String::from_utf8_lossy(&state[..length]).into_owned()
    }

    fn next_other_than(&self, skipped: &str) -> String {
        loop {
            let next = self.next();
            if !next.starts_with(skipped) {
                return next;
            }
        }
    }
}

#[test]
fn service_manager_learns_of_start_reload_health_and_stop() {
    const WATCHDOG: &str = "WATCHDOG=1\nSTATUS=sandbox, ";
    let unit = fs::read_to_string(UNIT).unwrap();
    assert!(unit.contains("\nType=notify\n") && !unit.contains("\nProcSubset=pid"), "{unit}");
    assert!(unit.contains("\nWatchdogSec="), "{unit}");
    let folder = TempDir::with_prefix("tollgate-systemd-").unwrap();
    let manager = Manager::new(folder.path());
    let environment = [
        ("NOTIFY_SOCKET", manager.path.to_str().unwrap()),
        ("WATCHDOG_USEC", "100000"),
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_SERVER__DRAIN", "90s"),
    ];
    let mut server = Process::start(folder.path(), &environment);
    assert_eq!(manager.next(), "STATUS=opening the ledger");
    assert_eq!(manager.next(), "READY=1\nSTATUS=sandbox, 0 connections");
    for _ in 0..3 {
        assert_eq!(manager.next(), format!("{WATCHDOG}0 connections"));
    }
    server.signal(Signal::SIGHUP);
    let reloading = manager.next_other_than(WATCHDOG);
    let (words, time) = reloading.rsplit_once('=').unwrap();
    assert_eq!(words, "RELOADING=1\nMONOTONIC_USEC");
    assert!(time.parse::<u64>().unwrap() > 0, "{reloading}");
    assert_eq!(manager.next_other_than(WATCHDOG), "READY=1\nSTATUS=sandbox, 0 connections");
    server.signal(Signal::SIGTERM);
    // With what the last answers and the ledger may take after the drain.
    assert_eq!(
        manager.next_other_than(WATCHDOG),
        "STOPPING=1\nSTATUS=waiting for purchases in flight\nEXTEND_TIMEOUT_USEC=97000000"
    );
    assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
}

#[test]
fn watchdog_of_another_process_is_not_answered() {
    let folder = TempDir::with_prefix("tollgate-systemd-").unwrap();
    let manager = Manager::new(folder.path());
    let environment = [
        ("NOTIFY_SOCKET", manager.path.to_str().unwrap()),
        ("WATCHDOG_USEC", "1000"),
        ("WATCHDOG_PID", "1"),
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ];
    let server = Process::start(folder.path(), &environment);
    let address = server.address("page");
    // Each takes longer than the period.
    for number in 0..3 {
        let body = CHAT.replace("hello", &format!("hello {number}"));
        assert_eq!(ask(address, "POST", "/api/v1/chat", &body).status, 200);
    }
    server.signal(Signal::SIGTERM);
    let words = [(); 3].map(|()| manager.next().lines().next().unwrap().to_owned());
    assert_eq!(words, ["STATUS=opening the ledger", "READY=1", "STOPPING=1"]);
}

/// These need the program `systemd-socket-activate`.
mod long {
    use super::*;

    #[test]
    fn passed_sockets_are_found_by_name() {
        let program = "systemd-socket-activate";
        let found = Command::new(program).arg("--version").output();
        assert!(found.is_ok(), "{program} is missing: apt-get install systemd");
        let folder = TempDir::with_prefix("tollgate-systemd-").unwrap();
        let ports = [(); 3].map(|()| ReservedPort::new());
        let [page, admin, other] = ports.each_ref().map(ReservedPort::address);
        drop(ports);
        let mut command = Command::new(program);
        for address in [page, admin, other] {
            command.args(["-l", &address.to_string()]);
        }
        command.args(["--fdname=public:admin:other"]);
        for (name, value) in PASSED {
            let value = if *name == "TOLLGATE_ADMIN__LISTEN" { "systemd:admin" } else { value };
            command.args(["-E", &format!("{name}={value}")]);
        }
        command.arg(PROGRAM).current_dir(folder.path()).env_clear();
        let mut server = Process::spawn(command);
        until_within(START, "the service manager listens", || TcpStream::connect(page).is_ok());
        assert_eq!(server.address("admin"), admin);
        for address in [page, other] {
            assert_eq!(ask(address, "POST", "/api/v1/chat", CHAT).status, 200);
        }
        assert_eq!(ask(admin, "GET", "/readyz", "").status, 200);
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
    }

    #[test]
    fn shipped_sockets_serve_https_and_its_redirect() {
        let folder = TempDir::with_prefix("tollgate-systemd-").unwrap();
        certificate::write(folder.path(), &["localhost"]);
        let ports = [(); 2].map(|()| ReservedPort::new());
        let [page, plain] = ports.each_ref().map(ReservedPort::address);
        drop(ports);
        let mut command = Command::new("systemd-socket-activate");
        let mut names = Vec::new();
        for (socket, port, address) in
            [("tollgate", "443", page), ("tollgate-redirect", "80", plain)]
        {
            let unit = fs::read_to_string(format!("contrib/{socket}.socket")).unwrap();
            assert!(unit.contains(&format!("\nListenStream={port}\n")), "{unit}");
            let name = unit.lines().find_map(|line| line.strip_prefix("FileDescriptorName="));
            names.push(name.unwrap().to_owned());
            command.args(["-l", &address.to_string()]);
        }
        command.arg(format!("--fdname={}", names.join(":")));
        let tls = [
            ("TOLLGATE_SERVER__TLS", certificate::SETTING),
            ("TOLLGATE_SERVER__REDIRECT", "[\"systemd:redirect\"]"),
        ];
        for (name, value) in PASSED.iter().chain(&tls) {
            command.args(["-E", &format!("{name}={value}")]);
        }
        command.arg(PROGRAM).current_dir(folder.path()).env_clear();
        let mut server = Process::spawn(command);
        until_within(START, "the service manager listens", || TcpStream::connect(plain).is_ok());
        assert_eq!(server.address("page"), page);
        let answer = exchange(plain, "GET", "/a?b", &[("host", "localhost")], "");
        assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
        assert!(answer.contains("\r\nlocation: https://localhost/a?b\r\n"), "{answer}");
        let answer = exchange(page, "GET", "/healthz", &[], "");
        assert!(answer.contains("expected https on this port"), "{answer}");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
    }
}
