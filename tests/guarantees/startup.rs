//! A start and a stop: what a server answers until its ledger is open, what it is called, and that it obeys signals.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;
use tollgate::clock;
use tollgate::ledger::{MoneyKind, Store, StoreCapacity};

use crate::support::client::{Answer, Client, Record};
use crate::support::process::{Process, Signal, run};
use crate::support::server::ReservedPort;
use crate::support::{
    CHAT, Gate, PATIENCE, Reply, Upstream, VIDEO, as_soon_as, until, until_within,
};

const STORE: &str = "store.url = \"sqlite:ledger.db\"\npage.dir = \"site\"";

/// Purchases of a ledger that takes a while to check; `LEDGER_ROWS=1000000` for a large one.
#[expect(clippy::disallowed_methods, reason = "a person asks for a larger ledger")]
fn rows() -> u64 {
    std::env::var("LEDGER_ROWS").map_or(30_000, |rows| rows.parse().expect("a number"))
}

/// Opens the ledger as a server does, and closes it again.
fn serve_once(ledger: &Path) {
    let capacity = StoreCapacity::default();
    let clock = Arc::new(clock::wall);
    drop(Store::serve_with(ledger, clock, capacity, Some(MoneyKind::Real)).unwrap());
}

/// A ledger with purchases that are all charged, and counters that are their sum.
fn fill(ledger: &Path) {
    serve_once(ledger);
    let file = Connection::open(ledger).unwrap();
    file.execute_batch(&format!(
        "PRAGMA synchronous = OFF;
         PRAGMA cache_size = -400000;
         BEGIN;
         WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < {})
         INSERT INTO purchases (id, at, day, month, caller, service, model, price_micros, cost_micros, state,
             key, payload, ended_at, keep_until)
         SELECT randomblob(16), n, 20000, 657, 'member:m' || (n % 50), 'chat', 'alpha-sonnet-4.5', 3000, 3000,
             'charged', randomblob(32), randomblob(32), n, n FROM rows;
         INSERT INTO spent SELECT 'caller ' || caller, 'day', day, sum(cost_micros) FROM purchases GROUP BY caller;
         INSERT INTO spent SELECT 'caller ' || caller, 'month', month, sum(cost_micros) FROM purchases
             GROUP BY caller;
         INSERT INTO spent SELECT 'total', 'day', day, sum(cost_micros) FROM purchases;
         INSERT INTO spent SELECT 'total', 'month', month, sum(cost_micros) FROM purchases;
         COMMIT;",
        rows()
    ))
    .unwrap();
    drop(file);
    // A server has had it as it is now.
    serve_once(ledger);
}

/// Writes in it as another program does, so that a server checks it before it sells.
fn write_to(ledger: &Path) {
    let file = Connection::open(ledger).unwrap();
    file.execute_batch("UPDATE purchases SET delivered = 1 WHERE number = 1").unwrap();
}

/// The folder of a server that sells from such a ledger in the mode `members`, or in the open.
pub(crate) fn folder(upstream: &Upstream) -> TempDir {
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let settings = format!(
        "limits = {{ requests = 100000, seconds = 1, burst = 100000, concurrent = 100 }}\n{STORE}\nserver.listen = \"127.0.0.1:0\"\nadmin.listen = \"127.0.0.1:0\"\n\
         gateway.base_url = \"http://{}\"\ngateway.rate_limit = {{ requests = 1000, seconds = 1 }}\n",
        upstream.address()
    );
    fs::write(folder.path().join("proxy.toml"), settings).unwrap();
    fs::create_dir(folder.path().join("site")).unwrap();
    fs::write(folder.path().join("site/index.html"), "a page").unwrap();
    folder
}

fn start(folder: &Path, upstream: &Upstream) -> Process {
    Process::start(folder, &[("GATEWAY_API_KEY", upstream.canaries()[0].key())])
}

/// Waits for the end of a check, which takes minutes if the ledger is large.
fn until_checked(is_so: impl FnMut() -> bool) {
    until_within(10 * PATIENCE, "the ledger has been checked", is_so);
}

pub(crate) fn ask(at: SocketAddr, method: &str, path: &str, body: &str) -> Answer {
    let mut client = Client::connect(at, &Arc::new(Record::default()));
    client.send(method, path, &[], body);
    client.answer()
}

#[test]
fn server_answers_while_its_ledger_is_checked_and_sells_afterwards() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let folder = folder(&upstream);
    let ledger = folder.path().join("ledger.db");
    fill(&ledger);
    write_to(&ledger);

    // Whoever writes in it keeps the server from opening it.
    let writer = Connection::open(&ledger).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut server = start(folder.path(), &upstream);
    let (page, admin) = server.listening();
    let ready = ask(admin, "GET", "/readyz", "");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("starting"), "{}", ready.text());
    for path in ["/healthz", "/", "/bff/catalog"] {
        assert_eq!(ask(page, "GET", path, "").status, 200, "{path}");
    }
    assert_eq!(ask(admin, "GET", "/healthz", "").status, 200);
    // A server waits for another writer for ten seconds.
    writer.execute_batch("ROLLBACK").unwrap();
    let second = run(folder.path(), &[], &[("GATEWAY_API_KEY", upstream.canaries()[0].key())]);
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains(&format!("process {}", server.id())), "{second:?}");

    until_checked(|| ask(admin, "GET", "/readyz", "").status == 200);
    until("it is logged", || server.printed().contains("ledger check passed"));
    assert_eq!(server.address("page"), page);
    assert_eq!(ask(page, "POST", "/api/v1/chat", CHAT).status, 200);
    assert_eq!(upstream.requests(), 1);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));

    // What was closed is not checked.
    let mut server = start(folder.path(), &upstream);
    server.address("page");
    assert!(!server.printed().contains("ledger check"), "{}", server.printed());
    server.kill();
}

#[test]
fn killed_server_sells_again_while_its_ledger_is_checked() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let folder = folder(&upstream);
    fill(&folder.path().join("ledger.db"));
    let mut killed = start(folder.path(), &upstream);
    killed.address("page");
    killed.kill();
    let mut server = start(folder.path(), &upstream);
    let page = server.address("page");
    assert_eq!(ask(page, "POST", "/api/v1/chat", CHAT).status, 200);
    until_checked(|| server.printed().contains("ledger check passed"));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    let mut server = start(folder.path(), &upstream);
    server.address("page");
    assert!(!server.printed().contains("ledger check"), "{}", server.printed());
    server.kill();
}

#[test]
fn first_answer_does_not_wait_for_the_ledger_check() {
    // A machine that does much else may be done with the check before this test asks.
    let is_first = (0..20).any(|_| answers_before_it_is_ready());
    assert!(is_first, "no answer came before the ledger had been checked");
}

/// Whether a server that has answered is not ready yet.
fn answers_before_it_is_ready() -> bool {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let folder = folder(&upstream);
    let ledger = folder.path().join("ledger.db");
    fill(&ledger);
    write_to(&ledger);
    let server = start(folder.path(), &upstream);
    let (page, admin) = server.listening();
    assert_eq!(ask(page, "GET", "/healthz", "").status, 200);
    let is_early = ask(admin, "GET", "/readyz", "").status == 503;
    until_checked(|| ask(admin, "GET", "/readyz", "").status == 200);
    is_early
}

#[test]
fn signal_is_handled_during_the_ledger_check() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let folder = folder(&upstream);
    let ledger = folder.path().join("ledger.db");
    fill(&ledger);
    fs::remove_file(folder.path().join("ledger.db.lock")).unwrap();
    let writer = Connection::open(&ledger).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut server = start(folder.path(), &upstream);
    server.listening();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
    let printed = server.printed();
    assert!(!printed.contains("page      "), "it was not open yet: {printed}");
}

#[test]
fn signal_during_the_start_never_kills_a_bound_server() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    for signal in [Signal::SIGTERM, Signal::SIGINT].into_iter().cycle().take(12) {
        let folder = folder(&upstream);
        let port = ReservedPort::new();
        let at = port.address();
        let listen = at.to_string();
        let key = upstream.canaries()[0].key();
        let environment = [("GATEWAY_API_KEY", key), ("TOLLGATE_SERVER__LISTEN", listen.as_str())];
        let mut server = Process::start(folder.path(), &environment);
        as_soon_as("its port is taken", || TcpStream::connect(at).is_ok());
        server.signal(signal);
        let status = server.wait();
        assert_eq!(status.code(), Some(0), "{status}: {}", server.printed());
    }
}

/// The ledger's name as callers see it.
fn name(gate: &Gate) -> String {
    let catalog = gate.get("/bff/catalog").text();
    let (_, rest) = catalog.split_once("\"ledger\":\"").expect("it is named");
    rest.split_once('"').unwrap().0.to_owned()
}

#[test]
fn ledger_keeps_its_name_after_a_kill_and_gets_another_with_a_backup() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let mut gate = Gate::binary_in(&upstream, STORE, |folder| {
        fs::create_dir(folder.join("site")).unwrap();
        fs::write(folder.join("site/index.html"), "a page").unwrap();
    });
    let first = name(&gate);
    assert_eq!(gate.chat().status, 200);
    gate.kill();
    gate.restart();
    assert_eq!(name(&gate), first);
    assert_eq!(gate.chat().status, 200);

    let ledger = gate.folder().join("ledger.db");
    let backup = gate.folder().join("backup.db");
    let copied = format!("VACUUM INTO '{}'", backup.display());
    Connection::open(&ledger).unwrap().execute_batch(&copied).unwrap();
    assert_eq!(gate.chat().status, 200);
    gate.kill();
    fs::write(&ledger, fs::read(&backup).unwrap()).unwrap();
    for ending in ["-wal", "-shm"] {
        fs::remove_file(gate.folder().join(format!("ledger.db{ending}"))).unwrap();
    }
    gate.forget_keys();
    gate.restart();
    assert_ne!(name(&gate), first, "a purchase was forgotten");
}

/// What a second server says that is to sell from `ledger`.
#[expect(clippy::disallowed_methods, reason = "a command is found by the PATH of this one")]
fn second(upstream: &Upstream, ledger: &Path, mut command: Command) -> (Option<i32>, String) {
    let elsewhere = folder(upstream);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GATEWAY_API_KEY", upstream.canaries()[0].key())
        .env("TOLLGATE_STORE__URL", format!("sqlite:{}", ledger.display()))
        .current_dir(elsewhere.path());
    // One that starts would never end by itself.
    let mut second = Process::spawn(command);
    let code = second.wait().code();
    (code, second.printed())
}

#[test]
fn second_server_by_hard_link_or_mount_exits_and_names_the_first() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary_in(&upstream, STORE, |folder| {
        fs::create_dir(folder.join("site")).unwrap();
        fs::write(folder.join("site/index.html"), "a page").unwrap();
    });
    let ledger = gate.folder().join("ledger.db");
    let first = format!("process {}", gate.id());
    let elsewhere = TempDir::with_prefix("tollgate-gate-").unwrap();
    let program = env!("CARGO_BIN_EXE_tollgate");

    let mounted = elsewhere.path().join("mounted.db");
    fs::write(&mounted, "").unwrap();
    let mount = |then: &str| {
        let mut command = Command::new("unshare");
        let script = format!("mount --bind \"$0\" \"$1\" && {then}");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script]);
        command.arg(&ledger).arg(&mounted).arg(program);
        command
    };
    needs_mounts(mount("true"));
    let (code, said) = second(&upstream, &mounted, mount("exec \"$2\""));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&first), "{said}");

    let link = elsewhere.path().join("link.db");
    fs::hard_link(&ledger, &link).unwrap();
    let (code, said) = second(&upstream, &link, Command::new(program));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&first), "{said}");
    assert_eq!(gate.chat().status, 200);
}

/// Fails where a test cannot do its work, rather than passing without it.
pub(crate) fn needs_mounts(mut trial: Command) {
    let ended = trial.output().expect("unshare (util-linux)");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "this test mounts a file system of its own: allow unprivileged user namespaces and mounts in \
         them (kernel.unprivileged_userns_clone, AppArmor, a container's seccomp profile): {said}"
    );
}

#[test]
fn full_disk_is_logged_once() {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(2_000)));
    let folder = folder(&upstream);
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let script = "mount -t tmpfs -o size=800k small small && exec \"$0\"";
    let mount = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, program]);
        command.current_dir(folder.path());
        command
    };
    needs_mounts(mount("true"));
    let mut command = mount(env!("CARGO_BIN_EXE_tollgate"));
    command
        .env("GATEWAY_API_KEY", upstream.canaries()[0].key())
        .env("TOLLGATE_STORE__URL", "sqlite:small/ledger.db");
    let server = Process::spawn(command);
    let page = server.address("page");
    let record = Arc::new(Record::default());
    let chat = |number: usize| {
        let mut client = Client::connect(page, &record);
        let key = format!("number-{number}");
        client.send("POST", "/api/v1/chat", &[("idempotency-key", &key)], CHAT);
        client.answer()
    };
    let full = (0..2_000).find(|number| chat(*number).status == 503).expect("it fills up");
    // One that is smaller may still have found room.
    (0..5).for_each(|number| _ = chat(full + 1 + number));
    until("it is logged", || server.printed().contains("ledger disk full"));
    let before = server.printed().lines().count();
    for number in 0..30 {
        let answer = chat(full + 10 + number);
        assert_eq!((answer.status, answer.code().as_str()), (503, "ledger_unavailable"));
    }
    let printed = server.printed();
    let lines: Vec<_> = printed.lines().skip(before).collect();
    assert!(lines.is_empty(), "{lines:?}");
    assert_eq!(printed.matches("ledger disk full").count(), 1, "{printed}");
}

#[test]
fn read_only_state_folder_is_found_by_check_and_named_once_by_the_server() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let folder = folder(&upstream);
    fs::create_dir(folder.path().join("small")).unwrap();
    let script = "mount -t tmpfs -o ro small small && exec \"$0\" \"$@\"";
    let mount = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]).args(arguments);
        command.env("GATEWAY_API_KEY", upstream.canaries()[0].key());
        command.env("TOLLGATE_STORE__URL", "sqlite:small/ledger.db").current_dir(folder.path());
        command
    };
    needs_mounts(mount(&["true"]));
    let program = env!("CARGO_BIN_EXE_tollgate");
    let checked = mount(&[program, "check"]).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("small: Read-only file system"), "{said}");
    let server = Process::spawn(mount(&[program]));
    let ready = ask(server.address("admin"), "GET", "/readyz", "");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains(r#""because":["ledger_permission"]"#), "{}", ready.text());
    assert_eq!(ask(server.address("page"), "POST", "/api/v1/chat", CHAT).status, 503);
    let printed = server.printed();
    assert_eq!(printed.matches("Read-only file system").count(), 1, "{printed}");
}

#[test]
fn sandbox_gives_no_video_the_id_of_one_that_the_ledger_knows() {
    let folder = TempDir::with_prefix("tollgate-sandbox-").unwrap();
    let environment = [
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_STORE__URL", "sqlite:ledger.db"),
    ];
    let buy = || {
        let mut server = Process::start(folder.path(), &environment);
        let answer = ask(server.address("page"), "POST", "/api/v1/video", VIDEO);
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait().code(), Some(0), "{}", server.printed());
        answer.json()["request_id"].clone()
    };
    let (before, after) = (buy(), buy());
    assert_ne!(before, after);
}
