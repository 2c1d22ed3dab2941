//! One thread per CPU core, each with its own runtime, tower stack and clones of the listeners.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use arc_swap::ArcSwap;
use http::Request;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tower::service_fn;
use tracing::{error, info, warn};

use super::runtime;
use crate::app::{App, FLUSH_TIMEOUT, Shutdown};
use crate::edge::{self, ConnectionSettings, IncomingBody, Listener};
use crate::gate::pipeline::HttpStack;
use crate::gate::source::Source;
use crate::purchase::idempotency::RunningPurchases;

/// A core's stack. A reload swaps it; each request uses the current one.
type SharedStack = Arc<ArcSwap<HttpStack>>;

pub(super) struct Core {
    pub(super) stack: SharedStack,
    pub(super) tasks: TaskTracker,
    pub(super) runtime: Handle,
    ended: oneshot::Receiver<()>,
}

impl Core {
    pub(super) fn start_all(
        app: &App,
        listeners: &[Listener],
        settings: &ConnectionSettings,
        shutdown: &Shutdown,
    ) -> io::Result<Vec<Self>> {
        let start = |number| {
            let tasks = TaskTracker::new();
            let stack = SharedStack::new(ArcSwap::new(app.core(tasks.clone())?));
            let listeners =
                listeners.iter().map(Listener::try_clone).collect::<io::Result<Vec<_>>>()?;
            let runtime = runtime()?;
            let (at_end, ended) = oneshot::channel();
            let handle = runtime.handle().clone();
            let (settings, shutdown) = (settings.clone(), shutdown.clone());
            let serving = serve(listeners, Arc::clone(&stack), tasks.clone(), settings, shutdown);
            thread::Builder::new().name(format!("core-{number}")).spawn(move || {
                if let Err(error) = runtime.block_on(serving) {
                    error!(%error, "worker failed");
                }
                // In the background, because a pending DNS lookup must not outlast the drain.
                runtime.shutdown_background();
                at_end.send(()).ok();
            })?;
            Ok(Self { stack, tasks, runtime: handle, ended })
        };
        (0..thread::available_parallelism()?.get()).map(start).collect()
    }

    /// Waits for requests and purchases in flight, for at most `drain`.
    pub(super) async fn drain_all(
        cores: Vec<Self>,
        drain: Duration,
        shutdown: &Shutdown,
        in_flight: &InFlight,
    ) {
        let mut finish = pin!(async {
            for core in cores {
                if core.ended.await.is_err() {
                    error!("worker panicked");
                }
            }
        });
        if timeout(drain, &mut finish).await.is_err() {
            warn_of_purchases(in_flight);
            // Waiting clients get an unknown outcome instead of a closed connection.
            shutdown.drain_expired.cancel();
            timeout(FLUSH_TIMEOUT, finish).await.ok();
        }
        info!("stopped");
    }
}

/// The purchases that a forced end would cut.
#[derive(Clone)]
pub(super) struct InFlight {
    tasks: Vec<TaskTracker>,
    running: RunningPurchases,
}

impl InFlight {
    pub(super) fn new(cores: &[Core], app: &App) -> Self {
        let tasks = cores.iter().map(|core| core.tasks.clone()).collect();
        Self { tasks, running: app.shared.running.clone() }
    }
}

pub(super) fn warn_of_purchases(in_flight: &InFlight) {
    const MAX_LISTED: usize = 20;
    let remaining: usize = in_flight.tasks.iter().map(TaskTracker::len).sum();
    if remaining > 0 {
        let ids = in_flight.running.ids().into_iter().take(MAX_LISTED);
        let purchases = ids.map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
        warn!(
            remaining,
            purchases, "stopping with purchases in flight; they may have been charged"
        );
    }
}

async fn serve(
    listeners: Vec<Listener>,
    stack: SharedStack,
    tasks: TaskTracker,
    settings: ConnectionSettings,
    shutdown: Shutdown,
) -> io::Result<()> {
    let serving = TaskTracker::new();
    for listener in listeners {
        let stack = Arc::clone(&stack);
        let make_service = move |source: Source| {
            let stack = Arc::clone(&stack);
            service_fn(move |request: Request<IncomingBody>| {
                let stack = stack.load_full();
                let source = source.clone();
                Box::pin(async move { Ok(stack.handle(Some(source), request).await) })
            })
        };
        let listener = listener.start()?;
        let draining = shutdown.draining.clone();
        serving.spawn(edge::run(listener, make_service, settings.clone(), draining));
    }
    serving.close();
    serving.wait().await;
    // Connections are closed, but their purchases may still be in flight.
    tasks.close();
    shutdown.drain_expired.run_until_cancelled(tasks.wait()).await;
    Ok(())
}
