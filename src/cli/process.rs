//! What a process sets up before it works: its log, its core dumps, its limit of open files.

use std::io::{self, IsTerminal};
use std::{panic, thread};

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{error, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogConfig, LogFormat, ServerConfig};

pub(super) const OPS_CONNECTIONS: usize = 64;
/// File descriptors for listeners, runtimes, the log, the ledger and its reports.
const BASE_FILES: u64 = 64;
/// For the sources of finished videos.
const VIDEO_FILES: u64 = 64;
const GATEWAY_FILES_PER_CORE: u64 = 64;
/// Kept back even if half of all descriptors is less.
const MIN_RESERVE: u64 = 64;

/// Disables core dumps and closes `/proc/PID/environ`, `mem` and `maps` to others, where the system can.
pub fn harden() {
    let hardened = prctl::set_dumpable(false).and(setrlimit(Resource::RLIMIT_CORE, 0, 0));
    if let Err(error) = hardened {
        warn!(%error, "the process could not be closed to others");
    }
}

/// Logs to standard error. Of libraries only warnings are logged, because their finer events can hold headers.
pub(super) fn start_log(settings: LogConfig) {
    let text = settings.format == LogFormat::Auto && io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = if text {
        lines.boxed()
    } else {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    };
    let filter = Targets::new()
        .with_target("tollgate", settings.level)
        .with_default(LevelFilter::WARN.min(settings.level.into()));
    // A host program may have its own subscriber already.
    registry().with(lines.with_filter(filter)).try_init().ok();
    // The default hook prints what the panic says, and that may hold anything.
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        error!(place, thread, "a panic: this is a bug in tollgate");
    }));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) connections: usize,
    pub(super) per_address: usize,
    pub(super) open_files: Option<u64>,
}

impl Capacity {
    pub(super) fn is_lowered(self, asked: &ServerConfig) -> bool {
        self.connections < asked.max_connections
            || self.per_address < asked.max_connections_per_address
    }
}

/// Raises the soft limit of open files to the hard one, and lowers the settings to what it allows: else one
/// address with idle connections takes the descriptors that purchases, the ledger and the ops listener need.
pub(super) fn fit_open_file_limit(server: &mut ServerConfig) {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    if let Ok((soft, hard)) = limits
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        warn!(%error, soft, hard, "open-file limit not raised");
    }
    let open_files = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
    let capacity = capacity(server, open_files, cores());
    if capacity.is_lowered(server) {
        warn!(
            open_files,
            max_connections = server.max_connections,
            connections = capacity.connections,
            max_connections_per_address = server.max_connections_per_address,
            per_address = capacity.per_address,
            "connection limits lowered: raise the limit of open files"
        );
        server.max_connections = capacity.connections;
        server.max_connections_per_address = capacity.per_address;
    }
}

pub(super) fn expected_capacity(server: &ServerConfig) -> Capacity {
    let open_files = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(_, hard)| hard);
    capacity(server, open_files, cores())
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The settings, or less if the limit of open files is too low for them: then one address gets a tenth.
fn capacity(server: &ServerConfig, open_files: Option<u64>, cores: usize) -> Capacity {
    let (asked, per_address) = (server.max_connections, server.max_connections_per_address);
    let connections = open_files.map_or(asked, |limit| {
        let left = limit.saturating_sub(reserve(limit, cores)).max(1);
        usize::try_from(left).unwrap_or(usize::MAX).min(asked)
    });
    let per_address =
        if connections < asked { per_address.min((connections / 10).max(1)) } else { per_address };
    Capacity { connections, per_address, open_files }
}

/// Descriptors that are not for clients' connections: at most half of all.
fn reserve(limit: u64, cores: usize) -> u64 {
    let ops = OPS_CONNECTIONS as u64;
    let gateway = GATEWAY_FILES_PER_CORE.saturating_mul(cores as u64);
    (BASE_FILES + ops + VIDEO_FILES).saturating_add(gateway).min((limit / 2).max(MIN_RESERVE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn connections_and_the_share_of_an_address_follow_the_open_file_limit() {
        let mut server = Settings::default().server;
        for (open_files, connections, per_address) in [
            (None, 10_000, 1_000),
            (Some(1 << 20), 10_000, 1_000),
            (Some(10_320), 10_000, 1_000),
            (Some(10_319), 9_999, 999),
            (Some(1_024), 704, 70),
            (Some(256), 128, 12),
            (Some(64), 1, 1),
            (Some(0), 1, 1),
        ] {
            let expected = Capacity { connections, per_address, open_files };
            assert_eq!(capacity(&server, open_files, 2), expected);
        }
        (server.max_connections, server.max_connections_per_address) = (100, 100);
        let fits = capacity(&server, Some(1_024), 2);
        assert_eq!((fits.per_address, fits.is_lowered(&server)), (100, false), "as it was set");
        let lowered = capacity(&server, Some(128), 2);
        assert_eq!((lowered.connections, lowered.per_address), (64, 6));
        assert!(lowered.is_lowered(&server));
    }
}
