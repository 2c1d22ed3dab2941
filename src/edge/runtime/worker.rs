//! One thread per CPU core, each with its own tokio runtime and clones of the listeners.

use std::sync::Arc;
use std::{io, thread};

use http::Request;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tower::service_fn;
use tracing::error;

use super::{Core, Runtime, process};
use crate::app::Shutdown;
use crate::edge::{self, ConnectionSettings, IncomingBody, Listener};
use crate::gate::source::Source;

pub(super) struct Worker {
    pub(super) tokio: Handle,
    ended: oneshot::Receiver<()>,
}

impl Worker {
    pub(super) fn start_all(
        runtime: &Runtime,
        listeners: &[Listener],
        settings: &ConnectionSettings,
    ) -> io::Result<Vec<Self>> {
        let start = |number| {
            let core = runtime.add_core()?;
            let listeners =
                listeners.iter().map(Listener::try_clone).collect::<io::Result<Vec<_>>>()?;
            let tokio = process::runtime()?;
            let (at_end, ended) = oneshot::channel();
            let handle = tokio.handle().clone();
            let serving = serve(listeners, core, settings.clone(), runtime.shutdown.clone());
            thread::Builder::new().name(format!("core-{number}")).spawn(move || {
                if let Err(error) = tokio.block_on(serving) {
                    error!(%error, "worker failed");
                }
                // In the background, because a pending DNS lookup must not outlast the drain.
                tokio.shutdown_background();
                at_end.send(()).ok();
            })?;
            Ok(Self { tokio: handle, ended })
        };
        (0..thread::available_parallelism()?.get()).map(start).collect()
    }

    /// Returns when no connection is open.
    pub(super) async fn end_all(workers: Vec<Self>) {
        for worker in workers {
            if worker.ended.await.is_err() {
                error!("worker panicked");
            }
        }
    }
}

async fn serve(
    listeners: Vec<Listener>,
    core: Arc<Core>,
    settings: ConnectionSettings,
    shutdown: Shutdown,
) -> io::Result<()> {
    let serving = TaskTracker::new();
    for listener in listeners {
        let core = Arc::clone(&core);
        let make_service = move |source: Source| {
            let core = Arc::clone(&core);
            service_fn(move |request: Request<IncomingBody>| {
                let (stack, source) = (core.stack.load_full(), source.clone());
                Box::pin(async move { Ok(stack.handle(Some(source), request).await) })
            })
        };
        let draining = shutdown.draining.clone();
        serving.spawn(edge::run(listener.start()?, make_service, settings.clone(), draining));
    }
    serving.close();
    serving.wait().await;
    // Connections are closed, but their purchases may still be in flight.
    core.tasks.close();
    shutdown.drain_expired.run_until_cancelled(core.tasks.wait()).await;
    Ok(())
}
