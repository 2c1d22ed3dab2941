//! Sends a transaction in one piece, COMMIT included, and tells what became of it.
//!
//! Locks are never held while a client thinks, is paused or is cut off: the server has the whole
//! transaction. This is the only file that sends COMMIT. In an aborted transaction, the server
//! answers COMMIT with ROLLBACK, which the client library reports as success. So each transaction
//! ends with `SELECT 1; COMMIT`, and counts as committed only if that row arrived.

use std::collections::{BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, SimpleQueryMessage};

use super::clock::{LedgerClock, SET_TEST_NOW};
use super::column::nanos;
use super::connect::PostgresConnection;
use super::step::{Need, Statement, Step, StepRows, Value, statement};
use crate::store::{Cause, Reason};

/// Locks the row that orders all changes of counters.
const MUTEX: &str = "SELECT 1 FROM account FOR UPDATE";
/// Divides by zero if an instance number of these steps was declared dead, or the schema has moved
/// on. The lock keeps a burial out until the transaction ends, and lets heartbeats pass.
const GUARD: &str =
    "WITH me AS (SELECT 1 FROM instances WHERE id = ANY($1) AND ended IS NULL FOR KEY SHARE),
        fits AS (SELECT 1 FROM store WHERE floor <= $2)
    SELECT 1 / (((SELECT count(*) FROM me) = cardinality($1))::int * (SELECT count(*) FROM fits))";
const SET_QUIET: &str = "SET LOCAL synchronous_commit = off";

/// A connection, and the statements that it has prepared.
pub(super) struct PreparedConnection {
    connection: PostgresConnection,
    prepared: HashMap<&'static str, tokio_postgres::Statement>,
    clock: Arc<LedgerClock>,
}

/// How the transactions of a lane begin, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    /// In metrics.
    pub(super) name: &'static str,
    pub(super) begin: &'static str,
    pub(super) patience: Duration,
    /// Whether purchases depend on this lane.
    pub(super) sells: bool,
    /// Whether a connection is used only after the ledger's cluster was compared.
    pub(super) checks_cluster: bool,
    /// If set, the lane connects when it is used, and closes after this long without a step.
    pub(super) max_idle: Option<Duration>,
}

#[derive(Debug)]
pub(super) enum FlushError {
    /// Rolled back. `is_passing`: the same transaction may succeed at once.
    RolledBack { reason: Reason, is_passing: bool },
    /// Rolled back, because this instance was declared dead.
    Buried,
    /// The connection is gone, and so is the knowledge whether it was committed.
    Doubt(Reason),
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + Send + 'a>>;

impl PreparedConnection {
    pub(super) fn new(connection: PostgresConnection, clock: Arc<LedgerClock>) -> Self {
        Self { connection, prepared: HashMap::new(), clock }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    pub(super) async fn close(self) {
        self.connection.close().await;
    }

    /// Runs all steps in one transaction, and returns the rows of each, in the order of the steps.
    ///
    /// # Errors
    ///
    /// After [`FlushError::Doubt`], the session must be dropped.
    pub(super) async fn flush(
        &mut self,
        course: Course,
        version: i32,
        steps: &[Step],
    ) -> Result<Vec<StepRows>, FlushError> {
        let plan = Plan::new(version, steps);
        let work = async {
            for statement in plan.statements() {
                self.prepare(statement.sql).await.map_err(|error| classify(error, false))?;
            }
            self.send(course, &plan).await
        };
        match timeout(course.patience, work).await {
            Ok(done) => done.map(|rows| plan.sort(rows, steps)),
            Err(_elapsed) => {
                let why = Reason::new(Cause::Unreachable, "the database does not answer");
                Err(FlushError::Doubt(why))
            }
        }
    }

    async fn prepare(&mut self, sql: &'static str) -> Result<(), Error> {
        if !self.prepared.contains_key(sql) {
            let prepared = self.connection.client.prepare(&self.clock.fill_in(sql)).await?;
            self.prepared.insert(sql, prepared);
        }
        Ok(())
    }

    async fn send(&self, course: Course, plan: &Plan<'_>) -> Result<Vec<Vec<Row>>, FlushError> {
        let client = &self.connection.client;
        let mut sent: Vec<Sent<'_>> = vec![batch(client, course.begin)];
        if plan.is_quiet {
            sent.push(batch(client, SET_QUIET));
        }
        let prefix = sent.len();
        for statement in plan.statements() {
            let Some(prepared) = self.prepared.get(statement.sql) else { continue };
            sent.push(query(client, prepared, &statement.values));
        }
        sent.push(Box::pin(commit(client)));
        match in_order(sent).await {
            Ok(mut rows) => {
                rows.pop();
                Ok(rows.split_off(prefix))
            }
            Err((error, at)) => {
                let failure = classify(error, plan.is_guarded && at == prefix);
                if !matches!(failure, FlushError::Doubt(_)) {
                    let rollback = client.batch_execute("ROLLBACK").await;
                    rollback.map_err(|error| FlushError::Doubt(error.into()))?;
                }
                Err(failure)
            }
        }
    }

    /// Runs statements that make or change tables, in one transaction.
    pub(super) async fn run_script(&self, script: &str) -> Result<(), Error> {
        let client = &self.connection.client;
        let done = client.batch_execute(&format!("BEGIN; {script}; COMMIT")).await;
        if done.is_err() {
            client.batch_execute("ROLLBACK").await.ok();
        }
        done
    }

    /// Runs one statement outside of a transaction.
    pub(super) async fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Error> {
        let prepared = self.connection.client.prepare(&self.clock.fill_in(sql)).await?;
        query(&self.connection.client, &prepared, values).await
    }
}

/// The statements of a transaction in the order in which they are sent.
struct Plan<'a> {
    own: Vec<Statement>,
    /// Positions of the steps, those that change counters last.
    order: Vec<usize>,
    steps: &'a [Step],
    stamps: Vec<Option<Statement>>,
    is_guarded: bool,
    is_quiet: bool,
    /// How many of the steps in `order` run before the mutex is taken.
    before_mutex: usize,
    /// The position of the step whose prologue runs after the mutex is taken.
    prologue_of: Option<usize>,
}

impl<'a> Plan<'a> {
    fn new(version: i32, steps: &'a [Step]) -> Self {
        let mut order: Vec<_> = (0..steps.len()).collect();
        let counts = |at: &usize| steps.get(*at).is_some_and(|step| step.need == Need::Counting);
        order.sort_by_key(counts);
        let before_mutex = order.iter().filter(|at| !counts(at)).count();
        // After a burial, steps of two numbers may meet.
        let numbers: BTreeSet<_> = steps.iter().filter_map(|step| step.guard).collect();
        let is_guarded = !numbers.is_empty();
        let is_quiet = steps.iter().all(|step| step.need == Need::Quiet);
        let guard = statement!(GUARD, numbers.into_iter().collect::<Vec<_>>(), version);
        let own = vec![guard, statement!(MUTEX)];
        let stamp =
            |step: &Step| step.stamp.0.map(|now| statement!(SET_TEST_NOW, nanos(now).to_string()));
        let stamps = steps.iter().map(stamp).collect();
        let ends_slots = steps.iter().any(|step| step.ends_slots);
        let has_prologue = |step: &Step| !step.prologue.is_empty() && !ends_slots;
        let prologue_of = steps.iter().rposition(has_prologue);
        Self { own, order, steps, stamps, is_guarded, is_quiet, before_mutex, prologue_of }
    }

    /// Returns the statements that run once, before the steps that change counters.
    fn prologue(&self) -> impl Iterator<Item = &Statement> {
        let at = self.prologue_of.filter(|_| self.before_mutex < self.order.len());
        let stamp = at.and_then(|at| self.stamps.get(at)?.as_ref());
        let statements = at.and_then(|at| self.steps.get(at)).map(|step| &step.prologue);
        stamp.into_iter().chain(statements.into_iter().flatten())
    }

    fn statements(&self) -> impl Iterator<Item = &Statement> {
        let guard = self.own.first().filter(|_| self.is_guarded);
        let mutex = self.own.get(1).filter(|_| self.before_mutex < self.order.len());
        let (before, after) = self.order.split_at(self.before_mutex);
        let of = |at: &usize| {
            let stamp = self.stamps.get(*at).and_then(Option::as_ref);
            let statements = self.steps.get(*at).map(|step| &step.statements);
            stamp.into_iter().chain(statements.into_iter().flatten())
        };
        let before = before.iter().flat_map(of);
        let after = self.prologue().chain(after.iter().flat_map(of));
        guard.into_iter().chain(before).chain(mutex).chain(after)
    }

    /// Gives each step its rows.
    fn sort(&self, rows: Vec<Vec<Row>>, steps: &[Step]) -> Vec<StepRows> {
        let mut rows = rows.into_iter().skip(usize::from(self.is_guarded));
        let mut sorted: Vec<StepRows> = steps.iter().map(|_| Vec::new()).collect();
        for (position, at) in self.order.iter().enumerate() {
            if position == self.before_mutex {
                rows.by_ref().take(1 + self.prologue().count()).for_each(drop);
            }
            let (Some(step), Some(place)) = (steps.get(*at), sorted.get_mut(*at)) else { continue };
            if self.stamps.get(*at).is_some_and(Option::is_some) {
                rows.next();
            }
            place.extend(rows.by_ref().take(step.statements.len()));
        }
        sorted
    }
}

fn batch<'a>(client: &'a Client, sql: &'static str) -> Sent<'a> {
    Box::pin(async move { client.batch_execute(sql).await.map(|()| Vec::new()) })
}

fn query<'a>(
    client: &'a Client,
    prepared: &'a tokio_postgres::Statement,
    values: &'a [Value],
) -> Sent<'a> {
    Box::pin(async move {
        let values: Vec<&(dyn ToSql + Sync)> =
            values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        client.query(prepared, &values).await
    })
}

async fn commit(client: &Client) -> Result<Vec<Row>, Error> {
    let answers = client.simple_query("SELECT 1; COMMIT").await?;
    // An aborted transaction fails at the SELECT, so COMMIT is not reached.
    debug_assert!(answers.iter().any(|answer| matches!(answer, SimpleQueryMessage::Row(_))));
    Ok(Vec::new())
}

/// Sends all in order, then waits for all. Returns the first error, and whose it is.
///
/// If one cannot be sent, those after it are not sent either, COMMIT among them.
async fn in_order(mut sent: Vec<Sent<'_>>) -> Result<Vec<Vec<Row>>, (Error, usize)> {
    let mut early = Vec::with_capacity(sent.len());
    for one in &mut sent {
        let polled = poll_fn(|context| Poll::Ready(one.as_mut().poll(context))).await;
        let is_unsent = matches!(polled, Poll::Ready(Err(_)));
        early.push(polled);
        if is_unsent {
            break;
        }
    }
    let mut rows = Vec::with_capacity(sent.len());
    let mut first = None;
    for (at, (polled, one)) in early.into_iter().zip(sent).enumerate() {
        let done = match polled {
            Poll::Ready(done) => done,
            Poll::Pending => one.await,
        };
        match done {
            Ok(found) => rows.push(found),
            Err(error) if first.is_none() => first = Some((error, at)),
            Err(_) => {}
        }
    }
    first.map_or(Ok(rows), Err)
}

fn classify(error: Error, is_guard: bool) -> FlushError {
    // Anything else than an answer of the server leaves the connection in an unknown state.
    let Some(answer) = error.as_db_error() else { return FlushError::Doubt(error.into()) };
    let is_fatal =
        matches!(answer.parsed_severity(), Some(Severity::Fatal | Severity::Panic) | None);
    let passing = [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE];
    let is_passing = passing.contains(answer.code());
    if is_fatal {
        FlushError::Doubt(error.into())
    } else if is_guard && answer.code() == &SqlState::DIVISION_BY_ZERO {
        FlushError::Buried
    } else {
        FlushError::RolledBack { reason: error.into(), is_passing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_that_ends_slots_leaves_the_rate_limit_to_others() {
        let hold = || {
            Step::new(Need::Counting, vec![statement!("hold")])
                .preceded_by(vec![statement!("lock the rate limit"), statement!("count")])
        };
        let bury = || Step::new(Need::Counting, vec![statement!("bury")]).ending_slots();
        let sent = |steps: &[Step]| {
            let plan = Plan::new(1, steps);
            plan.statements().map(|statement| statement.sql).collect::<Vec<_>>()
        };
        assert_eq!(sent(&[hold()]), [MUTEX, "lock the rate limit", "count", "hold"]);
        assert_eq!(sent(&[hold(), bury(), hold()]), [MUTEX, "hold", "bury", "hold"]);
    }
}
