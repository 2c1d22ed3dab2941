//! What was spent: `GET /bff/usage`, `GET /bff/admin/usage`, and the sums of `tollgate usage`.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::text::csv;
use super::{Reports, unavailable};
use crate::answer::{self, Answer};
use crate::clock::{self, Date};
use crate::contract::money::Usd;
use crate::problem::{FORBIDDEN, LEDGER_UNAVAILABLE, Problem};
use crate::store::{Caller, Spending};
use crate::validate::{Checked, EverybodyQuery, Shape, SinceQuery, too_many_rows};

/// More are no answer for a page, and memory that one caller can have us fill.
pub(super) const MAX_ROWS: usize = 20_000;

/// What purchases come to. Released ones count nothing; all others count as spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub count: u64,
    /// What those that were charged cost.
    pub settled: Usd,
    /// The prices of those whose outcome is unknown.
    pub unknown: Usd,
    /// The prices of those under way.
    pub held: Usd,
}

/// Groups in the order of their keys, and all together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Key and sum.
    pub groups: BTreeMap<String, Sum>,
    /// Of all groups.
    pub total: Sum,
}

impl Usage {
    /// Adds up `rows` by `key`.
    pub fn of(rows: &[Spending], key: impl Fn(&Spending) -> String) -> Self {
        let mut usage = Self::default();
        for row in rows {
            usage.groups.entry(key(row)).or_default().add(row);
            usage.total.add(row);
        }
        usage
    }
}

impl Sum {
    fn add(&mut self, row: &Spending) {
        self.count += row.count;
        self.settled = plus(self.settled, row.settled);
        self.unknown = plus(self.unknown, row.unknown);
        self.held = plus(self.held, row.held);
    }

    fn spent(&self) -> Usd {
        plus(plus(self.settled, self.unknown), self.held)
    }

    /// The names of its [columns](Self::columns).
    pub const COLUMNS: [&str; 4] = ["count", "settled", "unknown", "held"];

    /// The count, and the amounts with six places.
    pub fn columns(&self) -> [String; 4] {
        let Self { count, settled, unknown, held } = self;
        [count.to_string(), settled.to_string(), unknown.to_string(), held.to_string()]
    }
}

impl From<&Spending> for Sum {
    fn from(row: &Spending) -> Self {
        let mut sum = Self::default();
        sum.add(row);
        sum
    }
}

/// The ledger itself counts no further than the largest amount.
fn plus(sum: Usd, more: Usd) -> Usd {
    sum.checked_add(more).unwrap_or(Usd::micros(u64::MAX))
}

/// Returns a UTC day as `2026-11-22`.
pub fn day(days: u64) -> String {
    let Date { year, month, day } = Date::on(days);
    format!("{year:04}-{month:02}-{day:02}")
}

#[derive(Serialize)]
struct Own<'a> {
    since: String,
    total: String,
    total_micros: u64,
    rows: Vec<OwnRow<'a>>,
}

#[derive(Serialize)]
struct OwnRow<'a> {
    day: String,
    service: &'static str,
    model: &'a str,
    count: u64,
    spent: String,
    spent_micros: u64,
}

#[derive(Serialize)]
struct OfAll<'a> {
    since: String,
    total: Figures,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    caller: &'a str,
    day: String,
    service: &'static str,
    model: &'a str,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Figures {
    count: u64,
    settled: String,
    settled_micros: u64,
    unknown: String,
    unknown_micros: u64,
    held: String,
    held_micros: u64,
}

impl Reports {
    /// What `caller` spent on the UTC days that `query` asks for, today included.
    ///
    /// # Errors
    /// 403 `forbidden` if an IP address is all that identifies callers; 503 `ledger_unavailable`.
    pub async fn usage(
        &self,
        caller: &Caller,
        query: Checked<SinceQuery>,
    ) -> Result<Answer, Problem> {
        if !self.knows_callers {
            return Err(Problem::new(&FORBIDDEN).detail(
                "callers are told apart by address here, and an address is no identity: what it \
                 spent is not shown",
            ));
        }
        let since = beginning(query.get().days);
        let rows = self.store.spending(Some(caller.to_string()), since, usize::MAX).await;
        let rows = rows.map_err(|_| Problem::new(&LEDGER_UNAVAILABLE))?;
        Ok(answer::json(StatusCode::OK, &own(since, &rows)))
    }

    /// What everybody spent, by caller, UTC day, service and model.
    ///
    /// # Errors
    /// 422 `invalid_request` if there are more rows than are shown, since a part would not add up; 503
    /// `ledger_unavailable`.
    pub async fn usage_of_all(&self, query: Checked<EverybodyQuery>) -> Result<Answer, Problem> {
        let EverybodyQuery { days, shape } = query.into_inner();
        let since = beginning(days);
        let rows = self.store.spending(None, since, MAX_ROWS + 1).await.map_err(unavailable)?;
        if rows.len() > MAX_ROWS {
            return Err(too_many_rows(MAX_ROWS));
        }
        Ok(match shape {
            Shape::Json => answer::json(StatusCode::OK, &of_all(since, &rows)),
            Shape::Csv => download(&rows),
        })
    }
}

/// The beginning of the first of so many UTC days, of which today is the last.
fn beginning(days: u64) -> Duration {
    let today = Date::at(clock::wall()).days();
    Date::on((today + 1).saturating_sub(days)).begins()
}

fn own(since: Duration, rows: &[Spending]) -> Own<'_> {
    let mut total = Sum::default();
    rows.iter().for_each(|row| total.add(row));
    Own {
        since: clock::iso8601(since),
        total: total.spent().to_string(),
        total_micros: total.spent().as_micros(),
        rows: rows.iter().map(own_row).collect(),
    }
}

fn own_row(of: &Spending) -> OwnRow<'_> {
    let spent = Sum::from(of).spent();
    OwnRow {
        day: day(of.day),
        service: of.service.name(),
        model: &of.model,
        count: of.count,
        spent: spent.to_string(),
        spent_micros: spent.as_micros(),
    }
}

fn of_all(since: Duration, rows: &[Spending]) -> OfAll<'_> {
    let mut total = Sum::default();
    rows.iter().for_each(|row| total.add(row));
    OfAll {
        since: clock::iso8601(since),
        total: Figures::of(total),
        rows: rows.iter().map(row).collect(),
    }
}

fn row(of: &Spending) -> Row<'_> {
    Row {
        caller: &of.caller,
        day: day(of.day),
        service: of.service.name(),
        model: &of.model,
        figures: Figures::of(of.into()),
    }
}

impl Figures {
    fn of(Sum { count, settled, unknown, held }: Sum) -> Self {
        Self {
            count,
            settled: settled.to_string(),
            settled_micros: settled.as_micros(),
            unknown: unknown.to_string(),
            unknown_micros: unknown.as_micros(),
            held: held.to_string(),
            held_micros: held.as_micros(),
        }
    }
}

fn download(rows: &[Spending]) -> Answer {
    let head = ["caller", "day", "service", "model", "count", "settled", "unknown", "held"];
    let rows = rows.iter().map(|row| {
        let [count, settled, unknown, held] = Sum::from(row).columns();
        let service = row.service.name().to_owned();
        let (caller, model) = (row.caller.clone(), row.model.clone());
        [caller, day(row.day), service, model, count, settled, unknown, held]
    });
    let text = csv(head, rows).into();
    let mut answer = answer::bytes_of(StatusCode::OK, "text/csv; charset=utf-8", text);
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let as_file = HeaderValue::from_static("attachment; filename=\"tollgate-usage.csv\"");
    headers.insert(CONTENT_DISPOSITION, as_file);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Service;

    fn row(caller: &str, model: &str, day: u64, sum: Sum) -> Spending {
        Spending {
            caller: caller.to_owned(),
            day,
            service: Service::Chat,
            model: model.to_owned(),
            count: sum.count,
            settled: sum.settled,
            unknown: sum.unknown,
            held: sum.held,
        }
    }

    fn sum(count: u64, settled: u64, unknown: u64, held: u64) -> Sum {
        Sum {
            count,
            settled: Usd::mills(settled),
            unknown: Usd::mills(unknown),
            held: Usd::mills(held),
        }
    }

    #[test]
    fn rows_are_added_up_by_any_key() {
        let rows = [
            row("a", "m", 0, sum(1, 3, 0, 0)),
            row("a", "n", 1, sum(1, 6, 0, 0)),
            row("b", "m", 1, sum(1, 0, 3_000, 0)),
            row("b", "n", 1, sum(2, 0, 0, 30)),
        ];
        let by: [fn(&Spending) -> String; 3] =
            [|row| row.caller.clone(), |row| row.model.clone(), |row| day(row.day)];
        for (by, groups) in by.into_iter().zip([
            [("a", sum(2, 9, 0, 0)), ("b", sum(3, 0, 3_000, 30))],
            [("m", sum(2, 3, 3_000, 0)), ("n", sum(3, 6, 0, 30))],
            [("1970-01-01", sum(1, 3, 0, 0)), ("1970-01-02", sum(4, 6, 3_000, 30))],
        ]) {
            let usage = Usage::of(&rows, by);
            let expected = groups.map(|(key, sum)| (key.to_owned(), sum));
            assert_eq!(usage.groups, BTreeMap::from(expected));
            assert_eq!(usage.total, sum(5, 9, 3_000, 30));
        }
        assert_eq!(Usage::of(&[], |row| row.caller.clone()), Usage::default());
        let mut most = sum(1, 0, 0, 1);
        most.add(&row("a", "m", 0, Sum { held: Usd::micros(u64::MAX), ..sum(1, 0, 0, 0) }));
        assert_eq!((most.count, most.held), (2, Usd::micros(u64::MAX)));
    }
}
