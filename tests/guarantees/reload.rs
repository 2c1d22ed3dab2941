//! What a running server cannot change is refused at SIGHUP, and with it the rest of the new settings.

use std::fs;
use std::sync::Arc;

use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::process::{Process, Signal};
use crate::support::{CHAT, Reply, Upstream, until};

/// A server all of whose settings lie in files, as an operator changes them.
struct Server {
    folder: TempDir,
    process: Process,
}

impl Server {
    fn start(settings: &str, key: &str) -> Self {
        let folder = TempDir::with_prefix("tollgate-reload-").unwrap();
        write(&folder, settings, key);
        let process = Process::start(folder.path(), &[]);
        process.address("admin");
        Self { folder, process }
    }

    /// What `RateLimit-Policy` says where it listened at the start; the chat itself is answered.
    fn policy(&self) -> String {
        let mut client = Client::connect(self.process.address("page"), &Arc::default());
        client.send("POST", "/api/v1/chat", &[], CHAT);
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.value("ratelimit-policy").expect("it is said").to_owned()
    }

    /// Reads its settings again, which have to be refused with these words.
    fn refuses(&self, settings: &str, key: &str, says: &str) {
        let before = self.process.printed().len();
        write(&self.folder, settings, key);
        self.process.signal(Signal::SIGHUP);
        let said = || self.process.printed()[before..].to_owned();
        until("it says what came of it", || {
            said().contains("settings rejected") || said().contains("settings reloaded")
        });
        let why = format!("{says} can only change at a restart");
        assert!(said().contains(&why) && !said().contains("reloaded"), "{says}: {}", said());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() {
            eprintln!("tollgate printed:\n{}", self.process.printed());
        }
    }
}

fn write(folder: &TempDir, settings: &str, key: &str) {
    fs::write(folder.path().join("proxy.toml"), settings).unwrap();
    fs::write(folder.path().join(".env"), key).unwrap();
}

/// Settings with this limit, the rest of `[server]`, and what else there is.
fn settings(limit: u32, listen: &str, more: &str) -> String {
    format!(
        "limits = {{ requests = {limit}, seconds = 3600, burst = 50 }}\n\
         server.listen = {listen}\nadmin.listen = \"127.0.0.1:0\"\n{more}\n"
    )
}

const HERE: &str = "\"127.0.0.1:0\"";

#[test]
fn reload_does_not_change_listeners_access_mode_or_ledger() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let key = format!("GATEWAY_API_KEY={}\n", upstream.canaries()[0].key());
    let gateway = format!("gateway.base_url = \"http://{}\"", upstream.address());
    let old = "\"caller\";q=100;w=3600";
    let server = Server::start(&settings(100, HERE, &gateway), &key);
    assert_eq!(server.policy(), old);
    let both = "[\"127.0.0.1:0\", \"127.0.0.2:0\"]";
    let memory = format!("store.url = \"memory\"\n{gateway}");
    let elsewhere = format!("store.url = \"sqlite:other.db\"\n{gateway}");
    for (changed, key, says) in [
        (settings(7, both, &gateway), key.as_str(), "server.listen"),
        (settings(7, HERE, &memory), &key, "store.url"),
        (settings(7, HERE, &elsewhere), &key, "store.url"),
        (settings(7, HERE, ""), "", "gateway.base_url"),
    ] {
        server.refuses(&changed, key, says);
        assert_eq!(server.policy(), old, "{says}: a part of the new settings holds");
    }
    assert!(!server.folder.path().join("other.db").exists());
    assert_eq!(upstream.requests(), 5, "all of it was sold by the gateway of the start");
}

#[test]
fn reload_does_not_turn_a_sandbox_into_a_gateway() {
    let upstream = Upstream::start(|_| Reply::chat("hello"));
    let key = format!("GATEWAY_API_KEY={}\n", upstream.canaries()[0].key());
    let gateway = format!("gateway.base_url = \"http://{}\"", upstream.address());
    let server = Server::start(&settings(100, HERE, ""), "");
    server.refuses(&settings(7, HERE, &gateway), &key, "gateway.base_url");
    assert_eq!(server.policy(), "\"caller\";q=100;w=3600");
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn reload_with_a_missing_file_keeps_the_settings() {
    let server = Server::start(&settings(100, HERE, ""), "");
    fs::remove_file(server.folder.path().join("proxy.toml")).unwrap();
    server.process.signal(Signal::SIGHUP);
    until("it says what came of it", || {
        let printed = server.process.printed();
        printed.contains("settings rejected")
            && printed.contains("proxy.toml: expected a readable file")
    });
    assert_eq!(server.policy(), "\"caller\";q=100;w=3600");
}

#[test]
fn reload_with_new_keys_asks_for_their_account() {
    const BOOKS: &str = r#"{"keys":[],"billing":{"balanceCents":4210,
        "rateLimit":{"requests":1000,"windowSeconds":1},
        "usage":{"chat":{"count":3,"costCents":1},"totalSpentCents":790}}}"#;
    let upstream = Upstream::with_books(|_| Reply::new(200, BOOKS));
    let gateway = format!("gateway.base_url = \"http://{}\"", upstream.address());
    let settings = settings(100, HERE, &gateway);
    let server = Server::start(&settings, "GATEWAY_API_KEY=svc_sk_of_yesterday\n");
    let asked_last = || {
        let received = upstream.received_requests();
        received
            .last()
            .map(|received| received.values("authorization")[0].to_owned())
            .unwrap_or_default()
    };
    for key in ["svc_sk_of_yesterday", "svc_sk_of_today"] {
        until("the server itself asks with it", || asked_last() == format!("Bearer {key}"));
        let before = upstream.requests();
        let mut operator = Client::connect(server.process.address("admin"), &Arc::default());
        operator.send("GET", "/billing", &[], "");
        let answer = operator.answer();
        assert!(answer.status == 200 && answer.text().contains(r#""balanceCents":4210"#));
        assert!(upstream.requests() > before, "it is asked anew");
        assert_eq!(asked_last(), format!("Bearer {key}"));
        write(&server.folder, &settings, "GATEWAY_API_KEY=svc_sk_of_today\n");
        server.process.signal(Signal::SIGHUP);
    }
}

#[test]
fn reload_says_whether_the_keys_changed_and_which_are_used() {
    const BOOKS: &str = r#"{"keys":[{"id":"key_1","name":"old","keyPrefix":"svc_sk_old_1...","createdAt":null,
        "lastUsedAt":null,"revokedAt":null,"usageCount":7},{"id":"key_2","name":"new","keyPrefix":"svc_sk_new_1...",
        "createdAt":null,"lastUsedAt":null,"revokedAt":null,"usageCount":0}],"billing":{"balanceCents":4210,
        "rateLimit":{"requests":1000,"windowSeconds":1},
        "usage":{"chat":{"count":3,"costCents":1},"totalSpentCents":790}}}"#;
    let upstream = Upstream::with_books(|_| Reply::new(200, BOOKS));
    let gateway = format!("gateway.base_url = \"http://{}\"", upstream.address());
    let settings = settings(100, HERE, &gateway);
    let (old, new) = ("svc_sk_old_1_secret_half", "svc_sk_new_1_secret_half");
    let server = Server::start(&settings, &format!("GATEWAY_API_KEY={old}\n"));
    let mut from = 0;
    let mut says = |words: &[&str]| {
        until(&format!("it says {words:?}"), || {
            let printed = server.process.printed();
            let mut lines = printed[from..].lines();
            lines.any(|line| words.iter().all(|word| line.contains(word)))
        });
        from = server.process.printed().len();
    };
    says(&["gateway keys in use", "\"keys\":1", "\"prefixes\":\"svc_sk_old_1\""]);
    let reload = |keys: &str| {
        write(&server.folder, &settings, &format!("GATEWAY_API_KEY={keys}\n"));
        server.process.signal(Signal::SIGHUP);
    };
    reload(old);
    says(&["gateway keys reloaded", "\"keys\":1", "\"added\":0", "\"removed\":0"]);
    reload(&format!("{new},{old}"));
    says(&["gateway keys in use", "\"prefixes\":\"svc_sk_new_1, svc_sk_old_1\""]);
    reload(new);
    says(&["gateway keys reloaded", "\"keys\":1", "\"added\":0", "\"removed\":1"]);
    assert!(!server.process.printed().contains("secret_half"));
}

#[test]
fn reload_changes_the_connection_limit_per_address() {
    let at_most =
        |most| settings(100, HERE, &format!("server.max_connections_per_address = {most}"));
    let server = Server::start(&at_most(1), "");
    let connect = || Client::connect(server.process.address("page"), &Arc::default());
    let mut first = connect();
    first.send("GET", "/healthz", &[], "");
    assert_eq!(first.answer().status, 200);
    assert!(connect().is_closed());
    write(&server.folder, &at_most(2), "");
    server.process.signal(Signal::SIGHUP);
    until("it has read them", || server.process.printed().contains("settings reloaded"));
    let mut second = connect();
    second.send("GET", "/healthz", &[], "");
    assert_eq!(second.answer().status, 200);
    assert!(connect().is_closed());
}

#[test]
fn reload_sends_nothing_to_the_gateway() {
    const BOOKS: &str = r#"{"keys":[],"billing":{"balanceCents":4210,
        "rateLimit":{"requests":60,"windowSeconds":60},
        "usage":{"chat":{"count":3,"costCents":1},"totalSpentCents":790}}}"#;
    let upstream = Upstream::with_books(|received| match received.method.as_str() {
        "POST" => Reply::chat("hello"),
        _ => Reply::new(200, BOOKS),
    });
    let gateway = format!("gateway.base_url = \"http://{}\"", upstream.address());
    let key = format!("GATEWAY_API_KEY={}\n", upstream.canaries()[0].key());
    let server = Server::start(&settings(1, HERE, &gateway), &key);
    until("the server asked at its start", || upstream.requests() == 1);
    for limit in 2..=10 {
        write(&server.folder, &settings(limit, HERE, &gateway), &key);
        server.process.signal(Signal::SIGHUP);
        let read = || server.process.printed().matches("settings reloaded").count();
        until("it has read them", || u32::try_from(read()) == Ok(limit - 1));
    }
    assert_eq!(server.policy(), "\"caller\";q=10;w=3600");
    // A new follower would have asked before the chat left.
    assert_eq!(upstream.requests(), 2, "the question of the start, and the chat");
}
