//! How a request to the gateway can fail, and whether it may have been charged.

use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http::StatusCode;

use super::Abort;
use crate::gate::problem::{
    Charged, DRAINING, GATEWAY_BUSY, GATEWAY_KEY_REJECTED, GATEWAY_UNREACHABLE, Kind,
    LEDGER_UNAVAILABLE, OUTCOME_UNKNOWN, OVERLOADED, Problem,
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no connection to the gateway: {0}")]
    Unreachable(#[source] io::Error),
    #[error("the gateway closed the connection before the request was sent")]
    ClosedBeforeSend,
    /// The connection failed after the first byte.
    #[error("the connection was lost after the request was sent: {0}")]
    Lost(#[source] hyper::Error),
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    #[error("the gateway returned {0}")]
    Status(StatusCode),
    #[error("the reply has a content encoding")]
    Encoded,
    #[error("the reply is too large")]
    TooLarge(UnparsableReply),
    #[error("the body of a {0} reply does not match the contract")]
    Unparsable(StatusCode, UnparsableReply),
    /// A chat's 2xx with an object. It counts as charged, and `tollgate reconcile` does not rely on it.
    #[error("the reply has no message.content")]
    NoContent(UnparsableReply),
    /// A video order's 2xx whose id cannot be asked for. It counts as charged, and the operator keeps it.
    #[error("the reply's request_id is not 1 to 128 visible ASCII characters")]
    BadRequestId(UnparsableReply),
    /// A 401. Guess: it is free.
    #[error("the gateway rejected key {}", key + 1)]
    KeyRejected { key: usize },
    #[error("the gateway rejected all keys")]
    AllKeysRejected,
    /// A 429. Guess: it is free.
    #[error("the gateway returned 429")]
    Throttled { retry_after: Option<Duration> },
    /// No rate-limit slot came free in time. Nothing was sent.
    #[error("no rate-limit slot within gateway.max_wait")]
    NoSlot { retry_after: Duration },
    #[error("not sent: shutting down")]
    Draining,
    #[error("not sent: {0}")]
    Aborted(Abort),
}

const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(60);
const UNSENT_RETRY_AFTER: Duration = Duration::from_secs(5);

impl Error {
    /// Returns (charged, any byte may have been sent, problem if not charged, its `Retry-After`).
    #[rustfmt::skip]
    fn meaning(&self) -> (Charged, bool, &'static Kind, Option<Duration>) {
        use Charged::{No, Unknown, Yes};
        match self {
            Self::Unreachable(_) | Self::ClosedBeforeSend => (No, false, &GATEWAY_UNREACHABLE, None),
            // A 2xx that is no valid reply may come from a middlebox: it proves no charge.
            Self::Lost(_) | Self::Timeout(_) | Self::Status(_) | Self::Encoded | Self::TooLarge(_)
            | Self::Unparsable(..) => (Unknown, true, &GATEWAY_UNREACHABLE, None),
            Self::NoContent(_) | Self::BadRequestId(_) => (Yes, true, &GATEWAY_UNREACHABLE, None),
            Self::KeyRejected { .. } | Self::AllKeysRejected => (No, true, &GATEWAY_KEY_REJECTED, None),
            Self::Throttled { retry_after } => (No, true, &GATEWAY_BUSY, Some(retry_after.unwrap_or(DEFAULT_RETRY_AFTER))),
            Self::NoSlot { retry_after } => (No, false, &GATEWAY_BUSY, Some(*retry_after)),
            Self::Draining => (No, false, &DRAINING, Some(UNSENT_RETRY_AFTER)),
            // The caller is gone, but an identical purchase that joins now may still see this.
            Self::Aborted(Abort::Cancelled) => (No, false, &OVERLOADED, Some(UNSENT_RETRY_AFTER)),
            Self::Aborted(Abort::Unrecorded) => (No, false, &LEDGER_UNAVAILABLE, Some(UNSENT_RETRY_AFTER)),
            Self::Aborted(Abort::OtherAccount) => (No, false, &LEDGER_UNAVAILABLE, Some(DEFAULT_RETRY_AFTER)),
        }
    }

    pub fn charged(&self) -> Charged {
        self.meaning().0
    }

    pub(super) fn was_sent(&self) -> bool {
        self.meaning().1
    }

    /// Returns the body of a reply that may have been paid for and cannot be parsed.
    pub fn unparsable_reply(&self) -> Option<&Bytes> {
        let (Self::Unparsable(_, reply)
        | Self::TooLarge(reply)
        | Self::NoContent(reply)
        | Self::BadRequestId(reply)) = self
        else {
            return None;
        };
        Some(&reply.0).filter(|body| !body.is_empty())
    }

    /// Returns the problem for the caller of a purchase. The cause is for the log.
    pub fn purchase_problem(&self) -> Problem {
        match self.charged() {
            Charged::No => self.read_problem(),
            Charged::Yes => Problem::new(&OUTCOME_UNKNOWN)
                .charged(Charged::Yes)
                .detail(format!("it was charged, but {self}")),
            Charged::Unknown => Problem::new(&OUTCOME_UNKNOWN),
        }
    }

    /// Returns the problem for a request that buys nothing.
    pub fn read_problem(&self) -> Problem {
        let (_, _, kind, wait) = self.meaning();
        let mut problem = Problem::new(kind);
        if let Self::Aborted(abort @ Abort::OtherAccount) = self {
            problem = problem.detail(abort.to_string());
        }
        match wait {
            Some(wait) => problem.retry_after(wait),
            None => problem,
        }
    }
}

const MAX_KEPT: usize = 1 << 20;
/// Dropped from the end of a truncated reply, because it may end in half a key.
const KEY_MARGIN: usize = 4_096;

/// The start of a reply that was paid for and cannot be parsed, with keys redacted. It is never
/// printed, because it may contain a caller's data.
#[derive(Default)]
pub struct UnparsableReply(Bytes);

impl UnparsableReply {
    pub fn from_body(body: &Bytes) -> Self {
        Self(body.slice(..body.len().min(MAX_KEPT)))
    }

    pub(super) fn truncated(beginning: &Bytes) -> Self {
        Self(beginning.slice(..beginning.len().saturating_sub(KEY_MARGIN).min(MAX_KEPT)))
    }
}

impl fmt::Debug for UnparsableReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnparsableReply({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tollgate reconcile` prints these texts.
    #[test]
    fn unsent_request_says_why_in_words() {
        for abort in [Abort::Cancelled, Abort::Unrecorded, Abort::OtherAccount] {
            let text = Error::Aborted(abort).to_string();
            assert!(!text.contains(&format!("{abort:?}")), "{text}");
        }
        let text = Error::Aborted(Abort::Unrecorded).to_string();
        assert_eq!(
            text,
            "not sent: the ledger cannot record the request yet; try again in a few seconds"
        );
    }
}
