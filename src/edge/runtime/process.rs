//! Sets up the process: core dumps, open-file limit.

use std::{io, thread};

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{self, Runtime};
use tracing::warn;

use crate::config::ServerConfig;

pub(super) const OPS_CONNECTIONS: usize = 64;
/// Descriptors for listeners, runtimes, the log and the ledger; for the ops listener; for videos.
const RESERVED_FILES: u64 = 64 + OPS_CONNECTIONS as u64 + 64;
const GATEWAY_FILES_PER_CORE: u64 = 64;
/// Reserved even if it is more than half of all descriptors.
const MIN_RESERVE: u64 = 64;

pub fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// Disables core dumps, and hides the process's environment and memory from other users.
pub fn harden() {
    let hardened = prctl::set_dumpable(false).and(setrlimit(Resource::RLIMIT_CORE, 0, 0));
    if let Err(error) = hardened {
        warn!(%error, "process hardening failed");
    }
}

/// Raises the open-file limit to the hard limit, lowers the connection limits to fit, and returns
/// the open-file limit. Otherwise, idle connections could take the descriptors that purchases, the
/// ledger and the ops listener need.
pub fn fit_open_file_limit(server: &mut ServerConfig) -> Option<u64> {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    if let Ok((soft, hard)) = limits
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        warn!(%error, soft, hard, "open-file limit not raised");
    }
    let open_files = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (connections, per_address) = capacity(server, open_files, cores);
    let configured = (server.max_connections, server.max_connections_per_address);
    if (connections, per_address) != configured {
        warn!(
            open_files,
            configured = configured.0,
            lowered_to = connections,
            configured_per_address = configured.1,
            lowered_to_per_address = per_address,
            "connection limits lowered: raise the open-file limit"
        );
        server.max_connections = connections;
        server.max_connections_per_address = per_address;
    }
    open_files
}

/// Returns the connection limits, in total and per address, that fit the open-file limit, of which
/// at most half is reserved. If lowered, an address gets a tenth.
fn capacity(server: &ServerConfig, open_files: Option<u64>, cores: usize) -> (usize, usize) {
    let (max, max_per_address) = (server.max_connections, server.max_connections_per_address);
    let connections = open_files.map_or(max, |limit| {
        let needed = RESERVED_FILES + GATEWAY_FILES_PER_CORE.saturating_mul(cores as u64);
        let left = limit.saturating_sub(needed.min((limit / 2).max(MIN_RESERVE))).max(1);
        usize::try_from(left).unwrap_or(usize::MAX).min(max)
    });
    let tenth = if connections < max { (connections / 10).max(1) } else { usize::MAX };
    (connections, max_per_address.min(tenth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn connection_limits_fit_the_open_file_limit() {
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
            assert_eq!(capacity(&server, open_files, 2), (connections, per_address));
        }
        (server.max_connections, server.max_connections_per_address) = (100, 100);
        assert_eq!(capacity(&server, Some(1_024), 2), (100, 100), "as it was set");
        assert_eq!(capacity(&server, Some(128), 2), (64, 6));
    }
}
