//! The only caller of the system's clocks, so that everything else can be given a time in tests.

use std::time::{Duration, SystemTime};

/// Monotonic time, for intervals. Under tokio's paused clock it stands still, too.
pub type Instant = tokio::time::Instant;

/// Now, for measuring intervals.
pub fn now() -> Instant {
    Instant::now()
}

/// Wall-clock time since the Unix epoch, for records that people read.
#[expect(clippy::disallowed_methods, reason = "this is the one home of the system clock")]
pub fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
