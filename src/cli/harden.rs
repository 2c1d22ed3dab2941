//! Closes what other processes of the same user could read a key from.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use tracing::warn;

/// No core dumps, and `/proc/PID/environ`, `mem` and `maps` for nobody. Where the system has no such
/// thing, tollgate runs all the same.
pub fn harden() {
    let hardened = prctl::set_dumpable(false).and(setrlimit(Resource::RLIMIT_CORE, 0, 0));
    if let Err(error) = hardened {
        warn!(%error, "the process could not be closed to others");
    }
}
