//! One verb on its way to the writer, and its answer on the way back.

use tokio::sync::oneshot;

use super::books::Books;
use super::fault::Fault;
use crate::store::{PurchaseId, Unavailable};

/// Whether a commit has to wait for the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Weight {
    /// It is about small money.
    Cheap,
    /// It is about a dear purchase.
    Dear,
    /// As dear as that purchase.
    Of(PurchaseId),
}

/// Something to be done inside a transaction. It may be run again when that was rolled back.
pub(super) trait Step: Send {
    fn weight(&self) -> Weight;

    fn run(&mut self, books: &Books) -> Result<(), Fault>;

    /// It alone was undone.
    fn failed(&mut self, why: Unavailable);

    /// Tells whoever waits, after the commit or what went wrong with it; gives back what nobody waits
    /// for and has to be tried again.
    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn Step>>;
}

/// A step that somebody waits for.
pub(super) struct Asked<T, F> {
    weight: Weight,
    verb: F,
    outcome: Option<Result<T, Unavailable>>,
    answer: oneshot::Sender<Result<T, Unavailable>>,
}

impl<T, F> Asked<T, F>
where
    T: Send + 'static,
    F: FnMut(&Books) -> Result<T, Fault> + Send + 'static,
{
    pub(super) fn step(
        weight: Weight,
        verb: F,
    ) -> (Box<dyn Step>, oneshot::Receiver<Result<T, Unavailable>>) {
        let (answer, answered) = oneshot::channel();
        (Box::new(Self { weight, verb, outcome: None, answer }), answered)
    }
}

impl<T, F> Step for Asked<T, F>
where
    T: Send + 'static,
    F: FnMut(&Books) -> Result<T, Fault> + Send + 'static,
{
    fn weight(&self) -> Weight {
        self.weight
    }

    fn run(&mut self, books: &Books) -> Result<(), Fault> {
        self.outcome = Some(Ok((self.verb)(books)?));
        Ok(())
    }

    fn failed(&mut self, why: Unavailable) {
        self.outcome = Some(Err(why));
    }

    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn Step>> {
        let undone = || Err(Unavailable("the step was not reached".into()));
        let outcome = match fault {
            Some(why) => Err(why.clone()),
            None => self.outcome.unwrap_or_else(undone),
        };
        // Whoever asked may have gone; a purchase that is left so is settled by its own guard.
        let _ = self.answer.send(outcome);
        None
    }
}

/// A step that nobody waits for.
pub(super) struct Noted<F> {
    weight: Weight,
    verb: F,
    is_undone: bool,
}

impl<F: FnMut(&Books) -> Result<(), Fault> + Send + 'static> Noted<F> {
    pub(super) fn step(weight: Weight, verb: F) -> Box<dyn Step> {
        Box::new(Self { weight, verb, is_undone: false })
    }
}

impl<F: FnMut(&Books) -> Result<(), Fault> + Send + 'static> Step for Noted<F> {
    fn weight(&self) -> Weight {
        self.weight
    }

    fn run(&mut self, books: &Books) -> Result<(), Fault> {
        self.is_undone = false;
        (self.verb)(books)
    }

    fn failed(&mut self, _why: Unavailable) {
        self.is_undone = true;
    }

    fn answer(self: Box<Self>, fault: Option<&Unavailable>) -> Option<Box<dyn Step>> {
        (self.is_undone || fault.is_some()).then_some(self)
    }
}
