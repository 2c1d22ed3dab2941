//! A connection with a queue. While one transaction is under way, the next one fills: steps of
//! many callers share a COMMIT.

use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout};

use super::cluster::check_cluster;
use super::connect::connect;
use super::flush::{Course, FlushError, PreparedConnection};
use super::shared::Shared;
use super::step::{Effect, Need, Step, StepResult, StepRows};
use super::{schema, settle};
use crate::clock::{self, Instant};
use crate::store::{Cause, Reason, Unavailable};
use crate::sync::lock;

const MAX_STEPS: usize = 64;
const MAX_DEFERRAL: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(500);
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Notifications that may wait for a retry. Beyond it no purchase begins until half are done.
const MAX_RETRIES: usize = 10_000;

/// The sending side of a lane.
pub(super) type LaneQueue = mpsc::UnboundedSender<Step>;

pub(super) struct Lane {
    course: Course,
    shared: Arc<Shared>,
    queue: mpsc::UnboundedReceiver<Step>,
    stop: watch::Receiver<bool>,
    is_open: bool,
    session: Option<PreparedConnection>,
    retries: VecDeque<Step>,
    next_retry: Instant,
    /// A notification has failed, and none has succeeded since.
    is_failing: bool,
}

impl Lane {
    pub(super) fn new(
        shared: &Arc<Shared>,
        course: Course,
        stop: watch::Receiver<bool>,
    ) -> (LaneQueue, Self) {
        let (sender, queue) = mpsc::unbounded_channel();
        let lane = Self {
            course,
            shared: Arc::clone(shared),
            queue,
            stop,
            is_open: true,
            session: None,
            retries: VecDeque::new(),
            next_retry: clock::now(),
            is_failing: false,
        };
        (sender, lane)
    }

    /// Runs until it is stopped and its queue is empty. Returns the connection, if it has one.
    pub(super) async fn run(mut self) -> Option<PreparedConnection> {
        loop {
            if self.session.is_none() && self.course.max_idle.is_none() && !self.connect().await {
                break;
            }
            let Some(batch) = self.next_batch().await else { break };
            match self.connect_for(&batch).await {
                Ok(()) => self.process(batch).await,
                Err(reason) => batch.into_iter().for_each(|step| self.refuse(step, &reason)),
            }
        }
        let last: Vec<_> = self.retries.drain(..).collect();
        if !last.is_empty() {
            self.process(last).await;
        }
        if !self.retries.is_empty() {
            tracing::error!(lost = self.retries.len(), "ledger writes lost at shutdown");
        }
        self.session
    }

    /// Connects, however often it takes. Returns false if it failed after the lane was stopped.
    async fn connect(&mut self) -> bool {
        let (mut delay, mut outage) = (Duration::ZERO, None::<Reason>);
        loop {
            let (shared, course) = (Arc::clone(&self.shared), self.course);
            let attempt = async move {
                sleep(delay).await;
                open(&shared, course).await
            };
            tokio::pin!(attempt);
            let attempted = loop {
                tokio::select! {
                    attempted = &mut attempt => break attempted,
                    () = stopped(&mut self.stop), if self.is_open => self.close(),
                    // The first attempt may succeed soon: until it fails, steps wait.
                    Some(step) = self.queue.recv(), if outage.is_some() => {
                        if let Some(why) = &outage {
                            self.refuse(step, why);
                        }
                    }
                }
            };
            match attempted {
                Ok(session) => {
                    self.session = Some(session);
                    self.note_outage(None);
                    return true;
                }
                Err(reason) => {
                    self.note_outage(Some(&reason));
                    if !self.is_open {
                        while let Ok(step) = self.queue.try_recv() {
                            self.refuse(step, &reason);
                        }
                        return false;
                    }
                    outage = Some(reason);
                    delay = (delay * 2).clamp(MIN_RECONNECT_DELAY, MAX_RECONNECT_DELAY);
                }
            }
        }
    }

    /// Connects a lane that is connected only while it is used.
    async fn connect_for(&mut self, batch: &[Step]) -> Result<(), Reason> {
        let is_connected = self.session.as_ref().is_some_and(|session| !session.is_closed());
        let needs_none = batch.iter().all(|step| step.statements.is_empty());
        if self.course.max_idle.is_none() || is_connected || needs_none {
            return Ok(());
        }
        self.session = Some(open(&self.shared, self.course).await?);
        Ok(())
    }

    /// Takes no more steps. Those that are queued are still sent.
    fn close(&mut self) {
        self.queue.close();
        self.is_open = false;
    }

    /// Returns queued steps, or the retries if they are due. The two are not mixed, so that a
    /// failing step delays no other.
    async fn next_batch(&mut self) -> Option<Vec<Step>> {
        let first = loop {
            let is_due = !self.retries.is_empty() && self.next_retry <= clock::now();
            if is_due {
                return Some(self.retries.drain(..).collect());
            }
            let next_retry = self.next_retry;
            let max_idle = self.course.max_idle.filter(|_| self.session.is_some());
            tokio::select! {
                first = self.queue.recv() => break first?,
                () = stopped(&mut self.stop), if self.is_open => self.close(),
                () = sleep_until(next_retry), if !self.retries.is_empty() => {}
                () = sleep(max_idle.unwrap_or_default()), if max_idle.is_some() => {
                    if let Some(session) = self.session.take() {
                        session.close().await;
                    }
                }
            }
        };
        let (mut is_quiet, mut batch) = (first.need == Need::Quiet, vec![first]);
        let deadline = clock::now() + MAX_DEFERRAL;
        while batch.len() < MAX_STEPS {
            let next = match self.queue.try_recv() {
                Ok(next) => next,
                // Quiet steps wait for company.
                Err(_) if is_quiet && self.is_open => tokio::select! {
                    Some(next) = self.queue.recv() => next,
                    () = stopped(&mut self.stop) => break,
                    () = sleep_until(deadline) => break,
                },
                Err(_) => break,
            };
            is_quiet &= next.need == Need::Quiet;
            batch.push(next);
        }
        Some(batch)
    }

    /// If a transaction is rolled back, each of its steps runs alone, once.
    async fn process(&mut self, batch: Vec<Step>) {
        match self.flush(&batch).await {
            Ok(rows) => {
                for (step, rows) in batch.into_iter().zip(rows) {
                    self.finish(step, Ok(rows));
                }
            }
            Err(FlushError::Doubt(why)) => {
                for step in batch {
                    self.doubt(step, &why);
                }
            }
            Err(FlushError::RolledBack { is_passing: false, reason }) if batch.len() == 1 => {
                for step in batch {
                    self.finish(step, Err(Unavailable(reason.clone())));
                }
            }
            Err(FlushError::RolledBack { .. } | FlushError::Buried) => {
                for step in batch {
                    self.process_alone(step).await;
                }
            }
        }
        self.limit_retries();
    }

    async fn process_alone(&mut self, step: Step) {
        match self.flush(slice::from_ref(&step)).await {
            Ok(rows) => self.finish(step, Ok(rows.into_iter().next().unwrap_or_default())),
            Err(FlushError::RolledBack { reason, .. }) => {
                self.finish(step, Err(Unavailable(reason)));
            }
            Err(FlushError::Buried) => {
                let why = "this instance was declared dead; it joins again";
                self.finish(step, Err(Unavailable(Reason::new(Cause::DeclaredDead, why))));
            }
            Err(FlushError::Doubt(why)) => self.doubt(step, &why),
        }
    }

    async fn flush(&mut self, steps: &[Step]) -> Result<Vec<StepRows>, FlushError> {
        let Some(session) = &mut self.session else {
            let why = Reason::from("the connection to the database was lost");
            return Err(FlushError::RolledBack { reason: why, is_passing: false });
        };
        // Steps without statements only wait for those before them.
        if steps.iter().all(|step| step.statements.is_empty()) {
            return Ok(steps.iter().map(|_| StepRows::new()).collect());
        }
        let begun = clock::now();
        let done = session.flush(self.course, schema::NEWEST, steps).await;
        match &done {
            Ok(_) => {
                let took = clock::now().saturating_duration_since(begun);
                self.shared.commits.observe(took);
                self.shared.metrics.count_flush(self.course.name, steps.len(), took);
            }
            Err(FlushError::Buried) => self.shared.buried.notify_one(),
            Err(FlushError::Doubt(why)) => {
                self.session = None;
                self.note_outage(Some(why));
            }
            Err(FlushError::RolledBack { .. }) => {
                if session.is_closed() {
                    self.session = None;
                }
            }
        }
        done
    }

    fn note_outage(&self, outage: Option<&Reason>) {
        if self.course.sells {
            self.shared.note_outage(outage);
        }
    }

    fn finish(&mut self, step: Step, result: StepResult) {
        match (step.effect, &result) {
            (Effect::Begins(id), Ok(_)) => self.shared.held(id),
            (Effect::Begins(id), Err(_)) => self.shared.end(id),
            (Effect::Ends(id), Ok(rows)) => {
                settle::check(&self.shared, id, rows);
                self.shared.end(id);
            }
            (Effect::Ends(_), Err(_)) | (Effect::None, _) => {}
        }
        if step.answer.is_none() {
            let was_failing = std::mem::replace(&mut self.is_failing, result.is_err());
            if let (Err(why), false) = (&result, was_failing) {
                let cause = why.0.cause.code();
                tracing::error!(cause, error = %why, "ledger write failed");
            }
        }
        self.retry(step.answer(result));
    }

    /// The step may be committed or not. A notification runs again, which changes nothing if it was
    /// committed. A hold is released: its caller has not sent it.
    fn doubt(&mut self, step: Step, why: &Reason) {
        if let Effect::Begins(id) = step.effect {
            lock(&self.shared.running).doubtful.insert(id, clock::now());
            self.retry(Some(settle::release(&self.shared, id)));
        }
        self.retry(step.answer(Err(Unavailable(why.clone()))));
    }

    fn refuse(&mut self, step: Step, why: &Reason) {
        if let Effect::Begins(id) = step.effect {
            self.shared.end(id);
        }
        self.retry(step.answer(Err(Unavailable(why.clone()))));
    }

    fn retry(&mut self, step: Option<Step>) {
        if step.is_some() {
            self.next_retry = clock::now() + RETRY_DELAY;
        }
        self.retries.extend(step);
    }

    /// Running purchases may still add to the list, but no new one begins. So it is bounded, and
    /// loses nothing.
    fn limit_retries(&self) {
        let (waiting, is_full) = (self.retries.len(), &self.shared.is_retry_queue_full);
        if waiting >= MAX_RETRIES && !is_full.swap(true, Ordering::Relaxed) {
            tracing::error!(waiting, "ledger retry queue full; purchases blocked");
        } else if waiting <= MAX_RETRIES / 2 && is_full.swap(false, Ordering::Relaxed) {
            tracing::info!(waiting, "ledger retry queue drained; purchases resumed");
        }
    }
}

/// Connects. A lane that sells, and that of heartbeats, first learn whether another cluster has taken
/// over. So nothing is sold from a ledger that has lost purchases without a new name, and the heartbeat
/// that finds the same loss renames it no second time.
async fn open(shared: &Shared, course: Course) -> Result<PreparedConnection, Reason> {
    let connection = connect(&shared.target).await?;
    let session = PreparedConnection::new(connection, Arc::clone(&shared.clock));
    if course.checks_cluster && !shared.target.reads_only {
        let checked = timeout(course.patience, check_cluster(&session, &shared.target)).await;
        let name = checked.unwrap_or_else(|_elapsed| {
            Err(Reason::new(Cause::Unreachable, "the database does not answer"))
        })?;
        *lock(&shared.name) = name.into();
    }
    Ok(session)
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // If the sender is gone, the store is, too.
    stop.wait_for(|stop| *stop).await.ok();
}
