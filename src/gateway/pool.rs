//! Keeps idle connections for a few seconds, each for the next request of the same caller, if
//! `gateway.keep_alive` is set.
//!
//! HTTP/1.1 cannot tell a stray second reply, which comes just after the next request was written,
//! from the reply to that request. So by default, a connection carries one request. If it may carry
//! more, they are of one caller.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep_until;

use super::connection::Connection;
use crate::clock::{self, Instant};
use crate::sync::lock;

/// Short, because a purchase that meets a closing connection looks as if it had been charged.
const MAX_IDLE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_secs(60);
/// How many connections may be idle although fewer were in use at once.
const MIN_KEPT: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    state: Arc<Mutex<State>>,
    /// Each attempt holds a reference.
    in_use: Arc<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The longest idle comes first.
    idle: VecDeque<Idle>,
    paused_until: Option<Instant>,
    /// The most attempts at once, in the current period and the one before it.
    peaks: [usize; 2],
    period_start: Option<Instant>,
    is_swept: bool,
}

#[derive(Debug)]
struct Idle {
    caller: Arc<str>,
    connection: Connection,
    since: Instant,
}

impl Pool {
    /// Counts an attempt while the result lives.
    pub(super) fn enter(&self) -> Arc<()> {
        Arc::clone(&self.in_use)
    }

    pub(super) fn take(&self, caller: &str) -> Option<Connection> {
        let mut state = lock(&self.state);
        state.expire(clock::now());
        loop {
            let index = state.idle.iter().rposition(|idle| &*idle.caller == caller)?;
            let mut connection = state.idle.remove(index)?.connection;
            if connection.is_ready() {
                return Some(connection);
            }
        }
    }

    pub(super) fn put(&self, caller: &Arc<str>, mut connection: Connection) {
        if !connection.is_reusable() {
            return;
        }
        connection.mark_idle();
        let now = clock::now();
        let mut state = lock(&self.state);
        if state.paused_until.is_some_and(|until| now < until) {
            return;
        }
        state.expire(now);
        let peak = state.peak(Arc::strong_count(&self.in_use), now);
        if state.idle.len() >= peak.max(MIN_KEPT) {
            state.idle.pop_front();
        }
        state.idle.push_back(Idle { caller: Arc::clone(caller), connection, since: now });
        if !std::mem::replace(&mut state.is_swept, true) {
            tokio::spawn(self.clone().sweep());
        }
    }

    /// Closes all idle connections and keeps none for a while.
    pub(super) fn pause(&self) {
        let mut state = lock(&self.state);
        state.idle.clear();
        state.paused_until = Some(clock::now() + PAUSE);
    }

    async fn sweep(self) {
        let next = || {
            let mut state = lock(&self.state);
            state.expire(clock::now());
            state.is_swept = !state.idle.is_empty();
            state.idle.front().map(|idle| idle.since + MAX_IDLE)
        };
        while let Some(next) = next() {
            sleep_until(next).await;
        }
    }
}

impl State {
    /// Notes how many attempts are running, and returns the most of the last seconds.
    fn peak(&mut self, running: usize, now: Instant) -> usize {
        if self.period_start.is_none_or(|start| now.duration_since(start) >= MAX_IDLE) {
            self.period_start = Some(now);
            self.peaks = [0, self.peaks[0]];
        }
        self.peaks[0] = self.peaks[0].max(running);
        self.peaks[0].max(self.peaks[1])
    }

    fn expire(&mut self, now: Instant) {
        let is_old = |idle: &Idle| now.duration_since(idle.since) >= MAX_IDLE;
        while self.idle.front().is_some_and(is_old) {
            self.idle.pop_front();
        }
    }
}
