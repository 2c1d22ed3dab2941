//! The store as the rest of the program holds it: where its steps run, and what stands before them.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{fmt, thread};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::books::Books;
use super::file::FileId;
use super::identity::Identity;
use super::reader::Reader;
use super::writer::{Admission, Step, Weight, Writer, awaited, noted};
use super::{Fault, Holder, lock};
use crate::store::{
    AccountLimit, Clock, Ending, Place, PurchaseId, Refused, Reservation, Unavailable,
};

/// Everything that a server remembers: purchases, jobs, members, and what was sent to the gateway.
/// Clones are the same store. Dropping the last one writes what is still queued, and waits for that.
#[derive(Clone)]
pub struct Store {
    pub(super) shared: Arc<Shared>,
    tap: Option<Arc<dyn Tap>>,
}

pub(super) struct Shared {
    /// Empty where there is no file.
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) name: Arc<str>,
    pub(super) steps: Steps,
    pub(super) admission: Admission,
    /// Which file it is, where a server sells from one.
    pub(super) identity: Option<(Identity, FileId)>,
    /// Where there is a file: else reports are read by the connection that writes.
    pub(super) reports: Option<Reader>,
    /// Something was sold against the balance, or refused for it.
    pub(super) was_used: AtomicBool,
    /// The limit that was noted last, written or not.
    pub(super) latest_limit: Arc<Mutex<Option<AccountLimit>>>,
}

pub(super) enum Steps {
    Nowhere,
    Inline(Box<Mutex<Writer>>),
    Thread { queue: mpsc::Sender<Box<dyn Step>>, writer: thread::JoinHandle<()> },
}

#[derive(Clone, Copy, Debug)]
pub enum Verb<'a> {
    Reserve(&'a Reservation),
    Sent(PurchaseId),
    Settle(PurchaseId, &'a Ending),
    SettleLater(PurchaseId, &'a Ending),
    Delivered(PurchaseId),
    Took(Place),
    Replied(Place),
    Unsent(Place),
    Other(&'static str),
}

pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a test puts between callers and a store: it delays verbs, refuses, watches or breaks them.
pub trait Tap: Send + Sync + 'static {
    fn before<'a>(&'a self, verb: Verb<'a>) -> Answer<'a, Result<(), Unavailable>>;

    fn after<'a>(&'a self, verb: Verb<'a>, outcome: &'a Result<(), Refused>) -> Answer<'a, ()>;

    /// Whether a verb that nobody waits for reaches the store.
    fn passes(&self, verb: Verb<'_>) -> bool;
}

impl Store {
    pub(super) fn over(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), tap: None }
    }

    #[doc(hidden)]
    #[must_use]
    pub fn tapped(&self, tap: Arc<dyn Tap>) -> Self {
        Self { shared: Arc::clone(&self.shared), tap: Some(tap) }
    }

    /// The wall-clock time as this store has it, which its records are stamped with.
    pub fn now(&self) -> Duration {
        (self.shared.clock)()
    }

    /// The public name of what it remembers: another one once purchases may have been forgotten.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.shared.name)
    }

    /// Whether it may lack purchases, as a backup does: found when it was opened.
    pub fn may_lack_purchases(&self) -> bool {
        self.shared.identity.as_ref().is_some_and(|(identity, _)| identity.forgets)
    }

    /// Where the server that has this store now is asked by operators, whichever process it is.
    pub fn served_by(&self) -> Option<Holder> {
        lock::served_by(&self.shared.path)
    }

    pub(super) fn may_begin(&self) -> Result<(), Unavailable> {
        if self.shared.admission.is_full.load(Ordering::Relaxed) {
            return Err(Unavailable("too many purchases wait to be recorded".into()));
        }
        Ok(())
    }

    pub(super) async fn ask<T: Send + 'static>(
        &self,
        verb: Verb<'_>,
        weight: Weight,
        step: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.around(verb, self.step_when_open(weight, step)).await
    }

    /// Runs a step that waits for a store that is being opened: a server's own questions at its start.
    pub(super) async fn ask_opening<T: Send + 'static>(
        &self,
        verb: &'static str,
        weight: Weight,
        step: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.around(Verb::Other(verb), self.step(weight, step)).await
    }

    /// Reads a report, so that no sale waits for it.
    pub(super) async fn report<T: Send + 'static>(
        &self,
        verb: &'static str,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let read = async {
            match (&self.shared.reports, &self.shared.steps) {
                (Some(reports), _) => reports.read(query).await,
                (None, Steps::Inline(writer)) => {
                    let writer = writer.lock().map_err(|_| broken())?;
                    query(writer.connection()).map_err(|error| Fault::from(error).unavailable())
                }
                (None, _) => Err(self.gone()),
            }
        };
        self.around(Verb::Other(verb), read).await
    }

    pub(super) fn note(
        &self,
        verb: Verb<'_>,
        weight: Weight,
        step: impl FnMut(&Books) -> Result<(), Fault> + Send + 'static,
    ) {
        if self.tap.as_ref().is_none_or(|tap| tap.passes(verb)) {
            self.send(noted(weight, step));
        }
    }

    pub(super) async fn around<T, E: Clone + From<Unavailable>>(
        &self,
        verb: Verb<'_>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E>
    where
        Refused: From<E>,
    {
        let Some(tap) = &self.tap else { return work.await };
        tap.before(verb).await?;
        let done = work.await;
        let outcome = done.as_ref().map(|_| ()).map_err(|error| error.clone().into());
        tap.after(verb, &outcome).await;
        done
    }

    pub(super) async fn step_when_open<T: Send + 'static>(
        &self,
        weight: Weight,
        step: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.shared.admission.pass()?;
        self.step(weight, step).await
    }

    async fn step<T: Send + 'static>(
        &self,
        weight: Weight,
        step: impl FnMut(&Books) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (step, answered) = awaited(weight, step);
        self.send(step);
        answered.await.unwrap_or_else(|oneshot::error::RecvError { .. }| Err(self.gone()))
    }

    fn send(&self, step: Box<dyn Step>) {
        // Where the writer is gone, the step goes with its answer, and whoever waits is told so.
        match &self.shared.steps {
            Steps::Nowhere => {}
            Steps::Inline(writer) => {
                if let Ok(mut writer) = writer.lock() {
                    writer.run_inline(step);
                }
            }
            Steps::Thread { queue, .. } => drop(queue.send(step)),
        }
    }

    fn gone(&self) -> Unavailable {
        self.shared.admission.pass().err().unwrap_or_else(broken)
    }
}

fn broken() -> Unavailable {
    Unavailable("the ledger's writer is gone".into())
}

/// However the file is called, it has one lock; and a process that changes its folder keeps its ledger.
pub(super) fn true_name(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.admission.stop.store(true, Ordering::Relaxed);
        // First: a connection that still reads would keep the write-ahead log from being emptied.
        drop(self.reports.take());
        match std::mem::replace(&mut self.steps, Steps::Nowhere) {
            Steps::Nowhere => {}
            Steps::Inline(writer) => {
                if let Ok(writer) = writer.into_inner() {
                    writer.finish();
                }
            }
            Steps::Thread { queue, writer } => {
                drop(queue);
                let _ = writer.join();
            }
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.shared.path).finish_non_exhaustive()
    }
}
