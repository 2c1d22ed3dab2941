//! What callers and admins may know: limits, spend, members, jobs, and the account.

mod account;
pub mod jobs;
pub mod me;
pub mod members;
pub mod text;
pub mod turns;
pub mod usage;

use crate::billing::summary::Summary;
use crate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::store::{Role, Store, Unavailable};
use turns::Turns;

/// Answers `GET /bff/usage` and `GET /bff/admin/…`.
pub struct Reports {
    /// Purchases, members and jobs.
    pub store: Store,
    /// What the gateway says of the account.
    pub summary: Summary,
    /// Whether more than an IP address identifies callers.
    pub knows_callers: bool,
    /// Whose reports are being read.
    pub turns: Turns,
}

/// Refuses all but admins. In open mode nobody is one.
///
/// # Errors
/// 403 `forbidden`.
pub fn must_be_admin(role: Role) -> Result<(), Problem> {
    match role {
        Role::Admin => Ok(()),
        Role::Member => Err(Problem::new(&FORBIDDEN)
            .detail("only callers with the role admin see this; an address has none")),
    }
}

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "an admin's question cannot be answered");
    Problem::new(&LEDGER_UNAVAILABLE)
}

#[cfg(test)]
mod tests;
