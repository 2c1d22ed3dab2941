//! One core: a thread with a runtime, a stack of its own, and a share of every listener.

use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use arc_swap::ArcSwap;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tower::{Service, service_fn};
use tracing::{error, info, warn};

use crate::app::{App, Shutdown};
use crate::downstream::caller::Peer;
use crate::pipeline::HttpService;
use crate::server;

/// How long the last answers may take after `server.drain`.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A core's stack, which can be exchanged while it serves: each request takes the one of its moment.
type SharedStack = Arc<ArcSwap<HttpService<Incoming>>>;

pub(super) struct Core {
    stack: SharedStack,
    tasks: TaskTracker,
    thread: thread::JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

impl Core {
    pub(super) fn start_all(
        app: &App,
        listeners: &[StdListener],
        shutdown: &Shutdown,
    ) -> io::Result<Vec<Self>> {
        let settings = app.server();
        (0..thread::available_parallelism()?.get())
            .map(|number| Self::start(number, app, listeners, settings.clone(), shutdown.clone()))
            .collect()
    }

    fn start(
        number: usize,
        app: &App,
        listeners: &[StdListener],
        settings: server::ConnectionSettings,
        shutdown: Shutdown,
    ) -> io::Result<Self> {
        let tasks = TaskTracker::new();
        let stack = SharedStack::new(ArcSwap::from_pointee(app.core(tasks.clone())?));
        let listeners =
            listeners.iter().map(StdListener::try_clone).collect::<io::Result<Vec<_>>>()?;
        let runtime = runtime()?;
        let (at_end, ended) = oneshot::channel();
        let serving = serve(listeners, Arc::clone(&stack), tasks.clone(), settings, shutdown);
        let thread = thread::Builder::new().name(format!("core-{number}")).spawn(move || {
            if let Err(error) = runtime.block_on(serving) {
                error!(%error, "a core cannot serve");
            }
            // Not waited for: a name that does not resolve must not outlast the drain.
            runtime.shutdown_background();
            at_end.send(()).ok();
        })?;
        Ok(Self { stack, tasks, thread, ended })
    }

    pub(super) fn build_stack(&self, app: &App) -> io::Result<HttpService<Incoming>> {
        app.core(self.tasks.clone())
    }

    pub(super) fn swap_stack(&self, stack: HttpService<Incoming>) {
        self.stack.store(Arc::new(stack));
    }

    /// Waits until all have finished what is under way, for at most `drain`.
    pub(super) async fn drain_all(cores: Vec<Self>, drain: Duration, shutdown: &Shutdown) {
        let in_flight: Vec<_> = cores.iter().map(|core| core.tasks.clone()).collect();
        let mut finish = pin!(async {
            for core in cores {
                if core.ended.await.is_err() {
                    error!("a core ended by a panic");
                }
                // It has ended: this does not block.
                core.thread.join().ok();
            }
        });
        if timeout(drain, &mut finish).await.is_err() {
            let left: usize = in_flight.iter().map(TaskTracker::len).sum();
            warn!(left, "stopping with purchases in flight; they may have been charged");
            // Whoever still waits for one is told so, instead of a connection that just ends.
            shutdown.drain_expired.cancel();
            timeout(FLUSH_TIMEOUT, finish).await.ok();
        }
        info!("stopped");
    }
}

pub(super) fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

async fn serve(
    listeners: Vec<StdListener>,
    stack: SharedStack,
    tasks: TaskTracker,
    settings: server::ConnectionSettings,
    shutdown: Shutdown,
) -> io::Result<()> {
    let serving = TaskTracker::new();
    for listener in listeners {
        let stack = Arc::clone(&stack);
        let introduce = move |peer| {
            let stack = Arc::clone(&stack);
            // Every layer of a stack is always ready: it refuses rather than making a caller wait.
            service_fn(move |request| {
                HttpService::clone(&stack.load()).call(Peer(peer).insert_into(request))
            })
        };
        let listener = TcpListener::from_std(listener)?;
        serving.spawn(server::run(
            listener,
            introduce,
            settings.clone(),
            shutdown.draining.clone(),
        ));
    }
    serving.close();
    serving.wait().await;
    // Connections are gone; what they bought may still be on its way.
    tasks.close();
    shutdown.drain_expired.run_until_cancelled(tasks.wait()).await;
    Ok(())
}
