//! The log on standard error: one line per event, written by a thread of its own.

mod queue;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{panic, thread};

use arc_swap::ArcSwap;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber, error};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::Layer as Lines;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Json, JsonFields};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::LogQueue;
use crate::config::LogConfig;

static QUEUE: LogQueue = LogQueue::new();
static TARGETS: LazyLock<ArcSwap<Targets>> = LazyLock::new(Default::default);

/// Logs to standard error.
pub(crate) fn start(settings: LogConfig) -> io::Result<()> {
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
pub(crate) fn flush() {
    const MAX_WAIT: Duration = Duration::from_secs(1);
    QUEUE.flush(MAX_WAIT);
}

/// Decides for all layers which events are logged. An event costs nothing more than with a fixed level.
struct LogFilter;

/// Sets the level. Libraries log only warnings, because other events can hold headers.
pub(crate) fn set_level(level: Level) {
    let targets = Targets::new()
        .with_target("tollgate", level)
        .with_default(LevelFilter::WARN.min(level.into()));
    TARGETS.store(Arc::new(targets));
    tracing::callsite::rebuild_interest_cache();
}

impl<S: Subscriber> Layer<S> for LogFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        Layer::<S>::register_callsite(&**TARGETS.load(), metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, cx: Context<'_, S>) -> bool {
        Layer::<S>::enabled(&**TARGETS.load(), metadata, cx)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Layer::<S>::max_level_hint(&**TARGETS.load())
    }
}

#[cfg(test)]
mod tests;
