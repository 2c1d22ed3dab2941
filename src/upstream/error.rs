//! How a conversation with the gateway can fail, and what that says about the charge.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use crate::problem::{
    Charged, DRAINING, GATEWAY_KEY_REJECTED, GATEWAY_UNREACHABLE, Kind, LEDGER_UNAVAILABLE,
    OUTCOME_UNKNOWN, OVERLOADED, Problem, WINDOW_EXHAUSTED,
};

use super::{Stay, Unread};

/// What went wrong. [`Error::charged`] says what it means for the money.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection was made.
    #[error("no connection to the gateway: {0}")]
    Unreachable(#[source] io::Error),
    /// A connection was made, and it took no byte of the request.
    #[error("the gateway closed the connection before it took the request")]
    NotTaken,
    /// The connection died after the first byte.
    #[error("the connection was lost after the request was sent: {0}")]
    Lost(#[source] hyper::Error),
    /// No whole reply in time.
    #[error("no reply within {0:?}")]
    Late(Duration),
    /// A redirect, a 5xx, or a status that the contract does not know.
    #[error("the gateway answered {0}")]
    Status(StatusCode),
    /// The reply is compressed, although none was asked for.
    #[error("the reply is encoded")]
    Encoded,
    /// The reply is larger than tollgate keeps.
    #[error("the reply is too large")]
    TooLarge(Unread),
    /// A success whose body is not the JSON that the contract promises.
    #[error("a reply with status {0} that is not what the contract promises")]
    Unreadable(StatusCode, Unread),
    /// 401: this key is refused. Guess: it is free.
    #[error("the gateway refuses key {key}")]
    KeyRefused {
        /// The key's place in the ring.
        key: usize,
    },
    /// 401 for every key of the ring.
    #[error("the gateway refuses every key")]
    NoKeyLeft,
    /// 429: the account's window is used up. Guess: it is free.
    #[error("the gateway asks to wait")]
    Throttled {
        /// How long, where it said so.
        retry_after: Option<Duration>,
    },
    /// There is no place in the account's window in time. Nothing was sent.
    #[error("no place in the window within max_wait")]
    WindowFull {
        /// When there should be one.
        retry_after: Duration,
    },
    /// tollgate is shutting down, and it still waited for a place in the window.
    #[error("it was not sent: shutting down")]
    Draining,
    /// It was held back before the first byte.
    #[error("it was not sent: {0:?}")]
    Stayed(Stay),
}

/// How long a caller is told to wait after a 429 that named no time: the reported window (2.3).
const UNTOLD_WAIT: Duration = Duration::from_secs(60);
/// How long a caller is told to wait when a call was held back here.
const UNSENT_WAIT: Duration = Duration::from_secs(5);

impl Error {
    /// What is known of the charge of a purchase that ended so.
    pub fn charged(&self) -> Charged {
        match self {
            Self::Unreachable(_)
            | Self::NotTaken
            | Self::KeyRefused { .. }
            | Self::NoKeyLeft
            | Self::Throttled { .. }
            | Self::WindowFull { .. }
            | Self::Draining
            | Self::Stayed(_) => Charged::No,
            // A 2xx that cannot be read may be a page of something in between: it proves no charge.
            Self::Unreadable(..)
            | Self::Lost(_)
            | Self::Late(_)
            | Self::Status(_)
            | Self::Encoded
            | Self::TooLarge(_) => Charged::Unknown,
        }
    }

    /// What came of a reply that may have been paid for and cannot be read.
    pub fn unread(&self) -> Option<&Bytes> {
        match self {
            Self::Unreadable(_, unread) | Self::TooLarge(unread) => unread.body(),
            Self::Unreachable(_)
            | Self::NotTaken
            | Self::Lost(_)
            | Self::Late(_)
            | Self::Status(_)
            | Self::Encoded
            | Self::KeyRefused { .. }
            | Self::NoKeyLeft
            | Self::Throttled { .. }
            | Self::WindowFull { .. }
            | Self::Draining
            | Self::Stayed(_) => None,
        }
    }

    /// Whether nothing of it can have reached the gateway.
    pub(super) fn was_never_sent(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::NotTaken
            | Self::WindowFull { .. }
            | Self::Draining
            | Self::Stayed(_) => true,
            Self::KeyRefused { .. }
            | Self::NoKeyLeft
            | Self::Throttled { .. }
            | Self::Unreadable(..)
            | Self::Lost(_)
            | Self::Late(_)
            | Self::Status(_)
            | Self::Encoded
            | Self::TooLarge(_) => false,
        }
    }

    /// What a buyer is told. The cause is for the log.
    pub fn of_purchase(&self) -> Problem {
        match self.charged() {
            Charged::No => self.free(),
            charged @ (Charged::Yes | Charged::Unknown) => {
                Problem::new(&OUTCOME_UNKNOWN).charged(charged)
            }
        }
    }

    /// What somebody who only asked is told: nothing was bought, whatever went wrong.
    pub fn of_read(&self) -> Problem {
        self.free()
    }

    fn free(&self) -> Problem {
        let problem = Problem::new(self.free_kind());
        match self {
            Self::Throttled { retry_after } => {
                problem.retry_after(retry_after.unwrap_or(UNTOLD_WAIT))
            }
            Self::WindowFull { retry_after } => problem.retry_after(*retry_after),
            Self::Unreachable(_)
            | Self::NotTaken
            | Self::Lost(_)
            | Self::Late(_)
            | Self::Status(_)
            | Self::Encoded
            | Self::TooLarge(_)
            | Self::Unreadable(..)
            | Self::KeyRefused { .. }
            | Self::NoKeyLeft => problem,
            Self::Stayed(Stay::OtherAccount) => problem
                .detail(
                    "the gateway's key belongs to another account than the ledger of this server",
                )
                .retry_after(UNTOLD_WAIT),
            Self::Draining | Self::Stayed(_) => problem.retry_after(UNSENT_WAIT),
        }
    }

    fn free_kind(&self) -> &'static Kind {
        match self {
            Self::Throttled { .. } | Self::WindowFull { .. } => &WINDOW_EXHAUSTED,
            Self::Draining => &DRAINING,
            Self::KeyRefused { .. } | Self::NoKeyLeft => &GATEWAY_KEY_REJECTED,
            Self::Stayed(Stay::Unrecorded | Stay::OtherAccount) => &LEDGER_UNAVAILABLE,
            // Whoever asked is gone; a twin that comes just now may still read this.
            Self::Stayed(Stay::Abandoned) => &OVERLOADED,
            Self::Unreachable(_)
            | Self::NotTaken
            | Self::Lost(_)
            | Self::Late(_)
            | Self::Status(_)
            | Self::Encoded
            | Self::TooLarge(_)
            | Self::Unreadable(..) => &GATEWAY_UNREACHABLE,
        }
    }
}
