//! Reports for callers and admins: limits, spending, members, jobs and the account.

pub mod audit;
mod billing;
pub mod jobs;
pub mod me;
pub mod members;
pub mod queue;
pub mod text;
pub mod usage;

use crate::billing::summary::BillingSummary;
use crate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::store::{Role, Store, Unavailable};
use queue::ReportQueue;

pub struct Reports {
    pub store: Store,
    pub summary: BillingSummary,
    /// Whether callers are identified by more than an IP address.
    pub identifies_callers: bool,
    pub queue: ReportQueue,
}

pub fn ensure_admin(role: Role) -> Result<(), Problem> {
    if role == Role::Admin {
        return Ok(());
    }
    Err(Problem::new(&FORBIDDEN).detail("only callers with the admin role may see this"))
}

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "failed to read admin report");
    Problem::new(&LEDGER_UNAVAILABLE)
}

#[cfg(test)]
mod tests;
