//! The log of every gate in this process, at the finest level of all libraries.

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

/// Starts to write down the log of this process.
pub(super) fn start() {
    LazyLock::force(&STARTED);
}

/// How much was logged so far, by all tests of this process.
pub(super) fn length() -> usize {
    lock(&LINES).len()
}

/// What was logged since it was as long as this.
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
