//! Work for the writer, with or without a reply.

use tokio::sync::oneshot;

use crate::ledger::engine::Result;
use crate::ledger::tables::Ledger;
use crate::ledger::{PurchaseId, Unavailable};

#[derive(Clone, Copy, Debug)]
pub(in crate::ledger) enum Durability {
    Buffered,
    Synced,
    OfPurchase(PurchaseId),
}

/// Work inside a transaction. It may run again after a rollback.
pub(in crate::ledger) trait WriteCommand: Send {
    fn durability(&self) -> Durability;

    fn run(&mut self, ledger: &Ledger) -> Result<()>;

    /// Replies after the commit or the fault. Returns the command if it has to be retried.
    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>>;
}

type Answer<T> = Result<T, Unavailable>;

struct Task<T, F> {
    durability: Durability,
    work: F,
    outcome: Option<T>,
    answer: Option<oneshot::Sender<Answer<T>>>,
}

/// A command whose caller waits for a reply.
pub(in crate::ledger) fn request<T: Send + 'static>(
    durability: Durability,
    work: impl FnMut(&Ledger) -> Result<T> + Send + 'static,
) -> (Box<dyn WriteCommand>, oneshot::Receiver<Answer<T>>) {
    let (answer, answered) = oneshot::channel();
    let task = Task { durability, work, outcome: None, answer: Some(answer) };
    (Box::new(task), answered)
}

/// A command without a reply. It is retried until it succeeds.
pub(in crate::ledger) fn notification(
    durability: Durability,
    work: impl FnMut(&Ledger) -> Result<()> + Send + 'static,
) -> Box<dyn WriteCommand> {
    Box::new(Task { durability, work, outcome: None, answer: None })
}

impl<T, F> WriteCommand for Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&Ledger) -> Result<T> + Send + 'static,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn run(&mut self, ledger: &Ledger) -> Result<()> {
        self.outcome = Some((self.work)(ledger)?);
        Ok(())
    }

    fn answer(mut self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn WriteCommand>> {
        let undone = || Unavailable("the command was not run".into());
        let outcome = match fault {
            Some(why) => Err(why.clone()),
            None => self.outcome.take().ok_or_else(undone),
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
