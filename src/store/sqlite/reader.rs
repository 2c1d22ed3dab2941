//! Reads reports on a thread of its own, so that purchases do not wait for them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::{io, thread};

use tokio::sync::oneshot;

use super::Result;
use super::engine::SqliteEngine;
use super::file::{self, Purpose};
use crate::store::Unavailable;
use crate::store::engine::Engine;

const OPS_PER_CANCEL_CHECK: i32 = 10_000;

type Query = Box<dyn FnOnce(&Path) + Send>;

pub(super) struct ReportReader {
    /// `None` once it is dropped.
    worker: Option<(mpsc::Sender<Query>, thread::JoinHandle<()>)>,
    is_closed: Arc<AtomicBool>,
}

impl ReportReader {
    pub(super) fn start(path: PathBuf) -> io::Result<Self> {
        let (queue, queued) = mpsc::channel::<Query>();
        let job = move || queued.iter().for_each(|query| query(&path));
        let thread = thread::Builder::new().name("report".to_owned()).spawn(job)?;
        Ok(Self { worker: Some((queue, thread)), is_closed: Arc::default() })
    }

    /// Runs a query. If its caller goes away, it is not begun, or is interrupted.
    pub(super) fn read<T: Send + 'static, Q>(
        &self,
        query: Q,
    ) -> impl Future<Output = Result<T, Unavailable>> + Send + use<T, Q>
    where
        Q: FnOnce(&dyn Engine) -> Result<T> + Send + 'static,
    {
        let (sender, reply) = oneshot::channel();
        let (sender, is_over) = (Arc::new(sender), Arc::clone(&self.is_closed));
        let job = move |path: &Path| {
            let waiting = Arc::clone(&sender);
            let is_cancelled = move || waiting.is_closed() || is_over.load(Ordering::Relaxed);
            if is_cancelled() {
                return;
            }
            let report = run_query(path, is_cancelled, query);
            // The other reference was dropped with the connection.
            if let Some(sender) = Arc::into_inner(sender) {
                let _ = sender.send(report);
            }
        };
        if let Some((queue, _)) = &self.worker {
            let _ = queue.send(Box::new(job));
        }
        async move { reply.await.unwrap_or_else(|_| Err(Unavailable("the report failed".into()))) }
    }
}

impl Drop for ReportReader {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        if let Some((queue, thread)) = self.worker.take() {
            drop(queue);
            let _ = thread.join();
        }
    }
}

/// Opens a connection for each report, so that no file is held open between two.
fn run_query<T>(
    path: &Path,
    is_cancelled: impl FnMut() -> bool + Send + 'static,
    query: impl FnOnce(&dyn Engine) -> Result<T>,
) -> Result<T, Unavailable> {
    let mut connection =
        file::open(path, Purpose::Read).map_err(|error| Unavailable(error.into()))?;
    connection
        .progress_handler(OPS_PER_CANCEL_CHECK, Some(is_cancelled))
        .map_err(|error| Unavailable(error.into()))?;
    query(&SqliteEngine { connection }).map_err(|error| error.unavailable())
}

#[cfg(test)]
mod tests;
