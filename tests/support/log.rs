//! The log of every gate in this process, at trace level.

use std::io::{self, Write};
use std::sync::{LazyLock, Mutex};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use super::lock;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

static STARTED: LazyLock<()> = LazyLock::new(|| {
    let lines = fmt::layer().json().with_writer(|| Lines).with_filter(LevelFilter::TRACE);
    registry().with(lines).init();
});

/// Starts to record the log of this process.
pub(super) fn start() {
    LazyLock::force(&STARTED);
}

/// Returns the length of the log so far, for all tests of this process.
pub(super) fn length() -> usize {
    lock(&LINES).len()
}

/// Returns what was logged after this position.
pub(super) fn since(length: usize) -> Vec<u8> {
    lock(&LINES)[length..].to_vec()
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        lock(&LINES).write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
