//! What callers and the writer's thread share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use super::StoreError;
use crate::metrics::Histogram;
use crate::store::{Cause, Reason, Unavailable};
use crate::sync::lock;

#[derive(Clone)]
pub(in crate::store) struct CommandGate {
    state: Arc<OnceLock<Result<(), Unavailable>>>,
    pub(super) is_retry_queue_full: Arc<AtomicBool>,
    /// The disk was full, and no probe has found space since.
    pub(super) is_disk_full: Arc<AtomicBool>,
    pub(in crate::store) stop: Arc<AtomicBool>,
    /// Notified when purchases have ended.
    pub(super) ends: Arc<Notify>,
    pub(super) commits: Histogram,
    /// Found by another thread; the writer has not seen it yet.
    pub(super) fault: Arc<Mutex<Option<StoreError>>>,
    /// Why the database is not reached; `None` while it is.
    outage: Arc<Mutex<Option<Reason>>>,
}

impl Default for CommandGate {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            is_retry_queue_full: Arc::default(),
            is_disk_full: Arc::default(),
            stop: Arc::default(),
            ends: Arc::default(),
            commits: Histogram::of_commits(),
            fault: Arc::default(),
            outage: Arc::default(),
        }
    }
}

impl CommandGate {
    pub(in crate::store) fn opened() -> Self {
        let gate = Self::default();
        gate.open();
        gate
    }

    pub(super) fn check(&self) -> Result<(), Unavailable> {
        let starting = || {
            let why = "starting: the ledger is being opened";
            Err(Unavailable(Reason::new(Cause::Starting, why)))
        };
        self.state.get().cloned().unwrap_or_else(starting)?;
        lock(&self.outage).clone().map_or(Ok(()), |reason| Err(Unavailable(reason)))
    }

    #[cfg(feature = "postgres")]
    pub(in crate::store) fn is_reached(&self) -> bool {
        lock(&self.outage).is_none()
    }

    #[cfg(feature = "postgres")]
    /// Notes an outage of the database, or its end, and logs the first note of each.
    pub(in crate::store) fn note_outage(&self, outage: Option<&Reason>) {
        let mut known = lock(&self.outage);
        match (&*known, outage) {
            (None, Some(reason)) => {
                let cause = reason.cause.code();
                tracing::error!(cause, error = %reason, "ledger database unreachable");
            }
            (Some(_), None) => tracing::info!("ledger database reached again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        *known = outage.cloned();
    }

    pub(super) fn is_starting(&self) -> bool {
        self.state.get().is_none()
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(self.state.get(), Some(Err(_)))
    }

    pub(super) fn open(&self) {
        let _ = self.state.set(Ok(()));
    }

    pub(super) fn close(&self, why: Unavailable) {
        let _ = self.state.set(Err(why));
    }

    /// Reports a fault to the writer, which sees it before its next write.
    pub(super) fn report_fault(&self, fault: StoreError) {
        let mut reported = lock(&self.fault);
        // Damage is reported once.
        if !matches!(*reported, Some(StoreError::Permanent(_))) {
            *reported = Some(fault);
        }
    }
}
