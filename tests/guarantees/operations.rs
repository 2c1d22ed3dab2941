//! What a running tollgate does when it is told to read its settings again, and what an operator
//! sees.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tollgate::store::Store;

use tempfile::TempDir;

use crate::support::process::{Process, Signal, run};
use crate::support::{CHAT, Gate, Reply, Upstream, until};

fn slow(millis: u64) -> Upstream {
    Upstream::start(move |_| Reply::chat("hello").after(Duration::from_millis(millis)))
}

#[test]
fn sighup_applies_valid_settings_and_rejects_invalid_ones() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let old = "limits = { requests = 100, seconds = 3600, burst = 50 }\n";
    let gate = Gate::binary(&upstream, old, &[]);
    let file = gate.folder().join("proxy.toml");
    let policy = || gate.chat().value("ratelimit-policy").map(str::to_owned);
    assert_eq!(policy().as_deref(), Some("\"caller\";q=100;w=3600"));

    for (bad, says) in [
        ("limits = { requests = 7 }\n\n[server]\nlisten_on = \"x\"\n", "proxy.toml:4:1"),
        ("limits = {", "proxy.toml:1:"),
        ("[access]\nmode = \"members\"\n", "access.mode"),
    ] {
        let before = gate.printed().len();
        fs::write(&file, bad).unwrap();
        gate.signal(Signal::SIGHUP);
        until("it says that they are refused", || {
            gate.printed()[before..].contains("settings rejected")
        });
        assert!(gate.printed()[before..].contains(says), "{}", gate.printed());
        assert_eq!(policy().as_deref(), Some("\"caller\";q=100;w=3600"));
    }

    let good =
        "limits = { requests = 7, seconds = 60, burst = 9 }\nserver.header_timeout = \"9s\"\n";
    fs::write(&file, good).unwrap();
    gate.signal(Signal::SIGHUP);
    until("it says that it did", || gate.printed().contains("settings reloaded"));
    assert_eq!(policy().as_deref(), Some("\"caller\";q=7;w=60"));
    let printed = gate.printed();
    let (_, after) = printed.rsplit_once("settings rejected").unwrap();
    assert!(after.contains("server.header_timeout"), "what needs a restart is named: {after}");
    assert!(!after.contains("server.listen"), "what has not changed is not: {after}");
}

#[test]
fn call_in_flight_survives_a_reload() {
    let upstream = slow(1_000);
    let gate = Gate::binary(&upstream, "", &[]);
    let mut buyer = gate.client();
    buyer.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    gate.signal(Signal::SIGHUP);
    until("it says that it did", || gate.printed().contains("settings reloaded"));
    assert_eq!(buyer.answer().status, 200);
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn signal_right_after_the_start_message_is_handled() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    for (signal, code) in [(Signal::SIGHUP, None), (Signal::SIGTERM, Some(0))] {
        let mut gate = Gate::binary(&upstream, "", &[]);
        gate.signal(signal);
        match code {
            Some(code) => assert_eq!(gate.wait().code(), Some(code)),
            None => until("it reads again", || gate.printed().contains("settings reloaded")),
        }
    }
}

#[test]
fn second_server_on_one_address_exits() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "", &[]);
    let folder = tempfile::tempdir().unwrap();
    let (page, admin) = (gate.address().to_string(), gate.admin().to_string());
    let free = "127.0.0.1:0".to_owned();
    for (taken, listen, admin) in [(&page, &page, &free), (&admin, &free, &admin)] {
        let environment = [
            ("TOLLGATE_SERVER__LISTEN", listen.as_str()),
            ("TOLLGATE_ADMIN__LISTEN", admin.as_str()),
        ];
        let ended = run(folder.path(), &[], &environment);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(&format!("cannot listen on {taken}")), "{ended:?}");
        assert!(!ended.stdout.contains("page"), "half a server is none: {ended:?}");
    }
    assert_eq!(gate.get("/healthz").status, 200);
}

#[test]
fn ops_and_public_listeners_do_not_share_endpoints() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::start(&upstream, "");
    assert!(gate.metrics().contains("tollgate_connections"));
    for path in ["/metrics", "/readyz"] {
        let text = gate.get(path).text();
        assert!(!text.contains("tollgate_") && text != "ok\n", "{path}: {text}");
    }
    for (method, path, body, status) in [
        ("GET", "/healthz", "", 200),
        ("GET", "/readyz", "", 200),
        ("HEAD", "/nothing", "", 404),
        ("GET", "/", "", 404),
        ("GET", "/bff/catalog", "", 404),
        ("POST", "/api/v1/chat", CHAT, 404),
        ("POST", "/metrics", "{}", 405),
    ] {
        let mut client = gate.admin_client();
        if method == "HEAD" {
            client.write(format!("HEAD {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes());
            assert!(client.rest().starts_with(b"HTTP/1.0 404"), "{path}");
            continue;
        }
        client.send(method, path, &[], body);
        assert_eq!(client.answer().status, status, "{method} {path}");
    }
    assert_eq!(upstream.requests(), 0);
}

/// The status and the detail of `/readyz`.
fn readiness(gate: &Gate) -> (u16, String) {
    let mut probe = gate.admin_client();
    probe.send("GET", "/readyz", &[], "");
    let answer = probe.answer();
    (answer.status, answer.text())
}

#[test]
fn readyz_is_503_while_the_ledger_is_damaged_or_gone() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = "store.url = \"sqlite:ledger.db\"\n";
    let damage = |folder: &Path| fs::write(folder.join("ledger.db"), [b'x'; 8_192]).unwrap();
    let damaged = Gate::binary_in(&upstream, settings, damage);
    let gone = Gate::binary_in(&Upstream::start(|_| Reply::chat("hello")), settings, |_| ());
    assert_eq!((readiness(&gone).0, gone.chat().status), (200, 200));
    fs::remove_file(gone.folder().join("ledger.db")).unwrap();
    until("it is not ready", || readiness(&gone).0 == 503);
    for gate in [damaged, gone] {
        let (status, text) = readiness(&gate);
        assert_eq!(status, 503, "{text}");
        assert!(text.contains("ledger_unavailable") && text.contains("is unusable"), "{text}");
        assert!(!text.contains("ledger.db"), "{text}");
        assert_eq!(gate.chat().status, 503);
        let mut probe = gate.admin_client();
        probe.send("GET", "/healthz", &[], "");
        assert_eq!((probe.answer().status, gate.get("/healthz").status), (200, 200));
    }
}

#[test]
fn server_waiting_for_a_command_names_it() {
    let folder = TempDir::with_prefix("tollgate-gate-").unwrap();
    let environment = [
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_STORE__URL", "sqlite:ledger.db"),
    ];
    // What a command has that asks the gateway where no server runs.
    let ledger = folder.path().join("ledger.db");
    let command = Store::open_exclusive(&ledger, Arc::new(tollgate::clock::wall)).unwrap();
    let waits = || {
        let server = Process::start(folder.path(), &environment);
        until("it says so", || {
            let printed = server.printed();
            let waiting = printed.lines().find(|line| line.contains("waiting for command"));
            waiting.is_some_and(|line| line.contains(&std::process::id().to_string()))
        });
        server
    };
    let mut stopped = waits();
    stopped.signal(Signal::SIGTERM);
    assert_eq!(stopped.wait().code(), Some(0));
    let mut server = waits();
    drop(command);
    server.address("page");
    server.kill();
}

#[test]
fn ops_listener_answers_a_foreign_host_with_healthz_only() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = "server.hosts = [\"ops.example\"]\n";
    let gate = Gate::binary(&upstream, settings, &[]);
    let ask = |path: &str, host: &str| {
        let mut client = gate.admin_client();
        client.send("GET", path, &[("Host", host)], "");
        client.answer()
    };
    for (host, status) in
        [("evil.example:9464", 421), ("localhost:9464", 200), ("ops.example:9464", 200)]
    {
        for path in ["/metrics", "/readyz"] {
            let answer = ask(path, host);
            assert_eq!(answer.status, status, "{host} {path}");
            assert_eq!(answer.text().contains("tollgate_"), path == "/metrics" && status == 200);
            assert_eq!(answer.value("x-content-type-options"), Some("nosniff"));
            assert!(answer.value("content-security-policy").is_some(), "{host} {path}");
        }
        assert_eq!(ask("/healthz", host).status, 200, "{host}");
    }
    assert_eq!(ask("/billing", "evil.example:9464").status, 421);
    // The names that count are those of the settings that hold now.
    fs::write(gate.folder().join("proxy.toml"), "server.hosts = [\"new.example\"]\n").unwrap();
    gate.signal(Signal::SIGHUP);
    until("it has read them", || gate.printed().contains("settings reloaded"));
    assert_eq!(ask("/metrics", "ops.example").status, 421);
    assert_eq!(ask("/metrics", "new.example").status, 200);
}
