//! The queue of the writer's thread.
//!
//! A wake-up costs two system calls and a transaction about ten, so commands are released together:
//! the first caller that adds one lets all others that are ready add theirs. If none does, and the
//! command is brief, the caller takes it back and runs it.

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
pub(super) struct CommandQueue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Box<dyn WriteCommand>>,
    /// How many of them were put back: later ones may have been taken before.
    returned: usize,
    /// Threads on which a caller is about to release what is queued: none waits for another one.
    releasing: Vec<ThreadId>,
    is_released: bool,
    is_writer_waiting: bool,
    is_closed: bool,
    /// The writer has ended.
    is_abandoned: bool,
}

/// Releases what is queued to the writer when it is dropped.
#[must_use]
pub(super) struct Release<'a>(&'a CommandQueue);

impl Release<'_> {
    /// Lets other tasks of this thread's runtime add commands for the same transaction.
    pub(super) async fn gather(&self) {
        let mut queued = self.0.len();
        for turn in 1..=MAX_TURNS {
            yield_now().await;
            let before = mem::replace(&mut queued, self.0.len());
            if turn >= MIN_TURNS && queued == before {
                return;
            }
        }
    }

    /// Takes all commands, if they are brief, only one has a caller, and the writer has no earlier ones.
    pub(super) fn take_alone(&self) -> Option<Vec<Box<dyn WriteCommand>>> {
        let mut state = lock(&self.0.state);
        let commands = &state.commands;
        let callers = commands.iter().filter(|command| command.runtime().is_some()).count();
        let is_alone = callers == 1 && commands.iter().all(|command| command.is_brief());
        (is_alone && state.is_writer_waiting).then(|| state.take(usize::MAX))
    }

    /// Puts back what was taken.
    pub(super) fn put_back(&self, commands: Vec<Box<dyn WriteCommand>>) {
        let mut state = lock(&self.0.state);
        if !state.is_abandoned {
            state.returned += commands.len();
            commands.into_iter().rev().for_each(|command| state.commands.push_front(command));
        }
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.releasing.clear();
        if state.commands.is_empty() {
            return;
        }
        state.is_released = true;
        if mem::take(&mut state.is_writer_waiting) {
            drop(state);
            self.0.filled.notify_one();
        }
    }
}

impl CommandQueue {
    /// Adds a command. On each thread, the first caller since the last release has to release it.
    pub(super) fn push(&self, command: Box<dyn WriteCommand>) -> Option<Release<'_>> {
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
    pub(super) fn defer(&self, command: Box<dyn WriteCommand>) {
        lock(&self.state).add(command);
    }

    fn len(&self) -> usize {
        lock(&self.state).commands.len()
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

    fn take(&mut self, max: usize) -> Vec<Box<dyn WriteCommand>> {
        let count = self.commands.len().min(max);
        self.returned = self.returned.saturating_sub(count);
        self.commands.drain(..count).collect()
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
        let mut state = lock(&self.0.state);
        state.is_writer_waiting = true;
        let is_idle = |state: &mut State| !state.is_released && !state.is_closed;
        let waited = self.0.filled.wait_timeout_while(state, max_wait, is_idle);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed && state.commands.is_empty() {
            return None;
        }
        state.is_writer_waiting = false;
        let batch = state.take(max);
        state.is_released = !state.commands.is_empty();
        Some(batch)
    }

    /// Returns the commands that were put back since the last batch was taken: they are older.
    pub(super) fn take_returned(&self) -> Vec<Box<dyn WriteCommand>> {
        let mut state = lock(&self.0.state);
        let count = state.returned;
        state.take(count)
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
impl CommandQueue {
    pub(super) fn is_writer_waiting(&self) -> bool {
        lock(&self.state).is_writer_waiting
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join;
    use tokio::task::JoinSet;

    use super::*;
    use crate::store::sqlite::command::{Durability, notification, request};

    const LONG: Duration = Duration::from_secs(60);

    fn command() -> Box<dyn WriteCommand> {
        notification(Durability::Buffered, |_| Ok(()))
    }

    #[test]
    fn commands_of_one_turn_are_released_together() {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let writer = thread::spawn(move || commands.take(LONG, 256).map(|batch| batch.len()));
        while !queue.is_writer_waiting() {
            thread::yield_now();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let releases = runtime.block_on(async {
            let add = |queue: Arc<CommandQueue>| async move {
                let Some(release) = queue.push(command()) else { return 0 };
                yield_now().await;
                drop(release);
                1
            };
            let callers: JoinSet<_> = (0..16).map(|_| add(Arc::clone(&queue))).collect();
            callers.join_all().await.iter().sum::<i32>()
        });
        assert_eq!((releases, writer.join().unwrap()), (1, Some(16)));
    }

    #[test]
    fn commands_are_gathered_while_each_turn_brings_more_but_not_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (turns, gathered) in [(0, 1), (1, 2), (3, 4), (50, 1 + MAX_TURNS)] {
            let queue = CommandQueue::default();
            let gather = async {
                let release = queue.push(command()).expect("it is the first");
                release.gather().await;
                queue.len()
            };
            let others = async {
                for _ in 0..turns {
                    queue.defer(command());
                    yield_now().await;
                }
            };
            let (count, ()) = runtime.block_on(join(gather, others));
            assert_eq!(count, gathered, "a command in each of {turns} turns");
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
    fn commands_that_were_put_back_come_before_a_batch_that_was_taken_meanwhile() {
        let commands = CommandReceiver::default();
        let queue = commands.queue();
        let release = queue.push(command()).expect("it is the first");
        release.put_back(vec![command(), command()]);
        assert_eq!(commands.take_returned().len(), 2);
        release.put_back(vec![command()]);
        drop(release);
        assert_eq!(commands.take(LONG, 256).map(|batch| batch.len()), Some(2));
        assert!(commands.take_returned().is_empty());
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

    #[test]
    fn callers_of_one_runtime_are_answered_in_a_task_of_theirs() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (batch, answers): (Vec<_>, Vec<_>) = runtime
            .block_on(async { (0..3).map(|_| request(Durability::Buffered, |_| Ok(()))).unzip() });
        let undone = crate::store::sqlite::command::answer(batch, None);
        assert!(undone.is_empty() && answers.iter().all(|answer| answer.is_empty()));
        runtime.block_on(async {
            for answer in answers {
                assert!(answer.await.unwrap().is_err(), "it was not run");
            }
        });
    }
}
