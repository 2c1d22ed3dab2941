//! A reply that was paid for and cannot be read is kept for the operator: without our keys, for its owner
//! alone, and no more of it than anyone needs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::is_unknown;
use crate::support::{Gate, Reply, Upstream, until};

const STORE: &str = "store.url = \"sqlite:ledger.db\"\n";

/// The replies that were kept, the oldest first.
fn kept(gate: &Gate) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(gate.folder().join("ledger.db.unread")) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    paths
}

/// The only one, as soon as it is whole.
fn one(gate: &Gate, length: usize) -> PathBuf {
    let is_there = || kept(gate).iter().any(|path| path.metadata().unwrap().len() == length as u64);
    until("it is kept", is_there);
    let [path] = &kept(gate)[..] else { panic!("one reply: {:?}", kept(gate)) };
    path.clone()
}

#[test]
fn possibly_paid_garbage_is_kept_redacted() {
    let upstream = Upstream::start(|received| {
        let key = received.values("authorization")[0].replace("Bearer ", "");
        Reply::new(200, format!("<html>all is well, {key}</html>"))
    });
    let gate = Gate::start(&upstream, STORE);
    let answer = gate.chat();
    assert!(is_unknown(&answer), "{answer:?}");
    assert_eq!(answer.charged().as_deref(), Some("unknown"));
    let length = "<html>all is well, </html>".len() + upstream.canaries()[0].key().len();
    let path = one(&gate, length);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("<html>all is well, ***") && text.ends_with("***</html>"), "{text}");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    until("the log says where", || gate.printed().contains("ledger.db.unread"));
    assert!(!gate.printed().contains("all is well"), "{}", gate.printed());
}

#[test]
fn beginning_of_a_too_large_reply_is_kept() {
    let upstream = Upstream::start(|_| Reply::chat(&"x".repeat(5 << 20)));
    let gate = Gate::start(&upstream, STORE);
    assert!(is_unknown(&gate.video()));
    let text = fs::read_to_string(one(&gate, 1 << 20)).unwrap();
    assert!(text.starts_with("{") && text.ends_with("xxx"));
}

#[test]
fn free_or_readable_replies_are_not_kept_as_unparsable() {
    let upstream = Upstream::start(|received| match received.number {
        0 => Reply::chat("hi"),
        1 => Reply::new(400, "<html>no</html>").charged(false),
        2 => Reply::error(500),
        _ => Reply::new(200, "<html></html>"),
    });
    let gate = Gate::start(&upstream, STORE);
    for status in [200, 400, 424] {
        let body = format!(
            r#"{{"model":"alpha-sonnet-4.5","messages":[{{"role":"user","content":"{status}"}}]}}"#
        );
        assert_eq!(gate.post("/api/v1/chat", &body).status, status);
    }
    assert_eq!(gate.video().status, 424);
    one(&gate, "<html></html>".len());
}
