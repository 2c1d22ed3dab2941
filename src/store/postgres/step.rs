//! What a lane sends: statements with their values, and where the rows go.

use tokio::sync::oneshot;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::clock::ClockStamp;
use crate::store::{PurchaseId, Unavailable};

pub(super) type Value = Box<dyn ToSql + Send + Sync>;
/// The rows of each statement of a step.
pub(super) type StepRows = Vec<Vec<Row>>;
pub(super) type StepResult = Result<StepRows, Unavailable>;

/// SQL and its values. In the SQL, `{now}` is the ledger's time; it is prepared once.
pub(super) struct Statement {
    pub(super) sql: &'static str,
    pub(super) values: Vec<Value>,
}

/// Boxes the values of a statement.
macro_rules! statement {
    ($sql:expr $(, $value:expr)* $(,)?) => {
        $crate::store::postgres::step::Statement { sql: $sql, values: vec![$(Box::new($value)),*] }
    };
}
pub(super) use statement;

/// What a transaction needs for a step, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// May be lost in a crash of the database, and waits up to a second for other steps.
    Quiet,
    /// Durable, and changes no counter.
    Plain,
    /// Changes counters: runs under the account's row, after all steps that do not.
    Counting,
}

/// Statements that run in one transaction, in order, and may run again after a rollback.
pub(super) struct Step {
    pub(super) statements: Vec<Statement>,
    /// Statements that run once in the transaction, under the account's row and before each step
    /// that changes counters. Of several steps, those of the last apply to all. They are left out if a
    /// step of the transaction ends slots.
    pub(super) prologue: Vec<Statement>,
    pub(super) need: Need,
    /// Whether it ends slots, on the sales lane. The marks lanes lock slots and the rate limit in any
    /// order, so its transaction does not lock the rate limit, too.
    pub(super) ends_slots: bool,
    /// The number of this instance when the step was made, if the step is refused once others have
    /// ended it. Facts about the gateway are never refused.
    pub(super) guard: Option<i64>,
    pub(super) effect: Effect,
    pub(super) stamp: ClockStamp,
    /// `None` for a notification, which is retried until it succeeds.
    pub(super) answer: Option<oneshot::Sender<StepResult>>,
}

/// Which purchase of this instance a step begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Begins(PurchaseId),
    Ends(PurchaseId),
}

impl Step {
    pub(super) fn new(need: Need, statements: Vec<Statement>) -> Self {
        let (effect, stamp) = (Effect::None, ClockStamp::default());
        let prologue = Vec::new();
        let (guard, answer) = (None, None);
        let ends_slots = false;
        Self { statements, prologue, need, ends_slots, guard, effect, stamp, answer }
    }

    pub(super) fn plain(statement: Statement) -> Self {
        Self::new(Need::Plain, vec![statement])
    }

    #[must_use]
    pub(super) fn guarded(self, instance: i64) -> Self {
        Self { guard: Some(instance), ..self }
    }

    #[must_use]
    pub(super) fn ending_slots(self) -> Self {
        Self { ends_slots: true, ..self }
    }

    #[must_use]
    pub(super) fn preceded_by(self, prologue: Vec<Statement>) -> Self {
        Self { prologue, ..self }
    }

    #[must_use]
    pub(super) fn with_effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// Replies to the caller. Returns the step if it has to be retried.
    pub(super) fn answer(mut self, result: StepResult) -> Option<Self> {
        match self.answer.take() {
            Some(answer) => {
                // The caller may be gone; its purchase is settled by its own guard.
                answer.send(result).ok();
                None
            }
            None => result.is_err().then_some(self),
        }
    }
}
