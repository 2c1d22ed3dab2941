//! `tollgate usage`: reports spending from the ledger, also while a server runs.

use std::io::Write;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::{CommandError, Exit, ledger, print_json};
use crate::clock::{self, Date};
use crate::config::Settings;
use crate::reports::text::{csv, table};
use crate::reports::usage::{SpendTotals, iso_day};
use crate::store::SpendRow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GroupBy {
    /// The caller
    Member,
    /// The model
    Model,
    /// The UTC day
    Day,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Aligned columns
    Table,
    /// Comma-separated values with a header
    Csv,
    /// JSON with all fields
    Json,
}

/// Parses `90m`, `24h`, `7d` or `2026-11-01` into the time when the report starts.
pub(super) fn since(text: &str) -> Result<Duration, &'static str> {
    let start = if text.contains('-') { date(text) } else { before_now(text) };
    let past = start.filter(|start| *start < clock::wall());
    past.ok_or("expected a time before now, such as 24h or 7d, or a past date such as 2026-11-01")
}

fn date(text: &str) -> Option<Duration> {
    if text.len() != "2026-11-01".len() {
        return None;
    }
    let mut parts = text.split('-').map(|part| part.parse().ok());
    let date = Date { year: parts.next()??, month: parts.next()??, day: parts.next()?? };
    // The calendar turns a date that does not exist into another one.
    (iso_day(date.days()) == text).then(|| date.start())
}

fn before_now(text: &str) -> Option<Duration> {
    const UNITS: &[(char, u64)] = &[('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];
    let unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, seconds)));
    let (count, seconds) = unit?;
    let count: u64 = count.parse().ok().filter(|_| count.starts_with(|c: char| c != '+'))?;
    Some(clock::wall().saturating_sub(Duration::from_secs(count.checked_mul(*seconds)?)))
}

pub(super) async fn usage(
    settings: &Settings,
    (since, by, format): (Duration, GroupBy, OutputFormat),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let rows = ledger::open_read_only(settings)?.spend(None, since, 0, usize::MAX).await?;
    let (name, key): (_, fn(&SpendRow) -> String) = match by {
        GroupBy::Member => ("member", |row| row.caller.clone()),
        GroupBy::Model => ("model", |row| row.model.clone()),
        GroupBy::Day => ("day", |row| iso_day(row.day)),
    };
    let (groups, total) = (SpendTotals::group_by(&rows, key), SpendTotals::of(&rows));
    let lines = groups.iter().map(|(key, sum)| line(key, sum));
    match format {
        OutputFormat::Table => {
            let lines = lines.chain([line("total", &total)]);
            write!(out, "{}", table(&head(name), lines, 1))?;
        }
        OutputFormat::Csv => write!(out, "{}", csv(&head("key"), lines))?,
        OutputFormat::Json => {
            let rows = groups.iter().map(|(key, sum)| Group { key, sum }).collect();
            print_json(&Document { rows, total }, out)?;
        }
    }
    Ok(Exit::Done)
}

fn head(key: &str) -> String {
    format!("{key},{}", SpendTotals::COLUMNS)
}

fn line(key: &str, sum: &SpendTotals) -> [String; 6] {
    let [count, charged, unknown, held, saved] = sum.columns();
    [key.to_owned(), count, charged, unknown, held, saved]
}

#[derive(Serialize)]
struct Document<'a> {
    rows: Vec<Group<'a>>,
    total: SpendTotals,
}

#[derive(Serialize)]
struct Group<'a> {
    key: &'a str,
    #[serde(flatten)]
    sum: &'a SpendTotals,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::money::Usd;

    #[tokio::test(start_paused = true)]
    async fn since_is_a_date_or_a_time_before_now() {
        let now = Date { year: 2026, month: 11, day: 22 }.start();
        clock::set_wall(Some(now));
        let last = |seconds| now - Duration::from_secs(seconds);
        let day = |year, month, day| Date { year, month, day }.start();
        for (text, expected) in [
            ("24h", last(86_400)),
            ("7d", last(604_800)),
            ("90m", last(5_400)),
            ("2026-11-21", day(2026, 11, 21)),
            ("2026-11-01", day(2026, 11, 1)),
            ("2024-02-29", day(2024, 2, 29)),
            ("1970-01-01", day(1970, 1, 1)),
        ] {
            assert_eq!(since(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "7",
            "0s",
            "0d",
            "2026-11-22",
            "2026-11-23",
            "3000-01-01",
            "d",
            "-7d",
            "+7d",
            "7 d",
            "7w",
            "1.5d",
            "2026-02-30",
            "2025-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-01-00",
            "2026-1-1",
            "1969-12-31",
            "26-11-01",
            "2026-11",
            "2026-11-01T00",
            "99999999999999999999d",
            "18446744073709551615d",
            "0000-00-00",
        ] {
            assert!(since(text).is_err(), "{text}");
        }
        clock::set_wall(None);
    }

    #[test]
    fn csv_quotes_keys_with_separators() {
        let sum = SpendTotals { count: 1, charged: Usd::mills(3), ..SpendTotals::default() };
        let lines = ["a,b", "plain", "say \"hi\""].map(|key| line(key, &sum));
        let figures = "1,0.003000,0.000000,0.000000,0.000000";
        assert_eq!(
            csv(&head("key"), lines.into_iter()),
            format!(
                "key,count,charged,unknown,held,saved\n\"a,b\",{figures}\nplain,{figures}\n\"say \"\"hi\"\"\",{figures}\n"
            )
        );
    }
}
