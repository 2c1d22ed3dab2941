//! The proxy while it runs: its cores, its work in the background, its reload and its end. The program
//! and the library have one each.

#[cfg(feature = "cli")]
mod notify;
#[cfg(feature = "cli")]
pub mod process;
#[cfg(feature = "cli")]
mod reload;
#[cfg(feature = "cli")]
pub mod server;
#[cfg(feature = "cli")]
pub mod signals;
#[cfg(feature = "cli")]
pub mod sockets;
#[cfg(feature = "cli")]
mod worker;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

use arc_swap::ArcSwap;
use futures_util::future;
use tokio::runtime::Handle;
use tokio::time::{interval, timeout};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::app::{App, Shutdown};
use crate::config::Settings;
use crate::config::changes::{check_changes, keep_until_restart};
use crate::gate::pipeline::HttpStack;
use crate::gate::rate::calibrate_clock;
use crate::sync::lock;

const TIDY_INTERVAL: Duration = Duration::from_secs(60);
/// How long the last responses may take after `server.drain`.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the ledger may take to close after that.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The proxy while it runs. Dropping it ends its work in the background.
pub struct Runtime {
    /// The proxy for the current settings.
    app: ArcSwap<App>,
    /// Locked by a reload, so that one follows the other.
    cores: Mutex<Vec<Arc<Core>>>,
    pub shutdown: Shutdown,
}

/// A stack with its own connections to the gateway, for one thread of the program.
pub struct Core {
    /// A reload swaps it; each request uses the current one.
    pub stack: ArcSwap<HttpStack>,
    /// The purchases, and the requests of the library.
    pub tasks: TaskTracker,
}

/// Why other settings are rejected.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("{0}")]
    NeedsRestart(String),
    #[error("{0}")]
    Failed(#[from] io::Error),
}

impl Runtime {
    pub fn new(app: App, shutdown: Shutdown) -> Arc<Self> {
        Arc::new(Self { app: ArcSwap::from_pointee(app), cores: Mutex::default(), shutdown })
    }

    /// Returns the proxy for the current settings.
    pub fn app(&self) -> Arc<App> {
        self.app.load_full()
    }

    pub fn add_core(&self) -> io::Result<Arc<Core>> {
        let (mut cores, tasks) = (lock(&self.cores), TaskTracker::new());
        let stack = ArcSwap::new(self.app.load().core(tasks.clone())?);
        let core = Arc::new(Core { stack, tasks });
        cores.push(Arc::clone(&core));
        Ok(core)
    }

    /// Puts other settings into effect, or none of them. Requests in flight finish with the old ones.
    pub fn reload(&self, mut settings: Settings) -> Result<(), ReloadError> {
        let (cores, old) = (lock(&self.cores), self.app());
        check_changes(&old.settings, &settings).map_err(ReloadError::NeedsRestart)?;
        keep_until_restart(&old.settings, &mut settings);
        let new = old.with_settings(settings)?;
        let stacks = cores.iter().map(|core| new.core(core.tasks.clone()));
        let stacks = stacks.collect::<io::Result<Vec<_>>>()?;
        // The last step that may fail.
        if let (Some(tls), Some(files)) = (&new.shared.tls, new.settings.server.tls_files()) {
            tls.reload(files).map_err(io::Error::other)?;
        }
        // Before the swap, so that no request to a new account uses the old rate limit.
        new.replace(&old);
        for (core, stack) in cores.iter().zip(stacks) {
            core.stack.store(stack);
        }
        new.shared.access.refetch_keys();
        self.app.store(Arc::new(new));
        Ok(())
    }

    /// Starts what no request waits for, on this tokio runtime: reports of events, fetches of keys and,
    /// once the ledger is open, polls of the account and the deletion of expired records.
    pub fn start_background(self: &Arc<Self>, host: &Handle) {
        // Otherwise, the first request waits for it.
        thread::spawn(calibrate_clock);
        let (app, runtime) = (self.app(), Arc::downgrade(self));
        let (access, opened) = (Arc::clone(&app.shared.access), app.shared.ledger_opened.clone());
        let (account, events) = (app.watch_account(), app.report_events());
        let tidying = tidy_at_intervals(move || Some(runtime.upgrade()?.app.load().tidy()));
        let (finished, store) = (self.shutdown.finished.clone(), app.shared.store.clone());
        host.spawn(async move {
            let with_ledger = async {
                opened.cancelled().await;
                // It is still starting if the start was given up.
                if !store.is_starting() {
                    future::join(account, tidying).await;
                }
            };
            let work = future::join3(access.run(), events, with_ledger);
            finished.run_until_cancelled(work).await;
        });
    }

    /// Rejects new requests, then waits for those in flight, at most `server.drain`. `served` ends when
    /// no connection is open.
    pub async fn drain(&self, served: impl Future<Output = ()>) {
        self.shutdown.drain();
        let (app, tasks) = (self.app(), self.tasks());
        let mut finished = pin!(async {
            served.await;
            for tasks in &tasks {
                tasks.close();
                tasks.wait().await;
            }
        });
        if timeout(app.settings.server.drain, &mut finished).await.is_err() {
            self.warn_of_purchases();
            // Waiting clients get an unknown outcome instead of a closed connection.
            self.shutdown.drain_expired.cancel();
            timeout(FLUSH_TIMEOUT, finished).await.ok();
        }
        self.shutdown.finished.cancel();
        info!("stopped");
    }

    /// Logs the purchases that a forced end would cut.
    pub fn warn_of_purchases(&self) {
        const MAX_LISTED: usize = 20;
        let remaining: usize = self.tasks().iter().map(TaskTracker::len).sum();
        if remaining > 0 {
            let ids = self.app.load().shared.running.ids().into_iter().take(MAX_LISTED);
            let purchases = ids.map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
            warn!(
                remaining,
                purchases, "stopping with purchases in flight; they may have been charged"
            );
        }
    }

    fn tasks(&self) -> Vec<TaskTracker> {
        lock(&self.cores).iter().map(|core| core.tasks.clone()).collect()
    }
}

/// The last user is gone, and with it the last request.
impl Drop for Runtime {
    fn drop(&mut self) {
        self.shutdown.draining.cancel();
        self.shutdown.finished.cancel();
    }
}

/// Tidies at intervals, one at a time, until `tidy` returns `None`.
async fn tidy_at_intervals<T: Future<Output = ()>>(tidy: impl Fn() -> Option<T>) {
    let mut due = interval(TIDY_INTERVAL);
    loop {
        due.tick().await;
        let Some(tidying) = tidy() else { return };
        tidying.await;
    }
}
