//! The queue of the writer's thread. What is queued while a transaction commits shares the next one.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::command::WriteCommand;
use crate::sync::lock;

#[derive(Default)]
pub(super) struct CommandQueue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Box<dyn WriteCommand>>,
    /// Whether one of them may not wait for a later one.
    is_urgent: bool,
    is_closed: bool,
    /// The writer has ended.
    is_abandoned: bool,
}

impl CommandQueue {
    pub(super) fn push(&self, command: Box<dyn WriteCommand>) {
        let mut state = lock(&self.state);
        state.add(command);
        let was_urgent = mem::replace(&mut state.is_urgent, true);
        drop(state);
        if !was_urgent {
            self.filled.notify_one();
        }
    }

    /// Adds a command that waits for the next one.
    pub(super) fn defer(&self, command: Box<dyn WriteCommand>) {
        lock(&self.state).add(command);
    }

    /// Ends the writer, once it has run what is queued.
    pub(super) fn close(&self) {
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
pub(super) struct CommandReceiver(Arc<CommandQueue>);

impl CommandReceiver {
    pub(super) fn queue(&self) -> Arc<CommandQueue> {
        Arc::clone(&self.0)
    }

    /// Waits for a command, or until `max_wait` is over, and returns at most `max` commands.
    /// `None` once the queue is closed and empty.
    pub(super) fn take(
        &self,
        max_wait: Duration,
        max: usize,
    ) -> Option<Vec<Box<dyn WriteCommand>>> {
        let is_idle = |state: &mut State| !state.is_urgent && !state.is_closed;
        let waited = self.0.filled.wait_timeout_while(lock(&self.0.state), max_wait, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed && state.commands.is_empty() {
            return None;
        }
        let count = state.commands.len().min(max);
        let batch = state.commands.drain(..count).collect();
        state.is_urgent = !state.commands.is_empty();
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
    use crate::store::sqlite::command::{Durability, notification, request};

    const LONG: Duration = Duration::from_secs(60);

    fn command() -> Box<dyn WriteCommand> {
        notification(Durability::Buffered, |_| Ok(()))
    }

    #[test]
    fn writer_takes_what_is_queued_before_it_ends() {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        (0..3).for_each(|_| queue.defer(command()));
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
        queue.push(early);
        drop(commands);
        let (late, mut second) = request(Durability::Buffered, |_| Ok(()));
        queue.push(late);
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
    }
}
