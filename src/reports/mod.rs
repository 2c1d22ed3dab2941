//! What callers and admins may know: limits, spend, members, jobs, and the account.

mod billing;
pub mod jobs;
pub mod me;
pub mod members;
pub mod queue;
pub mod text;
pub mod usage;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::billing::summary::BillingSummary;
use crate::contract::money::Usd;
use crate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::store::{Role, Store, Unavailable};
use queue::ReportQueue;

/// Answers `GET /bff/usage` and `GET /bff/admin/…`.
pub struct Reports {
    pub store: Store,
    pub summary: BillingSummary,
    /// Whether more than an IP address identifies callers.
    pub identifies_callers: bool,
    pub queue: ReportQueue,
}

/// Refuses all but admins. In open mode nobody is one.
pub fn ensure_admin(role: Role) -> Result<(), Problem> {
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

/// Amounts by name, as members of a JSON object: dollars, and with `_micros` after the name micro-dollars.
struct Amounts<const N: usize>([(&'static str, Usd); N]);

impl<const N: usize> Serialize for Amounts<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2 * N))?;
        for (name, amount) in &self.0 {
            map.serialize_entry(name, amount)?;
            map.serialize_entry(&format_args!("{name}_micros"), &amount.as_micros())?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
