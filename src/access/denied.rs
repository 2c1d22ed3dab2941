//! Why a credential opens nothing, and what its bearer is told: never what was wrong with it.

use std::time::Duration;

use crate::problem::{INVALID_CREDENTIALS, OVERLOADED, Problem, RATE_LIMITED};

/// Why a credential opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It is not one of ours, or not any more.
    Invalid,
    /// Its signature was checked, and is nobody's whom we believe.
    Forged,
    /// It was not looked at: too many forged ones came from its address.
    Unheard {
        /// When to come back.
        retry_after: Duration,
    },
    /// Nobody can tell right now: nothing was checked.
    Unavailable {
        /// When to come back.
        retry_after: Duration,
    },
}

impl Denied {
    /// 401 `invalid_credentials`, 429 `rate_limited` or 503 `overloaded`.
    pub fn problem(self) -> Problem {
        match self {
            Self::Invalid | Self::Forged => Problem::new(&INVALID_CREDENTIALS),
            Self::Unheard { retry_after } => Problem::new(&RATE_LIMITED)
                .detail("too many credentials from this address were wrong")
                .retry_after(retry_after),
            Self::Unavailable { retry_after } => Problem::new(&OVERLOADED)
                .detail(
                    "tokens cannot be checked right now: the login service's keys are not there",
                )
                .retry_after(retry_after),
        }
    }
}
