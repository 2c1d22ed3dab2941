//! How a conversation with the gateway can fail, and what that says about the charge.

use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http::StatusCode;

use super::Abort;
use crate::problem::{
    Charged, DRAINING, GATEWAY_BUSY, GATEWAY_KEY_REJECTED, GATEWAY_UNREACHABLE, Kind,
    LEDGER_UNAVAILABLE, OUTCOME_UNKNOWN, OVERLOADED, Problem,
};

/// What went wrong. [`Error::charged`] says what it means for the money.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no connection to the gateway: {0}")]
    Unreachable(#[source] io::Error),
    /// A connection was made, and it took no byte of the request.
    #[error("the gateway closed the connection before it took the request")]
    ClosedBeforeSend,
    /// The connection died after the first byte.
    #[error("the connection was lost after the request was sent: {0}")]
    Lost(#[source] hyper::Error),
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    /// A redirect, a 5xx, or a status that the contract does not know.
    #[error("the gateway answered {0}")]
    Status(StatusCode),
    /// The reply is compressed, although none was asked for.
    #[error("the reply is encoded")]
    Encoded,
    #[error("the reply is too large")]
    TooLarge(UnparsableReply),
    /// A success whose body is not the JSON that the contract specifies.
    #[error("a reply with status {0} that breaks the contract")]
    Unparsable(StatusCode, UnparsableReply),
    /// 401: this key is refused. Guess: it is free.
    #[error("the gateway refuses key {}", key + 1)]
    KeyRejected { key: usize },
    /// 401 for every key of the ring.
    #[error("the gateway refuses every key")]
    AllKeysRejected,
    /// 429: the account's window is used up. Guess: it is free.
    #[error("the gateway asks to wait")]
    Throttled { retry_after: Option<Duration> },
    /// There is no place in the account's window in time. Nothing was sent.
    #[error("no place in the window within max_wait")]
    NoSlot { retry_after: Duration },
    #[error("it was not sent: shutting down")]
    Draining,
    #[error("it was not sent: {0:?}")]
    Aborted(Abort),
}

/// How long a caller is told to wait after a 429 that named no time: the reported window (2.3).
const UNTOLD_WAIT: Duration = Duration::from_secs(60);
/// How long a caller is told to wait when a call was held back here.
const UNSENT_WAIT: Duration = Duration::from_secs(5);

impl Error {
    /// What is known of the charge of a purchase that ended so; whether some of it may have reached the
    /// gateway; and what a caller is told where nothing was charged: the problem, and how long to wait.
    #[rustfmt::skip]
    fn meaning(&self) -> (Charged, bool, &'static Kind, Option<Duration>) {
        use Charged::{No, Unknown};
        match self {
            Self::Unreachable(_)                => (No, false, &GATEWAY_UNREACHABLE, None),
            Self::ClosedBeforeSend                      => (No, false, &GATEWAY_UNREACHABLE, None),
            Self::Lost(_)                       => (Unknown, true, &GATEWAY_UNREACHABLE, None),
            Self::Timeout(_)                       => (Unknown, true, &GATEWAY_UNREACHABLE, None),
            Self::Status(_)                     => (Unknown, true, &GATEWAY_UNREACHABLE, None),
            Self::Encoded                       => (Unknown, true, &GATEWAY_UNREACHABLE, None),
            Self::TooLarge(_)                   => (Unknown, true, &GATEWAY_UNREACHABLE, None),
            // A 2xx that cannot be read may be a page of something in between: it proves no charge.
            Self::Unparsable(..)                => (Unknown, true, &GATEWAY_UNREACHABLE, None),
            Self::KeyRejected { .. }             => (No, true, &GATEWAY_KEY_REJECTED, None),
            Self::AllKeysRejected                     => (No, true, &GATEWAY_KEY_REJECTED, None),
            Self::Throttled { retry_after }     => (No, true, &GATEWAY_BUSY, Some(retry_after.unwrap_or(UNTOLD_WAIT))),
            Self::NoSlot { retry_after }    => (No, false, &GATEWAY_BUSY, Some(*retry_after)),
            Self::Draining                      => (No, false, &DRAINING, Some(UNSENT_WAIT)),
            // Whoever asked is gone; an identical purchase that joins just now may still read this.
            Self::Aborted(Abort::Cancelled)     => (No, false, &OVERLOADED, Some(UNSENT_WAIT)),
            Self::Aborted(Abort::Unrecorded)    => (No, false, &LEDGER_UNAVAILABLE, Some(UNSENT_WAIT)),
            Self::Aborted(Abort::OtherAccount)  => (No, false, &LEDGER_UNAVAILABLE, Some(UNTOLD_WAIT)),
        }
    }

    pub fn charged(&self) -> Charged {
        self.meaning().0
    }

    pub(super) fn was_sent(&self) -> bool {
        self.meaning().1
    }

    /// What came of a reply that may have been paid for and cannot be read.
    pub fn unparsable_reply(&self) -> Option<&Bytes> {
        let (Self::Unparsable(_, unread) | Self::TooLarge(unread)) = self else { return None };
        unread.body()
    }

    /// What a buyer is told. The cause is for the log.
    pub fn purchase_problem(&self) -> Problem {
        match self.charged() {
            Charged::No => self.read_problem(),
            charged @ (Charged::Yes | Charged::Unknown) => {
                Problem::new(&OUTCOME_UNKNOWN).charged(charged)
            }
        }
    }

    /// What somebody who only asked is told: nothing was bought, whatever went wrong.
    pub fn read_problem(&self) -> Problem {
        let (_, _, kind, wait) = self.meaning();
        let mut problem = Problem::new(kind);
        if let Self::Aborted(Abort::OtherAccount) = self {
            problem = problem.detail(
                "the gateway's key belongs to another account than the ledger of this server",
            );
        }
        match wait {
            Some(wait) => problem.retry_after(wait),
            None => problem,
        }
    }
}

/// How much of an unreadable reply is kept, in bytes.
const MAX_UNREAD: usize = 1 << 20;
/// Where a reply was cut, a key could have been cut in two, and half of one is not found.
const MAX_LOOK: usize = 4_096;

/// The beginning of a reply that was paid for and that nobody can read, without our keys. It is never
/// printed: it may hold what a caller said.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UnparsableReply(Bytes);

impl UnparsableReply {
    /// A whole body, in which no key is left.
    pub fn from_body(body: &Bytes) -> Self {
        Self(body.slice(..body.len().min(MAX_UNREAD)))
    }

    /// The beginning of one that is larger than tollgate takes.
    pub(super) fn truncated(beginning: &Bytes) -> Self {
        Self(beginning.slice(..beginning.len().saturating_sub(MAX_LOOK).min(MAX_UNREAD)))
    }

    /// Returns what there is; nothing where it was empty, or never read.
    pub fn body(&self) -> Option<&Bytes> {
        Some(&self.0).filter(|body| !body.is_empty())
    }
}

impl fmt::Debug for UnparsableReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unread({} bytes)", self.0.len())
    }
}
