//! Tells a caller what it has spent, by day and model.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::clock::{self, Date};
use crate::contract::money::Usd;
use crate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::store::{Caller, Spending, Store};
use crate::validate::{Checked, SinceQuery};

/// Answers `GET /bff/usage`.
pub struct Spend {
    ledger: Store,
    knows_callers: bool,
}

#[derive(Serialize)]
struct Document {
    since: String,
    total: String,
    total_micros: u64,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    day: String,
    service: &'static str,
    model: String,
    count: u64,
    spent: String,
    spent_micros: u64,
}

impl Spend {
    /// `knows_callers`: whether callers are told apart by more than an address that anybody can have.
    pub fn new(ledger: Store, knows_callers: bool) -> Self {
        Self { ledger, knows_callers }
    }

    /// What `caller` spent on the UTC days that `query` asks for, today included.
    ///
    /// # Errors
    /// 403 `forbidden` where an address is no identity; 503 `ledger_unavailable`.
    pub async fn of(&self, caller: &Caller, query: Checked<SinceQuery>) -> Result<Answer, Problem> {
        if !self.knows_callers {
            return Err(Problem::new(&FORBIDDEN).detail(
                "callers are told apart by address here, and an address is no identity: what it \
                 spent is not shown",
            ));
        }
        let today = Date::at(clock::wall()).days();
        let since = Date::on((today + 1).saturating_sub(query.get().days)).begins();
        let rows = self.ledger.spending(caller.to_string(), since).await;
        let rows = rows.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
        Ok(answer::json(StatusCode::OK, &document(since, rows)))
    }
}

fn document(since: Duration, rows: Vec<Spending>) -> Document {
    let sum = |sum: Usd, row: &Spending| sum.checked_add(row.spent);
    let total = rows.iter().try_fold(Usd::ZERO, sum).unwrap_or(Usd::micros(u64::MAX));
    Document {
        since: clock::iso8601(since),
        total: total.to_string(),
        total_micros: total.as_micros(),
        rows: rows.into_iter().map(row).collect(),
    }
}

fn row(spending: Spending) -> Row {
    let Spending { day, service, model, count, spent } = spending;
    let Date { year, month, day } = Date::on(day);
    Row {
        day: format!("{year:04}-{month:02}-{day:02}"),
        service: service.name(),
        model,
        count,
        spent: spent.to_string(),
        spent_micros: spent.as_micros(),
    }
}
