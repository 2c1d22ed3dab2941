//! Connections to the gateway that are kept for the next request of the same caller, for a few seconds.
//!
//! A connection only ever carries one caller's requests. A gateway that answers twice cannot make one
//! caller's reply another's that way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep_until;

use super::connection::Connection;
use crate::clock::{self, Instant};
use crate::sync::lock;

/// How long a connection may be idle. A gateway closes idle connections when it likes, and a purchase
/// that meets such a close looks as if it had been charged.
const MAX_IDLE: Duration = Duration::from_secs(3);
/// How long connections are not kept after one of them died under a request: such a gateway closes
/// them without a word, and a lost reply costs more than any number of fresh connections.
const REST: Duration = Duration::from_secs(60);
/// How many connections of a core are idle at once, of all callers. The one that has been idle longest
/// makes room.
const MAX_KEPT: usize = 64;

/// One core's idle connections. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The one that has been idle longest comes first.
    idle: VecDeque<Idle>,
    paused_until: Option<Instant>,
    is_swept: bool,
}

#[derive(Debug)]
struct Idle {
    caller: Arc<str>,
    connection: Connection,
    since: Instant,
}

impl Pool {
    /// Takes the connection that this caller used last, if it is young and alive.
    pub(super) fn take(&self, caller: &str) -> Option<Connection> {
        let mut state = lock(&self.state);
        state.expire(clock::now());
        loop {
            let place = state.idle.iter().rposition(|idle| &*idle.caller == caller)?;
            let connection = state.idle.remove(place)?.connection;
            if connection.is_ready() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection of `caller` whose last reply was read to its end.
    pub(super) fn put(&self, caller: &Arc<str>, connection: Connection) {
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
        if state.idle.len() >= MAX_KEPT {
            state.idle.pop_front();
        }
        state.idle.push_back(Idle { caller: Arc::clone(caller), connection, since: now });
        if !std::mem::replace(&mut state.is_swept, true) {
            tokio::spawn(self.clone().sweep());
        }
    }

    /// A kept connection died under a request: none is kept for a while.
    pub(super) fn pause(&self) {
        let mut state = lock(&self.state);
        state.idle.clear();
        state.paused_until = Some(clock::now() + REST);
    }

    /// Closes connections when their time is over, until there are none.
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
    fn expire(&mut self, now: Instant) {
        let is_old = |idle: &Idle| now.duration_since(idle.since) >= MAX_IDLE;
        while self.idle.front().is_some_and(is_old) {
            self.idle.pop_front();
        }
    }
}
