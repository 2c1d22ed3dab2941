//! Why a credential opens nothing, and what its bearer is told: never what was wrong with it.

use std::time::Duration;

use crate::problem::{INVALID_CREDENTIALS, OVERLOADED, Problem};

/// Why a credential opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It is not one of ours, or not any more.
    Invalid,
    /// Nobody can tell right now: nothing was checked.
    Unavailable {
        /// When to come back.
        retry_after: Duration,
    },
}

impl Denied {
    /// 401 `invalid_credentials`, or 503 `overloaded`.
    pub fn problem(self) -> Problem {
        match self {
            Self::Invalid => Problem::new(&INVALID_CREDENTIALS),
            Self::Unavailable { retry_after } => Problem::new(&OVERLOADED)
                .detail(
                    "tokens cannot be checked right now: the login service's keys are not there",
                )
                .retry_after(retry_after),
        }
    }
}
