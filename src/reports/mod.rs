//! Reports for callers and admins: limits, spending, members, jobs and the account.

pub mod audit;
mod billing;
pub mod groups;
pub mod jobs;
pub mod me;
pub mod members;
pub mod queue;
pub mod text;
pub mod usage;

use serde_json::{Value, json};

use crate::billing::summary::BillingSummary;
use crate::contract::money::Usd;
use crate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::store::{Period, PeriodSpend, Role, SpendLimit, Store, Unavailable};
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

/// Lists all periods, also those without a limit.
fn budget_rows(limit: SpendLimit, spent: &PeriodSpend) -> Vec<Value> {
    let row = |period: Period| {
        let (limit, spent) = (limit.get(period), spent.get(period));
        json!({
            "period": period.name(),
            "limit": limit, "limit_micros": limit.map(Usd::as_micros),
            "spent": spent, "spent_micros": spent.as_micros(),
        })
    };
    Period::ALL.map(row).to_vec()
}

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "failed to read admin report");
    Problem::new(&LEDGER_UNAVAILABLE)
}

#[cfg(test)]
mod tests;
