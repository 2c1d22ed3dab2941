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
/// More than a core has under way at once in any sane setting.
const MOST_KEPT: usize = 64;

pub(super) type Connection = SendRequest<Full<Bytes>>;

/// One core's idle connections.
#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: Mutex<Vec<(Connection, clock::Instant)>>,
}

impl Pool {
    /// The connection that was used last, if it is young and alive.
    pub(super) fn take(&self) -> Option<Connection> {
        let now = clock::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MOST_KEPT {
            idle.remove(0);
        }
        idle.push((connection, clock::now()));
    }
}
