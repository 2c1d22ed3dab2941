//! Reads reports on a thread of its own, so that purchases do not wait for them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::{io, thread};

use tokio::sync::oneshot;

use crate::ledger::Unavailable;
use crate::ledger::engine::Engine;
use crate::ledger::engine::Result;
#[cfg(feature = "postgres")]
use crate::ledger::engine::StoreError;
#[cfg(feature = "postgres")]
use crate::ledger::postgres::PostgresSession;
use crate::ledger::sqlite::{Purpose, open_file};

const OPS_PER_CANCEL_CHECK: i32 = 10_000;

/// Where reports are read.
pub(in crate::ledger) trait ReportSource: Send + 'static {
    /// Runs a query on one state of the ledger, or twice if the connection was lost. It may be interrupted
    /// once `is_cancelled`.
    fn run(
        &self,
        is_cancelled: Box<dyn FnMut() -> bool + Send>,
        query: &mut dyn FnMut(&dyn Engine) -> Result<()>,
    ) -> Result<()>;
}

type Query = Box<dyn FnOnce(&dyn ReportSource) + Send>;

pub(in crate::ledger) struct ReportReader {
    /// `None` once it is dropped.
    worker: Option<(mpsc::Sender<Query>, thread::JoinHandle<()>)>,
    is_closed: Arc<AtomicBool>,
}

impl ReportReader {
    pub(in crate::ledger) fn start(source: impl ReportSource) -> io::Result<Self> {
        let (queue, queued) = mpsc::channel::<Query>();
        let job = move || queued.iter().for_each(|query| query(&source));
        let thread = thread::Builder::new().name("report".to_owned()).spawn(job)?;
        Ok(Self { worker: Some((queue, thread)), is_closed: Arc::default() })
    }

    /// Runs a query. If its caller goes away, it is not begun, or is interrupted.
    pub(in crate::ledger) fn read<T: Send + 'static, Q>(
        &self,
        query: Q,
    ) -> impl Future<Output = Result<T, Unavailable>> + Send + use<T, Q>
    where
        Q: Fn(&dyn Engine) -> Result<T> + Send + 'static,
    {
        let (sender, reply) = oneshot::channel();
        let (sender, is_over) = (Arc::new(sender), Arc::clone(&self.is_closed));
        let job = move |source: &dyn ReportSource| {
            let waiting = Arc::clone(&sender);
            let is_cancelled = move || waiting.is_closed() || is_over.load(Ordering::Relaxed);
            if is_cancelled() {
                return;
            }
            let mut found = None;
            let done = source.run(Box::new(is_cancelled), &mut |db| {
                found = Some(query(db)?);
                Ok(())
            });
            let failed = || Unavailable("the report failed".into());
            let report =
                done.map_err(|fault| fault.unavailable()).and_then(|()| found.ok_or_else(failed));
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

/// A file is opened for each report, so that it is not held open between two.
impl ReportSource for PathBuf {
    fn run(
        &self,
        is_cancelled: Box<dyn FnMut() -> bool + Send>,
        query: &mut dyn FnMut(&dyn Engine) -> Result<()>,
    ) -> Result<()> {
        let mut connection =
            open_file(self, Purpose::Read).map_err(|error| Unavailable(error.into()))?;
        connection.progress_handler(OPS_PER_CANCEL_CHECK, Some(is_cancelled))?;
        query(&connection)
    }
}

#[cfg(feature = "postgres")]
impl ReportSource for PostgresSession {
    fn run(
        &self,
        _: Box<dyn FnMut() -> bool + Send>,
        query: &mut dyn FnMut(&dyn Engine) -> Result<()>,
    ) -> Result<()> {
        match self.report(&mut *query) {
            Err(StoreError::Disconnected(_)) => self.report(query),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests;
