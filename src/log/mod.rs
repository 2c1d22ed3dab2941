//! The log on standard error: one line per event, written by a thread of its own.

mod filter;
mod queue;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;
use std::{panic, thread};

use tracing::error;
use tracing_subscriber::fmt::Layer as Lines;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Json, JsonFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

use self::filter::LogFilter;
pub(super) use self::filter::set_level;
use self::queue::LogQueue;
use crate::config::LogConfig;

static QUEUE: LogQueue = LogQueue::new();

/// Logs to standard error.
pub(super) fn start(settings: LogConfig) -> io::Result<()> {
    // Not through `io::stderr()`, whose lock a stopped pipe would hold against everyone.
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    thread::Builder::new().name("log".to_owned()).spawn(move || QUEUE.run(stderr))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(|| &QUEUE);
    let is_terminal = io::stderr().is_terminal();
    let lines = if settings.is_json.unwrap_or(!is_terminal) {
        json(lines).boxed()
    } else {
        lines.with_ansi(is_terminal).boxed()
    };
    set_level(settings.level);
    registry().with(lines).with(LogFilter).try_init().ok();
    // The default hook prints the panic message, which may hold a secret.
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        error!(location, thread, "thread panicked: this is a bug in tollgate");
        // The process may not live on.
        QUEUE.flush(Duration::from_millis(100));
    }));
    Ok(())
}

/// Formats each event as JSON: its fields, and its innermost span.
fn json<S, W>(lines: Lines<S, DefaultFields, Format, W>) -> Lines<S, JsonFields, Format<Json>, W> {
    lines.json().flatten_event(true).with_span_list(false)
}

/// Waits until all lines are written, but not for long: the reader may have stopped.
pub(super) fn flush() {
    const MAX_WAIT: Duration = Duration::from_secs(1);
    QUEUE.flush(MAX_WAIT);
}

#[cfg(test)]
mod tests;
