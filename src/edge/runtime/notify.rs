//! Tells the service manager how far the server is: `sd_notify(3)`, for units with `Type=notify`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::time::sleep;
use tracing::warn;

use crate::ledger::Store;

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_PERIOD: &str = "WATCHDOG_USEC";
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// Announces what the server does while its start waits.
pub(super) fn starting(status: &str) {
    notify(&format!("STATUS={status}"));
}

pub(super) fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={status}"));
}

/// Announces a reload, whose end is [`ready`].
pub(super) fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
}

/// Announces the end, which may take as long as `within`.
pub(super) fn stopping(within: Duration) {
    let status = "waiting for purchases in flight";
    notify(&format!("STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={}", within.as_micros()));
}

/// Reports at intervals that all cores and the ledger answer, if the service manager asks for it.
/// If one of them hangs, the reports stop, and the service manager restarts the server.
pub(super) async fn report_alive(cores: Vec<Handle>, ledger: Store, status: impl Fn() -> String) {
    let Some(period) = watchdog_period() else { return };
    loop {
        if do_answer(&cores).await && ledger.writer_answers().await {
            notify(&format!("WATCHDOG=1\nSTATUS={}", status()));
        }
        sleep(period / 2).await;
    }
}

/// Waits until each of these runtimes has run a task. Returns whether all of them still run.
async fn do_answer(runtimes: &[Handle]) -> bool {
    for runtime in runtimes {
        if runtime.spawn(async {}).await.is_err() {
            return false;
        }
    }
    true
}

#[expect(clippy::disallowed_methods, reason = "it configures the process, not tollgate")]
fn watchdog_period() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number(WATCHDOG_PROCESS).is_none_or(|id| id == u64::from(std::process::id()));
    let period = number(WATCHDOG_PERIOD).filter(|period| *period > 0 && is_ours);
    period.map(Duration::from_micros)
}

#[expect(clippy::disallowed_methods, reason = "it configures the process, not tollgate")]
fn notify(state: &str) {
    if let Some(socket) = std::env::var_os(SOCKET)
        && let Err(error) = send(&socket, state)
    {
        warn!(%error, "service manager not notified");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A full queue must not keep the server from stopping.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use tokio::runtime;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn blocked_core_does_not_answer_until_it_runs_again() {
        let (send, core) = mpsc::channel();
        let (unblock, is_unblocked) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().build().unwrap();
            send.send(runtime.handle().clone()).unwrap();
            let blocked = async {
                is_unblocked.recv().unwrap();
                // Until the sender is gone.
                while is_unblocked.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    tokio::task::yield_now().await;
                }
            };
            runtime.block_on(blocked);
        });
        let cores = [Handle::current(), core.recv().unwrap()];
        assert!(do_answer(&cores[..1]).await);
        let mut answers = std::pin::pin!(do_answer(&cores));
        assert!(timeout(Duration::from_millis(50), &mut answers).await.is_err());
        unblock.send(()).unwrap();
        assert!(answers.await);
        drop(unblock);
        thread.join().unwrap();
        assert!(!do_answer(&cores).await, "it has ended");
    }
}
