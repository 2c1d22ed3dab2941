//! `GET /bff/admin/usage`: what everybody spent, by caller, UTC day and model.

use std::fmt::Write;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::clock::{self, Date};
use crate::contract::money::Usd;
use crate::reports::csv::cell;
use crate::store::{CallerSpending, Store, Unavailable};
use crate::validate::{EverybodyQuery, Shape};

/// More are no answer for a page, and memory that one caller can have us fill.
pub(super) const MOST_ROWS: usize = 20_000;

const HEAD: &str = "caller,day,service,model,count,settled,unknown,held\n";

#[derive(Serialize)]
struct Document<'a> {
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

/// What was charged, what nobody knows, and what is under way; all three count as spent.
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

/// `Ok(None)` where there are more rows than anybody is told at once: a part would not add up.
pub(super) async fn answer(
    ledger: &Store,
    query: EverybodyQuery,
) -> Result<Option<Answer>, Unavailable> {
    let today = Date::at(clock::wall()).days();
    let since = Date::on((today + 1).saturating_sub(query.days)).begins();
    let rows = ledger.spending_of_all(since, MOST_ROWS + 1).await?;
    Ok((rows.len() <= MOST_ROWS).then(|| match query.shape {
        Shape::Json => answer::json(StatusCode::OK, &document(since, &rows)),
        Shape::Csv => download(csv(&rows)),
    }))
}

fn document(since: Duration, rows: &[CallerSpending]) -> Document<'_> {
    let total = rows.iter().fold((0, [Usd::ZERO; 3]), |(count, sums), row| {
        let sums = [(sums[0], row.settled), (sums[1], row.unknown), (sums[2], row.held)];
        let add = |(sum, more): (Usd, Usd)| sum.checked_add(more).unwrap_or(Usd::micros(u64::MAX));
        (count + row.count, sums.map(add))
    });
    Document {
        since: clock::iso8601(since),
        total: figures(total.0, total.1),
        rows: rows.iter().map(row).collect(),
    }
}

fn row(of: &CallerSpending) -> Row<'_> {
    Row {
        caller: &of.caller,
        day: day(of.day),
        service: of.service.name(),
        model: &of.model,
        figures: figures(of.count, [of.settled, of.unknown, of.held]),
    }
}

fn figures(count: u64, [settled, unknown, held]: [Usd; 3]) -> Figures {
    Figures {
        count,
        settled: settled.to_string(),
        settled_micros: settled.as_micros(),
        unknown: unknown.to_string(),
        unknown_micros: unknown.as_micros(),
        held: held.to_string(),
        held_micros: held.as_micros(),
    }
}

fn csv(rows: &[CallerSpending]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let CallerSpending { caller, service, model, count, settled, unknown, held, .. } = row;
        let (caller, model) = (cell(caller), cell(model));
        let (day, service) = (day(row.day), service.name());
        // Writing to a text does not fail.
        let _ =
            writeln!(text, "{caller},{day},{service},{model},{count},{settled},{unknown},{held}");
    }
    text
}

fn day(days: u64) -> String {
    let Date { year, month, day } = Date::on(days);
    format!("{year:04}-{month:02}-{day:02}")
}

fn download(text: String) -> Answer {
    let mut answer = answer::bytes_of(StatusCode::OK, "text/csv; charset=utf-8", text.into());
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let as_file = HeaderValue::from_static("attachment; filename=\"tollgate-usage.csv\"");
    headers.insert(CONTENT_DISPOSITION, as_file);
    answer
}
