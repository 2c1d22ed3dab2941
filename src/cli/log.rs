//! Sets up what goes to standard error: events of tollgate itself, and of libraries only warnings,
//! because their finer events can hold headers.

use std::io::{self, IsTerminal};
use std::{panic, thread};

use tracing::error;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Log, LogFormat};

/// Starts logging, and makes a panic a line in the log that holds its place and nothing of its text.
pub(super) fn start(settings: Log) {
    let text = settings.format == LogFormat::Auto && io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match text {
        true => lines.boxed(),
        false => {
            lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
        }
    };
    let filter = Targets::new()
        .with_target("tollgate", settings.level)
        .with_default(LevelFilter::WARN.min(settings.level.into()));
    // A host program may have its own subscriber already.
    registry().with(lines.with_filter(filter)).try_init().ok();
    quiet_panics();
}

/// The default hook prints what the panic says, and that may hold anything.
fn quiet_panics() {
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        error!(place, thread, "a panic: this is a bug in tollgate");
    }));
}
