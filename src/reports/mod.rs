//! Reports for callers and admins: limits, spending, members, jobs and the account.

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

pub struct Reports {
    pub store: Store,
    pub summary: BillingSummary,
    /// Whether callers are identified by more than an IP address.
    pub identifies_callers: bool,
    pub queue: ReportQueue,
}

pub fn ensure_admin(role: Role) -> Result<(), Problem> {
    match role {
        Role::Admin => Ok(()),
        Role::Member => {
            Err(Problem::new(&FORBIDDEN).detail("only callers with the admin role may see this"))
        }
    }
}

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "failed to read admin report");
    Problem::new(&LEDGER_UNAVAILABLE)
}

/// Amounts as members of a JSON object: `name` in dollars, and `name_micros` in micro-dollars.
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
