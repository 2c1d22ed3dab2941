//! Work for the writer, with or without a reply.

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Result;
use super::ledger::Ledger;
use crate::store::{PurchaseId, Unavailable};

#[derive(Clone, Copy, Debug)]
pub(super) enum Durability {
    Buffered,
    Synced,
    OfPurchase(PurchaseId),
}

/// Work inside a transaction. It may run again after a rollback.
pub(super) trait WriteCommand: Send {
    fn durability(&self) -> Durability;

    fn run(&mut self, ledger: &Ledger) -> Result<()>;

    /// Returns whether it takes microseconds, so that its caller's thread may run it.
    fn is_brief(&self) -> bool;

    fn set_brief(&mut self);

    /// Returns where the caller waits, if it waits in a runtime.
    fn runtime(&self) -> Option<&Handle>;

    /// Replies after the commit or the fault. Returns the command if it has to be retried.
    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>>;
}

type Answer<T> = Result<T, Unavailable>;

struct Task<T, F> {
    durability: Durability,
    is_brief: bool,
    work: F,
    outcome: Option<Answer<T>>,
    answer: Option<oneshot::Sender<Answer<T>>>,
    runtime: Option<Handle>,
}

/// A command whose caller waits for a reply.
pub(super) fn request<T: Send + 'static>(
    durability: Durability,
    work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
) -> (Box<dyn WriteCommand>, oneshot::Receiver<Answer<T>>) {
    let (answer, answered) = oneshot::channel();
    let (answer, runtime) = (Some(answer), Handle::try_current().ok());
    let task = Task { durability, is_brief: false, work, outcome: None, answer, runtime };
    (Box::new(task), answered)
}

/// A command without a reply. It is retried until it succeeds.
pub(super) fn notification(
    durability: Durability,
    work: impl FnMut(&Ledger) -> Result<()> + Send + 'static,
) -> Box<dyn WriteCommand> {
    let (outcome, answer, runtime) = (None, None, None);
    Box::new(Task { durability, is_brief: false, work, outcome, answer, runtime })
}

/// Replies to the callers of a batch, and returns the commands that have to be retried.
///
/// Each wake-up from another thread costs a system call. So the callers of one runtime are woken by
/// a task of theirs.
pub(super) fn answer(
    batch: Vec<Box<dyn WriteCommand>>,
    fault: Option<&Unavailable>,
) -> Vec<Box<dyn WriteCommand>> {
    let mut undone = Vec::new();
    let mut callers: Vec<(Handle, Vec<Box<dyn WriteCommand>>)> = Vec::new();
    for command in batch {
        let Some(runtime) = command.runtime() else {
            undone.extend(command.answer(fault));
            continue;
        };
        match callers.iter_mut().find(|(known, _)| known.id() == runtime.id()) {
            Some((_, commands)) => commands.push(command),
            None => callers.push((runtime.clone(), vec![command])),
        }
    }
    for (runtime, commands) in callers {
        let fault = fault.cloned();
        let is_single = commands.len() == 1;
        let reply = move || commands.into_iter().for_each(|one| drop(one.answer(fault.as_ref())));
        if is_single {
            reply();
        } else {
            runtime.spawn(async move { reply() });
        }
    }
    undone
}

impl<T, F> WriteCommand for Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&Ledger) -> Result<T> + Send + 'static,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_brief(&self) -> bool {
        self.is_brief
    }

    fn set_brief(&mut self) {
        self.is_brief = true;
    }

    fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    fn run(&mut self, ledger: &Ledger) -> Result<()> {
        let (outcome, done) = match (self.work)(ledger) {
            Ok(value) => (Ok(value), Ok(())),
            Err(fault) => (Err(fault.unavailable()), Err(fault)),
        };
        self.outcome = Some(outcome);
        done
    }

    fn answer(mut self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>> {
        let undone = || Err(Unavailable("the command was not run".into()));
        let outcome = match fault {
            Some(why) => Err(why.clone()),
            None => self.outcome.take().unwrap_or_else(undone),
        };
        match self.answer.take() {
            Some(answer) => {
                // The caller may be gone; its purchase is settled by its own guard.
                let _ = answer.send(outcome);
                None
            }
            None => outcome.is_err().then_some(self),
        }
    }
}
