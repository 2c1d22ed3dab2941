//! Reports for callers and admins: limits, spending, members, jobs and the account.

pub mod audit;
pub mod billing;
pub mod groups;
pub mod jobs;
pub mod links;
pub mod me;
pub mod members;
pub mod queue;
pub mod reconcile;
pub mod text;
pub mod usage;

use serde::Serialize;
use serde_json::{Value, json};

use crate::account::summary::BillingSummary;
use crate::gate::problem::{LEDGER_UNAVAILABLE, Problem};
use crate::gateway::contract::money::Usd;
use crate::ledger::{Extra, Period, PeriodSpend, SpendLimit, Store, Unavailable};
use queue::ReportQueue;

pub struct Reports {
    pub store: Store,
    pub summary: BillingSummary,
    /// `budget.caller`.
    pub caller_budget: SpendLimit,
    /// Whether callers are identified by more than an IP address.
    pub identifies_callers: bool,
    pub queue: ReportQueue,
}

/// The JSON of a list, which has the same shape in every report and command: `{"rows": […]}`, and facts
/// about all rows beside it. In a row, `at` is when it began or happened, and other times end in `_at`.
/// Each amount is in dollars, and in micro-dollars under its name with `_micros`.
#[derive(Serialize)]
pub struct List<T, F = ()> {
    rows: Vec<T>,
    #[serde(flatten)]
    facts: F,
}

pub fn list_of<T>(rows: impl IntoIterator<Item = T>) -> List<T> {
    List { rows: rows.into_iter().collect(), facts: () }
}

impl<T> List<T> {
    pub fn with<F: Serialize>(self, facts: F) -> List<T, F> {
        List { rows: self.rows, facts }
    }
}

/// Lists all periods, also those without a limit. Limits include the extra.
fn budget_rows(limit: SpendLimit, spent: &PeriodSpend, extra: Option<Extra>) -> Vec<Value> {
    let limit = limit.raised(extra.map_or(Usd::ZERO, |extra| extra.amount));
    let row = |period: Period| {
        let limit = limit.get(period);
        let spent = spent.get(period);
        let mut row = json!({
            "period": period.name(),
            "limit": limit, "limit_micros": limit.map(Usd::as_micros),
            "spent": spent, "spent_micros": spent.as_micros(),
        });
        if limit.is_some() {
            add_extra(&mut row, extra);
        }
        row
    };
    Period::ALL.map(row).to_vec()
}

fn add_extra(row: &mut Value, extra: Option<Extra>) {
    let Some(extra) = extra else { return };
    row["extra"] = json!(extra.amount);
    row["extra_micros"] = json!(extra.amount.as_micros());
    row["extra_until"] = json!(extra.last_day().to_string());
}

fn unavailable(error: Unavailable) -> Problem {
    tracing::error!(%error, "failed to read admin report");
    Problem::new(&LEDGER_UNAVAILABLE)
}

#[cfg(test)]
mod tests;
