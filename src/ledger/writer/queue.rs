//! The queue of the writer's thread.
//!
//! A transaction costs about ten system calls, so commands are released together: the first caller that
//! adds one lets all others that are ready add theirs.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::task::yield_now;

use super::command::WriteCommand;
use crate::sync::lock;

/// In the first turn of the runtime the tasks that are ready add their commands, in the second one
/// the purchases that these begin.
const MIN_TURNS: usize = 2;
/// How many turns may pass while each brings more commands.
const MAX_TURNS: usize = 4;

#[derive(Default)]
pub(in crate::ledger) struct CommandQueue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Box<dyn WriteCommand>>,
    /// Threads on which a caller is about to release what is queued: none waits for another one.
    releasing: Vec<ThreadId>,
    is_released: bool,
    is_closed: bool,
    /// The writer has ended.
    is_abandoned: bool,
}

/// Releases what is queued to the writer when it is dropped.
#[must_use]
pub(in crate::ledger) struct Release<'a>(&'a CommandQueue);

impl Release<'_> {
    /// Lets other tasks of this thread's runtime add commands for the same transaction.
    pub(in crate::ledger) async fn gather(&self) {
        let queued = || lock(&self.0.state).commands.len();
        let mut before = queued();
        for turn in 1..=MAX_TURNS {
            yield_now().await;
            let now = queued();
            if turn >= MIN_TURNS && now == before {
                return;
            }
            before = now;
        }
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.releasing.clear();
        let was_released = mem::replace(&mut state.is_released, true);
        drop(state);
        if !was_released {
            self.0.filled.notify_one();
        }
    }
}

impl CommandQueue {
    /// Adds a command. On each thread, the first caller since the last release has to release it.
    pub(in crate::ledger) fn push(&self, command: Box<dyn WriteCommand>) -> Option<Release<'_>> {
        let mut state = lock(&self.state);
        state.add(command);
        let thread = thread::current().id();
        if state.releasing.contains(&thread) {
            return None;
        }
        state.releasing.push(thread);
        Some(Release(self))
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
    use futures_util::future::join;

    use super::*;
    use crate::ledger::writer::{Durability, notification, request};

    const LONG: Duration = Duration::from_secs(60);

    fn command() -> Box<dyn WriteCommand> {
        notification(Durability::Buffered, |_| Ok(()))
    }

    #[test]
    fn commands_are_gathered_while_each_turn_brings_more_but_not_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (turns, gathered) in [(0, 1), (1, 2), (3, 4), (50, 1 + MAX_TURNS)] {
            let commands = CommandReceiver::default();
            let queue = commands.queue();
            let gather = async {
                queue.push(command()).expect("it is the first").gather().await;
                commands.take(LONG, 256).map(|batch| batch.len())
            };
            let others = async {
                for _ in 0..turns {
                    queue.defer(command());
                    yield_now().await;
                }
            };
            let (count, ()) = runtime.block_on(join(gather, others));
            assert_eq!(count, Some(gathered), "a command in each of {turns} turns");
        }
    }

    #[test]
    fn caller_does_not_wait_for_a_release_on_another_thread() {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let slow = queue.push(command());
        assert!(slow.is_some() && queue.push(command()).is_none());
        thread::scope(|scope| drop(scope.spawn(|| drop(queue.push(command())))));
        assert_eq!(commands.take(LONG, 256).map(|batch| batch.len()), Some(3));
        assert!(queue.push(command()).is_some(), "what comes later has to be released again");
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
        drop(queue.push(early));
        drop(commands);
        let (late, mut second) = request(Durability::Buffered, |_| Ok(()));
        drop(queue.push(late));
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
    }
}
