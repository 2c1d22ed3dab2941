//! The process as every Prometheus dashboard expects it: `process_*`.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The command's log counts them; an embedding program has its own.
pub static LOG_LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

/// Reads the process's figures. One that the system does not show is left out.
pub(super) fn read(started: Duration) -> Registry {
    let mut registry = Registry::default();
    let r = &mut registry;
    let mut gauge = |name: &str, help: &str, value: Option<u64>| {
        if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
            r.register(name, help, ConstGauge::new(value));
        }
    };
    gauge(
        "process_start_time_seconds",
        "Start of tollgate, as a Unix time",
        Some(started.as_secs()),
    );
    gauge("process_resident_memory_bytes", "Resident memory", resident_bytes());
    gauge("process_open_fds", "Open file descriptors", open_files());
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft).ok();
    gauge("process_max_fds", "Limit of open file descriptors", limit);
    if let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) {
        let micros = |time: TimeVal| u64::try_from(time.num_microseconds()).unwrap_or_default();
        let used = Duration::from_micros(micros(used.user_time()) + micros(used.system_time()));
        let counter = ConstCounter::new(used.as_secs_f64());
        r.register("process_cpu_seconds", "User and system CPU time", counter);
    }
    let dropped = ConstCounter::new(LOG_LINES_DROPPED.load(Ordering::Relaxed));
    let help = "Log lines dropped because standard error was not read";
    r.register("tollgate_log_lines_dropped", help, dropped);
    registry
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kib * 1_024)
}

/// Without the descriptor that this needs itself.
fn open_files() -> Option<u64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(open).ok()?.checked_sub(1)
}
