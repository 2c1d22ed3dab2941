//! What an embedded gate logs, and what a failed start leaves behind.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tollgate::{Config, StartError, Tollgate, clock};
use tower::ServiceExt;
use tracing_subscriber::fmt;

use crate::support::eventually;
use crate::support::paused::pass;

const LIVE: [(&str, &str); 1] =
    [("GATEWAY_API_KEY", "svc_sk_0123456789abcdef0123456789abcdef01234567")];

fn read(toml: &str, folder: &Path, variables: &[(&str, &str)]) -> Config {
    let owned = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
    Config::read(toml, folder, variables.iter().map(owned)).expect("the test's settings are right")
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn clock_that_was_set_is_logged_once() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _heard = tracing::subscriber::set_default(subscriber);
    // From here on, it follows the paused time.
    clock::set_wall(Some(clock::wall()));
    let gate = Tollgate::new(Config::default()).unwrap();
    let (day, minute) = (Duration::from_secs(86_400), Duration::from_secs(60));
    pass(minute).await;
    clock::set_wall(Some(clock::wall() + day));
    pass(3 * minute).await;
    clock::set_wall(None);
    let logged = lines.text();
    let is_step = |line: &&str| line.contains("clock was set") && line.contains("seconds=864");
    assert_eq!(logged.lines().filter(is_step).count(), 1, "{logged}");
    gate.shutdown().await;
}

#[tokio::test]
async fn risky_settings_warn_once() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _heard = tracing::subscriber::set_default(subscriber);
    let folder = tempfile::tempdir().unwrap();
    let risky = "store.url = \"memory\"\nserver.hosts = [\"a.example\"]\nadmin.listen = \"0.0.0.0:9464\"\n\
                 gateway.base_url = \"http://127.0.0.1:9\"\n";
    let gate = Tollgate::new(read(risky, folder.path(), &LIVE)).unwrap();
    let warned = lines.text();
    for name in ["store.url: ", "budget.total: "] {
        assert_eq!(warned.matches(name).count(), 1, "{name}: {warned}");
    }
    // It has no such listener.
    assert!(!warned.contains("admin.listen"), "{warned}");
    gate.shutdown().await;
    let gate = Tollgate::new(Config::default()).unwrap();
    assert_eq!(lines.text().matches("WARN").count(), warned.matches("WARN").count());
    gate.shutdown().await;
}

#[tokio::test]
async fn change_that_waits_for_a_restart_warns_once_and_not_when_taken_back() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _heard = tracing::subscriber::set_default(subscriber);
    let gate = Tollgate::new(Config::sandbox()).unwrap();
    let warnings = || lines.text().matches("setting takes effect after a restart").count();
    gate.reload(Config::sandbox().set("server.drain", "1s")).unwrap();
    assert_eq!(warnings(), 1, "{}", lines.text());
    gate.reload(Config::sandbox()).unwrap();
    assert_eq!(warnings(), 1, "{}", lines.text());
    gate.shutdown().await;
}

#[tokio::test]
async fn purchase_is_logged_with_the_id_of_its_request() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _heard = tracing::subscriber::set_default(subscriber);
    let gate = Tollgate::new(Config::default()).unwrap();
    let mut request = super::request();
    request.headers_mut().insert("x-request-id", "order-7".parse().unwrap());
    let answer = gate.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "order-7");
    gate.shutdown().await;
    let logged = lines.text();
    let line = logged.lines().find(|line| line.contains(": purchase purchase=")).expect(&logged);
    for part in ["INFO", "id=\"order-7\"", "outcome=\"charged\"", "cost=0."] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test]
async fn failed_start_leaves_nothing_running_and_the_store_unlocked() {
    let folder = tempfile::tempdir().unwrap();
    let store = "store.url = \"sqlite:tollgate.db\"\n";
    let before = Handle::current().metrics().num_alive_tasks();
    let jwt = "access.mode = \"jwt\"\naccess.jwt = { issuer = \"https://login.example/\", audience = \"a\", jwks = \"empty.json\" }\n";
    std::fs::write(folder.path().join("empty.json"), r#"{"keys":[]}"#).unwrap();
    let failed = Tollgate::new(read(&format!("{store}{jwt}"), folder.path(), &[]));
    assert!(matches!(failed, Err(StartError::System(_))), "{failed:?}");
    let nothing_runs = async || Handle::current().metrics().num_alive_tasks() <= before;
    eventually("what was begun ends", nothing_runs).await;
    let gate = Tollgate::new(read(store, folder.path(), &[])).expect("the store is free");
    gate.shutdown().await;
}
