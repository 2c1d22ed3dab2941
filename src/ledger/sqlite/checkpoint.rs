//! Copies the write-ahead log into the ledger's file on a thread of its own, so that no purchase
//! waits for it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode};

use super::file::{self, Purpose};
use crate::ledger::Unavailable;
use crate::ledger::engine::StoreError;
use crate::ledger::writer::CommandGate;

const PAGE_BYTES: u64 = 4_096;

/// Dropped after the checkpoint, which ends the wait of a writer that has the receiver.
type Request = Option<mpsc::Sender<()>>;

pub(super) struct Checkpointer {
    /// `None` once it is dropped.
    worker: Option<(mpsc::Sender<Request>, thread::JoinHandle<()>)>,
    is_requested: Arc<AtomicBool>,
}

impl Checkpointer {
    /// `wal_pages` is the length of the log after the latest commit.
    pub(super) fn start(
        path: PathBuf,
        wal_pages: Arc<AtomicI32>,
        gate: CommandGate,
    ) -> io::Result<Self> {
        let (queue, requests) = mpsc::channel::<Request>();
        let is_requested = Arc::<AtomicBool>::default();
        let pending = Arc::clone(&is_requested);
        let work = move || {
            let mut connection = None;
            for waiting in requests {
                pending.store(false, Ordering::Relaxed);
                if let Err(fault) = checkpoint(&path, &mut connection, &wal_pages) {
                    gate.report_fault(fault);
                }
                drop(waiting);
            }
        };
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(work)?;
        Ok(Self { worker: Some((queue, thread)), is_requested })
    }

    /// Requests a checkpoint, unless one is requested already.
    pub(super) fn request(&self) {
        if !self.is_requested.swap(true, Ordering::Relaxed) {
            self.send(None);
        }
    }

    /// Waits for a checkpoint of everything that is in the log now.
    pub(super) fn run(&self) {
        let (sender, done) = mpsc::channel();
        self.send(Some(sender));
        let _ = done.recv();
    }

    fn send(&self, request: Request) {
        if let Some((queue, _)) = &self.worker {
            let _ = queue.send(request);
        }
    }
}

/// Waits until its connection is closed.
impl Drop for Checkpointer {
    fn drop(&mut self) {
        if let Some((queue, thread)) = self.worker.take() {
            drop(queue);
            let _ = thread.join();
        }
    }
}

fn checkpoint(
    path: &Path,
    connection: &mut Option<Connection>,
    wal_pages: &AtomicI32,
) -> Result<(), StoreError> {
    if connection.is_none() {
        let opened = file::connect(path, Purpose::Serve);
        let (opened, _) = opened.map_err(|error| Unavailable(error.into()))?;
        *connection = Some(opened);
    }
    let Some(connection) = connection else { return Ok(()) };
    match connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
        // A reader still needs some pages, or more were written meanwhile: requested again.
        Ok((pages, copied)) if copied < pages => Ok(()),
        Ok((pages, _)) => {
            // Unless another commit has set it meanwhile.
            wal_pages.compare_exchange(pages, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
            if u64::try_from(pages).unwrap_or_default() * PAGE_BYTES > file::MAX_WAL_BYTES {
                truncate(connection, file::BUSY_TIMEOUT);
            }
            Ok(())
        }
        // Another process checkpoints it.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Frees the space of a log that grew during a long read. If a reader is active, the next writer
/// truncates it: `journal_size_limit`.
pub(super) fn truncate(connection: &Connection, busy_timeout: Duration) {
    let truncate = || {
        connection.busy_timeout(Duration::ZERO)?;
        let truncate = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
        connection.busy_timeout(busy_timeout)?;
        truncate
    };
    if let Err(error) = truncate() {
        tracing::debug!(%error, "ledger write-ahead log not truncated");
    }
}
