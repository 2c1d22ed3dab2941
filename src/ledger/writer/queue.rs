//! The queue of the writer's thread.
//!
//! A transaction costs about ten system calls, so a caller lets others add their commands before it
//! releases what is queued.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::yield_now;

use super::command::WriteCommand;
use crate::sync::lock;

#[derive(Default)]
pub(in crate::ledger) struct CommandQueue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Box<dyn WriteCommand>>,
    is_released: bool,
    is_closed: bool,
    /// The writer has ended.
    is_abandoned: bool,
}

/// Releases what is queued to the writer when it is dropped.
#[must_use]
pub(in crate::ledger) struct Release<'a>(&'a CommandQueue);

impl Release<'_> {
    /// Lets other tasks of this runtime add commands: those that are ready, and then those that these
    /// wake.
    pub(in crate::ledger) async fn gather(self) {
        for _ in 0..2 {
            yield_now().await;
        }
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        let is_new = !state.commands.is_empty() && !mem::replace(&mut state.is_released, true);
        drop(state);
        if is_new {
            self.0.filled.notify_one();
        }
    }
}

impl CommandQueue {
    /// Adds a command, which the result releases.
    pub(in crate::ledger) fn push(&self, command: Box<dyn WriteCommand>) -> Release<'_> {
        lock(&self.state).add(command);
        Release(self)
    }

    /// Adds a command that waits for the next one.
    pub(in crate::ledger) fn defer(&self, command: Box<dyn WriteCommand>) {
        lock(&self.state).add(command);
    }

    /// Ends the writer, once it has run what is queued.
    pub(in crate::ledger) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.filled.notify_one();
    }
}

impl State {
    /// If the writer has ended, the command is dropped with its reply channel, and its caller gets
    /// an error.
    fn add(&mut self, command: Box<dyn WriteCommand>) {
        if !self.is_abandoned {
            self.commands.push_back(command);
        }
    }
}

/// The writer's end of the queue. Commands that are queued when it is dropped, or later, are not
/// run.
#[derive(Default)]
pub(in crate::ledger) struct CommandReceiver(Arc<CommandQueue>);

impl CommandReceiver {
    pub(in crate::ledger) fn queue(&self) -> Arc<CommandQueue> {
        Arc::clone(&self.0)
    }

    /// Waits for a command, or until `max_wait` is over, and returns at most `max` commands.
    /// `None` once the queue is closed and empty.
    pub(in crate::ledger) fn take(
        &self,
        max_wait: Duration,
        max: usize,
    ) -> Option<Vec<Box<dyn WriteCommand>>> {
        let is_idle = |state: &mut State| !state.is_released && !state.is_closed;
        let waited = self.0.filled.wait_timeout_while(lock(&self.0.state), max_wait, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed && state.commands.is_empty() {
            return None;
        }
        let count = state.commands.len().min(max);
        let batch = state.commands.drain(..count).collect();
        state.is_released = !state.commands.is_empty();
        Some(batch)
    }
}

impl Drop for CommandReceiver {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_abandoned = true;
        let rest = mem::take(&mut state.commands);
        drop(state);
        // Their callers may use the queue.
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::writer::{Durability, notification, request};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn writer_takes_what_is_queued_before_it_ends() {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        (0..3).for_each(|_| queue.defer(notification(Durability::Buffered, |_| Ok(()))));
        queue.close();
        assert_eq!(commands.take(LONG, 2).map(|batch| batch.len()), Some(2));
        assert_eq!(commands.take(LONG, 2).map(|batch| batch.len()), Some(1));
        assert!(commands.take(LONG, 2).is_none());
    }

    #[test]
    fn callers_of_a_writer_that_ended_get_an_error() {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let (early, mut first) = request(Durability::Buffered, |_| Ok(()));
        drop(queue.push(early));
        drop(commands);
        let (late, mut second) = request(Durability::Buffered, |_| Ok(()));
        drop(queue.push(late));
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
    }
}
