//! A ledger that cannot be written: nothing is bought, and everything else works.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use tollgate::ledger::{MoneyKind, Store, StoreCapacity};

use crate::support::client::Answer;
use crate::support::process::run;
use crate::support::{Gate, Reply, Upstream, until};

/// Half a second is spared where no page is compressed at the start.
const STORE: &str = "store.url = \"sqlite:ledger.db\"\npage.dir = \"site\"";

fn with_a_site(folder: &Path) {
    fs::create_dir(folder.join("site")).unwrap();
    fs::write(folder.join("site/index.html"), "a page").unwrap();
}

type Spoil = (&'static str, fn(&Path));

const SPOILS: &[Spoil] = &[
    ("text", |ledger| fs::write(ledger, "not a database at all ".repeat(200)).unwrap()),
    ("short", |ledger| fs::write(ledger, "x").unwrap()),
    ("a folder", |ledger| fs::create_dir(ledger).unwrap()),
    ("a foreign database", |ledger| {
        let theirs = rusqlite::Connection::open(ledger).unwrap();
        theirs.execute_batch("CREATE TABLE theirs (x)").unwrap();
    }),
    ("a ledger of play money", |ledger| {
        let clock = std::sync::Arc::new(tollgate::clock::wall);
        drop(
            Store::serve_with(ledger, clock, StoreCapacity::default(), Some(MoneyKind::Play))
                .unwrap(),
        );
    }),
    // It stands for devices: nothing in /dev is touched to see what would happen to it.
    ("a socket", |ledger| drop(UnixListener::bind(ledger).unwrap())),
];

#[track_caller]
fn assert_unavailable(answer: &Answer) {
    assert_eq!((answer.status, answer.code().as_str()), (503, "ledger_unavailable"));
    assert_eq!(answer.charged().as_deref(), Some("no"));
    let after: u64 = answer.value("retry-after").expect("when to return").parse().unwrap();
    assert!((1..=120).contains(&after), "{after}");
}

#[track_caller]
fn assert_free_routes_live(gate: &Gate) {
    for target in ["/", "/healthz", "/bff/catalog"] {
        assert_eq!(gate.get(target).status, 200, "{target}");
    }
}

#[test]
fn unusable_ledger_stops_sales_only() {
    for (name, spoil) in SPOILS {
        let upstream = Upstream::start(|_| Reply::chat("hi"));
        let gate = Gate::binary_in(&upstream, STORE, |folder| {
            with_a_site(folder);
            spoil(&folder.join("ledger.db"));
        });
        assert_unavailable(&gate.chat());
        assert_unavailable(&gate.video());
        assert_unavailable(&gate.post("/api/v1/chat", crate::support::CHAT));
        assert_free_routes_live(&gate);
        assert_eq!(upstream.requests(), 0, "{name}");
        until("it is logged", || gate.printed().contains("nothing can be sold"));
        assert!(gate.printed().contains("ledger.db"), "{}", gate.printed());
    }
}

#[test]
fn ledger_with_a_missing_middle_sells_nothing() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let mut gate = Gate::binary_in(&upstream, STORE, with_a_site);
    for _ in 0..20 {
        assert_eq!(gate.chat().status, 200);
    }
    gate.signal(crate::support::process::Signal::SIGTERM);
    gate.wait();
    let ledger = gate.folder().join("ledger.db");
    let mut bytes = fs::read(&ledger).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4_096].fill(0x55);
    fs::write(&ledger, &bytes).unwrap();
    gate.restart();
    assert_unavailable(&gate.chat());
    assert_free_routes_live(&gate);
    assert_eq!(upstream.requests(), 20);
    assert_eq!(fs::read(&ledger).unwrap(), bytes, "it is left as it was found");
}

/// How large any file of this process may grow, in bytes.
fn limit_files(gate: &Gate, bytes: &str) {
    let limit = [format!("--fsize={bytes}:unlimited"), "--pid".to_owned(), gate.id().to_string()];
    let limited = Command::new("prlimit").args(limit).status().expect("prlimit (util-linux)");
    assert!(limited.success());
}

#[test]
fn full_disk_stops_sales_only() {
    // A page of SQLite's log more each time: the fault comes at another step of a purchase.
    for pages in 30..42 {
        fill(&(pages * 4_120).to_string());
    }
}

fn fill(bytes: &str) {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(2_000)));
    let mut gate = Gate::binary_in(&upstream, STORE, with_a_site);
    let ask = |gate: &Gate, call: usize| {
        let (key, body) = numbered(call);
        gate.ask("POST", "/api/v1/chat", &[("idempotency-key", &key)], &body)
    };
    let first = ask(&gate, 0);
    assert_eq!(first.status, 200);
    limit_files(&gate, bytes);
    let mut bought = 1;
    let refused = loop {
        let answer = ask(&gate, bought);
        if answer.status != 200 {
            break answer;
        }
        bought += 1;
        assert!(bought < 1_000, "the disk never fills");
    };
    assert_unavailable(&refused);
    assert_free_routes_live(&gate);
    // What was sent was answered, also where its end found no room.
    assert_eq!(upstream.requests(), bought);
    for _ in 0..3 {
        assert_unavailable(&gate.chat());
    }
    assert_eq!(upstream.requests(), bought);

    limit_files(&gate, "unlimited");
    gate.restart();
    for call in 0..bought {
        let again = ask(&gate, call);
        // One reply at most was given whose end could not be recorded.
        let is_last = call + 1 == bought;
        assert!(again.status == 200 || is_last && again.status == 424, "{call}: {}", again.text());
        assert_eq!(again.value("idempotent-replayed"), Some("true"), "{call}");
    }
    assert_eq!(gate.chat().status, 200);
    assert_eq!(upstream.requests(), bought + 1);
}

fn numbered(call: usize) -> (String, String) {
    let body = format!(
        r#"{{"model":"alpha-sonnet-4.5","messages":[{{"role":"user","content":"number {call}"}}]}}"#
    );
    (format!("number-{call}"), body)
}

#[test]
fn second_server_on_one_ledger_exits_and_names_the_first() {
    let upstream = Upstream::start(|_| Reply::chat("hi"));
    let gate = Gate::binary_in(&upstream, STORE, with_a_site);
    let at = format!("http://{}", upstream.address());
    let environment = [
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_GATEWAY__BASE_URL", at.as_str()),
        ("GATEWAY_API_KEY", upstream.canaries()[0].key()),
    ];
    let second = run(gate.folder(), &[], &environment);
    assert_eq!(second.code, Some(1), "{second:?}");
    let said = format!("{}{}", second.stdout, second.stderr);
    assert!(said.contains(&format!("process {}", gate.id())), "{said}");
    assert_eq!(gate.chat().status, 200);
}
