//! A bounded queue of log lines. If their reader stops, lines are dropped and counted; logging never
//! blocks.

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::metrics::LOG_LINES_DROPPED;
use crate::sync::{lock, pause};

/// About 3,000 lines: a third of a second at full load.
const MAX_BYTES: usize = 1_024 * 1_024;
/// The capacity of the buffer that stays allocated between batches.
const KEPT_BYTES: usize = 64 * 1_024;
/// The pause after each write, so that a busy server writes many lines at once.
const PAUSE: Duration = Duration::from_millis(10);
/// How often the writer looks for lines before it waits for one: to wake it would delay the request that
/// logs.
const MAX_LOOKS: u32 = 100;

pub(super) struct LogQueue {
    state: Mutex<State>,
    /// Notified when the writer waits and a line arrives.
    filled: Condvar,
    /// Notified when all lines are written.
    drained: Condvar,
}

struct State {
    lines: Vec<u8>,
    /// The number of lines that did not fit.
    dropped: u64,
    writer: Writer,
}

impl State {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Until a line arrives.
    Waiting,
    /// It looks again after a pause.
    Pausing,
    Busy,
}

impl LogQueue {
    pub(super) const fn new() -> Self {
        let state = State { lines: Vec::new(), dropped: 0, writer: Writer::Waiting };
        Self { state: Mutex::new(state), filled: Condvar::new(), drained: Condvar::new() }
    }

    fn push(&self, line: &[u8]) {
        let mut state = lock(&self.state);
        // Once a line was dropped, those after it are, too: the count stands in their place.
        if state.dropped > 0 || state.lines.len() + line.len() > MAX_BYTES {
            state.dropped += 1;
            LOG_LINES_DROPPED.fetch_add(1, Ordering::Relaxed);
        } else {
            state.lines.extend_from_slice(line);
        }
        let is_waiting = state.writer == Writer::Waiting;
        drop(state);
        if is_waiting {
            self.filled.notify_one();
        }
    }

    /// Writes lines as they arrive, forever.
    pub(super) fn run(&self, mut to: impl Write) {
        let mut batch = Vec::new();
        loop {
            let dropped = self.take(&mut batch);
            // Nothing can be done about an error: there is no other place to report it.
            to.write_all(&batch).and_then(|()| to.flush()).ok();
            batch.clear();
            batch.shrink_to(KEPT_BYTES);
            if dropped > 0 {
                warn!(dropped, "log lines dropped: standard error is not read fast enough");
            }
            pause(PAUSE);
        }
    }

    /// Waits for lines, moves them to `batch`, and returns how many were dropped after them.
    fn take(&self, batch: &mut Vec<u8>) -> u64 {
        let (mut state, mut looks) = (lock(&self.state), 0);
        while state.is_empty() {
            self.drained.notify_all();
            if looks < MAX_LOOKS {
                state.writer = Writer::Pausing;
                drop(state);
                pause(PAUSE);
                state = lock(&self.state);
                looks += 1;
            } else {
                state.writer = Writer::Waiting;
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.writer = Writer::Busy;
        mem::swap(&mut state.lines, batch);
        mem::take(&mut state.dropped)
    }

    /// Returns when all lines so far are written, or after `max_wait`.
    pub(super) fn flush(&self, max_wait: Duration) {
        let is_pending = |state: &mut State| state.writer == Writer::Busy || !state.is_empty();
        drop(self.drained.wait_timeout_while(lock(&self.state), max_wait, is_pending));
    }
}

impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
