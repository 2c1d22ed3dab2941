//! The state that callers and the writer's thread share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use crate::ledger::engine::StoreError;
use crate::ledger::{Cause, Reason, Unavailable};
use crate::metrics::Histogram;
use crate::sync::lock;

#[derive(Clone)]
pub(in crate::ledger) struct CommandGate {
    state: Arc<OnceLock<Result<(), Unavailable>>>,
    pub(in crate::ledger) is_retry_queue_full: Arc<AtomicBool>,
    /// The disk was full, and no probe has found space since.
    pub(in crate::ledger) is_disk_full: Arc<AtomicBool>,
    pub(in crate::ledger) stop: Arc<AtomicBool>,
    /// Notified when purchases have ended.
    pub(in crate::ledger) ends: Arc<Notify>,
    pub(in crate::ledger) commits: Histogram,
    /// Found by another thread; the writer has not seen it yet.
    pub(in crate::ledger) fault: Arc<Mutex<Option<StoreError>>>,
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
    pub(in crate::ledger) fn opened() -> Self {
        let gate = Self::default();
        gate.open();
        gate
    }

    pub(in crate::ledger) fn check(&self) -> Result<(), Unavailable> {
        let starting = || {
            let why = "starting: the ledger is being opened";
            Err(Unavailable(Reason::new(Cause::Starting, why)))
        };
        self.state.get().cloned().unwrap_or_else(starting)?;
        lock(&self.outage).clone().map_or(Ok(()), |reason| Err(Unavailable(reason)))
    }

    #[cfg(feature = "postgres")]
    pub(in crate::ledger) fn is_reached(&self) -> bool {
        lock(&self.outage).is_none()
    }

    #[cfg(feature = "postgres")]
    /// Notes an outage of the database, or its end, and logs the first note of each.
    pub(in crate::ledger) fn note_outage(&self, outage: Option<&Reason>) {
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

    pub(in crate::ledger) fn is_starting(&self) -> bool {
        self.state.get().is_none()
    }

    pub(in crate::ledger) fn has_failed(&self) -> bool {
        matches!(self.state.get(), Some(Err(_)))
    }

    pub(in crate::ledger) fn open(&self) {
        let _ = self.state.set(Ok(()));
    }

    pub(in crate::ledger) fn close(&self, why: Unavailable) {
        let _ = self.state.set(Err(why));
    }

    /// Reports a fault to the writer, which sees it before its next write.
    pub(in crate::ledger) fn report_fault(&self, fault: StoreError) {
        let mut reported = lock(&self.fault);
        // Damage is reported once.
        if !matches!(*reported, Some(StoreError::Permanent(_))) {
            *reported = Some(fault);
        }
    }
}
