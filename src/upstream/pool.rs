//! Connections to the gateway that are kept for the next chat: last in, first out, and not for long.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;

use crate::clock;

/// How long a connection may have been idle to be used again. A gateway closes idle connections when
/// it likes, and a purchase that meets such a close looks as if it had been charged.
const LONGEST_IDLE: Duration = Duration::from_secs(3);
/// How long connections are not kept after one of them died under a request: such a gateway closes
/// them without a word, and a lost reply costs more than any number of fresh connections.
const REST: Duration = Duration::from_secs(60);
/// More than a core has under way at once in any sane setting.
const MOST_KEPT: usize = 64;

pub(super) type Connection = SendRequest<Full<Bytes>>;

/// One core's idle connections.
#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<(Connection, clock::Instant)>,
    rests_until: Option<clock::Instant>,
}

impl Pool {
    /// The connection that was used last, if it is young and alive.
    pub(super) fn take(&self) -> Option<Connection> {
        let now = clock::now();
        let idle = &mut self.state.lock().unwrap_or_else(PoisonError::into_inner).idle;
        // The last one in is the youngest: where it is too old, all are.
        while let Some((connection, since)) = idle.pop() {
            if now.duration_since(since) >= LONGEST_IDLE {
                idle.clear();
                return None;
            }
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose last reply was read to its end.
    pub(super) fn put(&self, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let now = clock::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.rests_until.is_some_and(|until| now < until) {
            return;
        }
        if state.idle.len() >= MOST_KEPT {
            state.idle.remove(0);
        }
        state.idle.push((connection, now));
    }

    /// A kept connection died under a request: none is kept for a while.
    pub(super) fn rest(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.idle.clear();
        state.rests_until = Some(clock::now() + REST);
    }
}
