//! What a running tollgate does when it is told to read its settings again, and what an operator
//! sees.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use tollgate::ledger::Store;

use tempfile::TempDir;

use crate::support::members::SECRET;
use crate::support::process::{Process, Signal, run};
use crate::support::reply::Latch;
use crate::support::{CHAT, Gate, Reply, Upstream, until};

/// A gateway that replies when the latch is open.
fn slow() -> (Upstream, Latch) {
    let latch = Latch::new();
    (Upstream::start(move |_| Reply::chat("hello").when(latch)), latch)
}

#[test]
fn log_is_text_where_it_is_asked_for() {
    let folder = TempDir::new().unwrap();
    let environment = [
        ("TOLLGATE_LOG__FORMAT", "text"),
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
    ];
    let server = Process::start_with(folder.path(), &["serve"], &environment);
    until("it has started", || server.printed().contains(": started version="));
    let printed = server.printed();
    assert!(!printed.contains('{') && !printed.contains('\u{1b}'), "{printed}");
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

    let good = "limits = { requests = 7, seconds = 60, burst = 9 }\nserver.idle_timeout = \"9s\"\n";
    fs::write(&file, good).unwrap();
    gate.signal(Signal::SIGHUP);
    until("it says that it did", || gate.printed().contains("settings reloaded"));
    assert_eq!(policy().as_deref(), Some("\"caller\";q=7;w=60"));
    let printed = gate.printed();
    let (_, after) = printed.rsplit_once("settings rejected").unwrap();
    assert!(after.contains("server.idle_timeout"), "what needs a restart is named: {after}");
    assert!(!after.contains("server.listen"), "what has not changed is not: {after}");
}

#[test]
fn live_server_is_found_although_its_settings_are_invalid_by_now() {
    let folder = TempDir::new().unwrap();
    let listen = ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0");
    let server =
        Process::start(folder.path(), &[listen, ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0")]);
    let admin = server.address("admin").to_string();
    let file = format!("admin.listen = \"{admin}\"\n[limits]\nburst = \"many\"\n");
    for (edited, environment) in
        [("limits = {", &[("TOLLGATE_ADMIN__LISTEN", &*admin)][..]), (&file, &[])]
    {
        fs::write(folder.path().join("proxy.toml"), edited).unwrap();
        let live = run(folder.path(), &["check", "--live"], environment);
        assert_eq!(live.code, Some(0), "{edited}: {}", live.stderr);
    }
}

#[test]
fn call_in_flight_survives_a_reload() {
    let (upstream, latch) = slow();
    let gate = Gate::binary(&upstream, "", &[]);
    let mut buyer = gate.client();
    buyer.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    gate.signal(Signal::SIGHUP);
    until("it says that it did", || gate.printed().contains("settings reloaded"));
    latch.open();
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
        assert!(!ended.stderr.contains("\"started\""), "half a server is none: {ended:?}");
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

#[test]
fn probes_without_a_host_are_answered_over_http_1_0_only() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "", &[]);
    // Old probes speak HTTP/1.0 without a Host, and browsers, which DNS rebinding needs, do not.
    for (bytes, status) in [
        ("GET /readyz HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics HTTP/1.0\r\nHost: evil.example\r\n\r\n", "421"),
        ("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n", "400"),
        ("GET /billing HTTP/1.0\r\n\r\n", "400"),
    ] {
        let mut client = gate.admin_client();
        client.write(bytes.as_bytes());
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{bytes:?}: {answer}");
    }
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
    for (gate, because, cause) in [
        (damaged, "ledger_damaged", "is damaged"),
        (gone, "ledger_replaced", "removed or replaced"),
    ] {
        let (status, text) = readiness(&gate);
        assert_eq!(status, 503, "{text}");
        assert!(text.contains(because) && text.contains(cause), "{text}");
        assert!(!text.contains("ledger.db"), "{text}");
        assert_eq!(gate.chat().status, 503);
        let mut probe = gate.admin_client();
        probe.send("GET", "/healthz", &[], "");
        assert_eq!((probe.answer().status, gate.get("/healthz").status), (200, 200));
    }
}

#[test]
fn ledger_of_a_newer_version_is_named_once_by_readyz_log_and_check() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = "store.url = \"sqlite:ledger.db\"\n";
    let newer = |folder: &Path| {
        let path = folder.join("ledger.db");
        drop(Store::serve(&path, Arc::new(tollgate::clock::wall)).unwrap());
        let file = rusqlite::Connection::open(&path).unwrap();
        file.pragma_update(None, "user_version", 99).unwrap();
    };
    let gate = Gate::binary_in(&upstream, settings, newer);
    let (status, text) = readiness(&gate);
    assert_eq!(status, 503);
    assert!(text.starts_with(r#"{"because":["ledger_newer"],"#), "{text}");
    assert!(!text.contains("ledger.db") && gate.chat().status == 503, "{text}");
    let logged = log(&gate);
    let causes: Vec<_> = logged.iter().filter(|line| line["error"].is_string()).collect();
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0]["cause"], "ledger_newer", "{causes:?}");
    let unusable = "tollgate_ledger_usable{cause=\"ledger_newer\"} 0";
    assert!(gate.metrics().contains(unusable), "{}", gate.metrics());
    assert!(causes[0]["error"].as_str().unwrap().contains("its version is 99"), "{causes:?}");
    let store = [("TOLLGATE_STORE__URL", "sqlite:ledger.db")];
    let checked = run(gate.folder(), &["check"], &store);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.stderr.contains("its version is 99"), "{checked:?}");
    assert!(checked.stderr.contains("start that version"), "{checked:?}");
}

#[test]
fn readyz_names_what_all_instances_share_and_stays_ready() {
    for (status, name) in [(401, "keys"), (500, "gateway")] {
        let upstream = Upstream::start(|_| Reply::chat("hello"));
        upstream.set_listing(Reply::error(status));
        let gate = Gate::binary(&upstream, "", &[]);
        let expected = (200, format!(r#"{{"degraded":["{name}"],"ready":true}}"#));
        until("the gateway was asked", || readiness(&gate) == expected);
    }
}

fn log(gate: &Gate) -> Vec<serde_json::Value> {
    let printed = gate.printed();
    let read = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    printed.lines().map(read).collect()
}

#[test]
fn start_and_reload_are_structured_events() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let gate = Gate::binary(&upstream, "budget.total = { day = \"20.00\" }\n", &[]);
    // Both streams are one in a container: no line is plain text.
    let lines = log(&gate);
    let started = lines.iter().find(|line| line["message"] == "started").expect("a start event");
    for (field, value) in [
        ("version", env!("CARGO_PKG_VERSION")),
        ("gateway", "live, 127.0.0.1, "),
        ("callers", "open: anyone"),
        ("budgets", "total $20.00 a day"),
        ("admin", "http://127.0.0.1:"),
    ] {
        assert!(started[field].as_str().unwrap().starts_with(value), "{field}: {started}");
    }
    let file = gate.folder().join("proxy.toml");
    let reload = |settings: &str, number: usize| {
        fs::write(&file, settings).unwrap();
        gate.signal(Signal::SIGHUP);
        let reloaded =
            || log(&gate).into_iter().filter(|line| line["message"] == "settings reloaded");
        until("it is reloaded", || reloaded().count() == number);
        reloaded().next_back().unwrap()["changed"].clone()
    };
    let pending = || gate.printed().matches("takes effect after a restart").count();
    assert_eq!(
        reload("budget.total = { day = \"1.00\" }", 1),
        "limits.requests, limits.seconds, limits.burst, limits.concurrent, budget.total"
    );
    let limits: Vec<_> = log(&gate)
        .into_iter()
        .filter(|line| line["message"] == "limit changed")
        .map(|line| ["setting", "old", "new"].map(|field| line[field].as_str().unwrap().to_owned()))
        .collect();
    assert!(
        limits.contains(&["budget.total", "$20.00 a day", "$1.00 a day"].map(str::to_owned)),
        "{limits:?}"
    );
    assert_eq!(limits.len(), 5, "{limits:?}");
    assert_eq!(reload("budget.total = { day = \"1.00\" }\nserver.drain = \"9s\"", 2), "nothing");
    assert_eq!(pending(), 1);
    assert_eq!(reload("budget.total = { day = \"1.00\" }", 3), "nothing");
    assert_eq!(pending(), 1, "what was taken back needs no restart");
}

#[test]
fn second_signal_names_the_purchases_that_it_cuts() {
    let (upstream, _closed) = slow();
    let store = ("TOLLGATE_STORE__URL", "sqlite:ledger.db");
    let mut gate = Gate::binary(&upstream, "", &[store]);
    let mut buyer = gate.client();
    buyer.send("POST", "/api/v1/chat", &[], CHAT);
    upstream.wait_for(1);
    gate.signal(Signal::SIGTERM);
    until("it drains", || gate.printed().contains("drain started"));
    gate.signal(Signal::SIGTERM);
    assert_eq!(gate.wait().code(), Some(1));
    let lines = log(&gate);
    let cut = lines.iter().find(|line| line["remaining"] == 1).unwrap();
    let listed = run(gate.folder(), &["purchase", "list"], &[store]);
    let purchase = listed.stdout.lines().nth(1).and_then(|row| row.split(' ').next());
    assert_eq!(cut["purchases"].as_str(), purchase, "{listed:?}");
}

#[test]
fn server_logs_the_member_changes_of_commands() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let settings = "store.url = \"sqlite:ledger.db\"\naccess.mode = \"members\"\n";
    let gate = Gate::binary(&upstream, settings, &[]);
    for (arguments, message) in [
        (&["add", "ann", "--role", "admin"][..], "member added"),
        (&["update", "ann", "--budget", "5.00/day"], "member updated"),
        (&["rotate", "ann"], "member token rotated"),
        (&["revoke", "ann"], "member revoked"),
    ] {
        let arguments = [&["member"], arguments].concat();
        let ended = run(gate.folder(), &arguments, &[("TOLLGATE_SECRET", SECRET)]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        until(message, || {
            let lines = log(&gate);
            lines.iter().any(|line| line["message"] == message && line["member"] == "ann")
        });
    }
    let updated = log(&gate).into_iter().find(|line| line["message"] == "member updated").unwrap();
    assert_eq!(updated["terms"], "role admin, budget 5.00/day");
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
