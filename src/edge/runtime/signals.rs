//! The signals of the process: SIGHUP reloads, SIGTERM and SIGINT stop.

use std::time::Duration;
use std::{io, process, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{error, warn};

use super::process::runtime;
use crate::log;

pub struct Signals {
    hup: Signal,
    term: Signal,
    int: Signal,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    pub async fn terminated(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }

    pub(super) async fn unless_terminated<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! { biased; () = self.terminated() => None, done = work => Some(done) }
    }

    /// Reloads at each SIGHUP until the first SIGTERM or SIGINT.
    pub(super) async fn reload_until_terminated(&mut self, reload: impl Fn()) {
        loop {
            tokio::select! {
                _ = self.hup.recv() => reload(),
                _ = self.term.recv() => return,
                _ = self.int.recv() => return,
            }
        }
    }
}

/// Exits at a second signal or after `limit`, from a thread that a hanging disk cannot block. Returns
/// when the thread receives signals.
pub(super) async fn start_exit_watchdog(limit: Duration, warn: impl FnOnce() + Send + 'static) {
    let (ready, is_ready) = oneshot::channel();
    let watch = move || {
        let watching = async {
            let mut signals = Signals::new()?;
            ready.send(()).ok();
            Ok::<_, io::Error>(timeout(limit, signals.terminated()).await.is_ok())
        };
        match runtime().and_then(|runtime| runtime.block_on(watching)) {
            Ok(true) => {
                warn();
                log::flush();
                process::exit(1)
            }
            Ok(false) => {
                error!("ledger not closed in time");
                log::flush();
                process::exit(0)
            }
            Err(error) => warn!(%error, "exit watchdog failed"),
        }
    };
    if let Err(error) = thread::Builder::new().name("watchdog".to_owned()).spawn(watch) {
        warn!(%error, "exit watchdog failed");
    }
    is_ready.await.ok();
}
