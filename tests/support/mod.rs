//! Shared by the tests of guarantees: a gate, a scripted gateway behind it, a raw client in front.
//!
//! Whenever a [`Gate`] ends, two invariants hold, or the test fails: no key leaked ([`canary`]),
//! and the money adds up ([`accounting`]).

pub(crate) mod accounting;
pub(crate) mod authority;
pub(crate) mod bridge;
pub(crate) mod canary;
pub(crate) mod certificate;
pub(crate) mod client;
#[path = "../corpus/targets/decode.rs"]
pub(crate) mod decode;
pub(crate) mod fleet;
pub(crate) mod gate;
pub(crate) mod in_process;
pub(crate) mod log;
pub(crate) mod login;
pub(crate) mod login_service;
pub(crate) mod members;
pub(crate) mod paused;
#[expect(dead_code, reason = "tests of the stores use the rest")]
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod received;
pub(crate) mod reply;
pub(crate) mod server;
mod settings;
pub(crate) mod upstream;

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tollgate::clock;

pub(crate) use gate::Gate;
pub(crate) use reply::{Ending, Reply};
pub(crate) use server::Server;
pub(crate) use upstream::Upstream;

/// The longest wait of a test. Whatever takes longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A valid chat.
pub(crate) const CHAT: &str =
    r#"{"model":"alpha-sonnet-4.5","messages":[{"role":"user","content":"hello"}]}"#;
/// A valid video.
pub(crate) const VIDEO: &str = r#"{"prompt":"a lighthouse","model":"video-a-2","duration":8}"#;

/// The settings of a ledger in memory and of one in a file.
pub(crate) const STORES: [&str; 2] = ["store.url = \"memory\"", "store.url = \"sqlite:ledger.db\""];

/// Locks a mutex, even after another thread's panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Polls until `done` returns true, for at most [`PATIENCE`].
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(PATIENCE, what, is_so);
}

/// Does the same with another limit.
pub(crate) fn until_within(max_wait: Duration, what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes_so(max_wait, is_so), "not within {max_wait:?}: {what}");
}

/// Returns whether the condition becomes true within this time.
pub(crate) fn becomes_so(max_wait: Duration, is_so: impl FnMut() -> bool) -> bool {
    becomes_so_at_times(max_wait, Duration::from_millis(5), is_so)
}

/// Does the same with another pause between polls, for polls that use something up.
pub(crate) fn becomes_so_at_times(
    max_wait: Duration,
    interval: Duration,
    mut is_so: impl FnMut() -> bool,
) -> bool {
    for _ in 0..max_wait.as_millis() / interval.as_millis() {
        if is_so() {
            return true;
        }
        pause(interval);
    }
    false
}

/// Polls within a runtime until `is_so` returns true, for at most [`PATIENCE`].
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let becomes_so = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waiting = tokio::time::timeout(PATIENCE, becomes_so);
    assert!(waiting.await.is_ok(), "not within {PATIENCE:?}: {what}");
}

/// Polls without a pause until `done` returns true, for the earliest moment at which it does.
pub(crate) fn as_soon_as(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = clock::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::yield_now();
    }
}

/// Lets time pass, for a random moment or a pace. Outside the group `clock`, no assertion depends on it.
#[expect(clippy::disallowed_methods, reason = "this is what others are to call")]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// Reads again when a signal came between (a socket with a timeout is not restarted by the kernel),
/// and leaves a trace of how a connection ended that a failed test shows.
fn patiently(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                println!("a connection of this test: {error}");
                return Err(error);
            }
            Ok(read) => return Ok(read),
        }
    }
}
