//! `tollgate usage`: reports spending from the ledger, also while a server runs.

use std::cmp::Reverse;
use std::io::Write;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;

use super::{CommandError, Exit, ledger, print_json};
use crate::api::reports::list_of;
use crate::api::reports::text::{csv, table};
use crate::api::reports::usage::{SpendTotals, iso_day};
use crate::clock::{self, Date, iso8601};
use crate::config::Settings;
use crate::ledger::{SpendRow, ZoneOffsets};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GroupBy {
    /// The caller
    Caller,
    /// The group
    Group,
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

impl GroupBy {
    fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Group => "group",
            Self::Model => "model",
            Self::Day => "day",
        }
    }

    fn key(self, row: &SpendRow) -> String {
        match self {
            Self::Caller => row.caller.clone(),
            Self::Group => row.group.clone().unwrap_or_default(),
            Self::Model => row.model.clone(),
            Self::Day => iso_day(row.day),
        }
    }
}

/// Parses the last day of the report.
pub(super) fn until(text: &str) -> Result<Date, &'static str> {
    date(text).map(Date::at).ok_or("expected a date such as 2026-11-30")
}

/// Parses `90m`, `24h`, `7d`, `today` or `2026-11-01` into the time when the report starts.
pub(super) fn since(text: &str) -> Result<Duration, &'static str> {
    if text == "today" {
        return Ok(Date::at(clock::wall()).start());
    }
    let start = if text.contains('-') { date(text) } else { before_now(text) };
    let past = start.filter(|start| *start < clock::wall());
    past.ok_or(
        "expected today, a time before now, such as 24h or 7d, or a past date such as 2026-11-01",
    )
}

fn date(text: &str) -> Option<Duration> {
    text.parse().ok().map(Date::start)
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
    (since, until): (Duration, Option<Date>),
    (all, format): (&[GroupBy], OutputFormat),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    if until.is_some_and(|until| until < Date::at(since)) {
        return Err(CommandError::usage(
            "--until: expected a date that is not before --since (7d by default)",
        ));
    }
    let is_first = |(at, by): &(usize, &GroupBy)| !all[..*at].contains(by);
    let by: Vec<_> = all.iter().enumerate().filter(is_first).map(|(_, by)| *by).collect();
    let by = by.as_slice();
    let mut rows = ledger::open_read_only(settings)
        .await?
        .spend(None, since, ZoneOffsets::default(), usize::MAX)
        .await?;
    rows.retain(|row| until.is_none_or(|until| row.day <= until.days()));
    let key = |row: &SpendRow| by.iter().map(|by| by.key(row)).collect::<Vec<_>>();
    let (groups, total) = (SpendTotals::group_by(&rows, key), SpendTotals::of(&rows));
    let mut groups: Vec<_> = groups.into_iter().collect();
    if !by.contains(&GroupBy::Day) {
        groups.sort_by_key(|(_, sum)| Reverse(sum.spent()));
    }
    let lines = groups.iter().map(|(key, sum)| line(key, sum));
    match format {
        OutputFormat::Table => {
            let mut last = vec![String::new(); by.len()];
            "total".clone_into(&mut last[0]);
            let lines = lines.chain([line(&last, &total)]);
            write!(out, "{}", table(&head(by), lines, by.len()))?;
        }
        OutputFormat::Csv => write!(out, "{}", csv(&head(by), lines))?,
        OutputFormat::Json => {
            let row = |(key, sum): &(Vec<String>, SpendTotals)| {
                let mut row = sum.json();
                for (by, value) in by.iter().zip(key) {
                    row[by.name()] = json!(value);
                }
                row
            };
            let facts = json!({ "since": iso8601(since), "total": total.json() });
            print_json(&list_of(groups.iter().map(row)).with(facts), out)?;
        }
    }
    Ok(Exit::Done)
}

fn head(by: &[GroupBy]) -> String {
    let names: Vec<_> = by.iter().map(|by| by.name()).collect();
    format!("{},{}", names.join(","), SpendTotals::COLUMNS)
}

fn line(key: &[String], sum: &SpendTotals) -> Vec<String> {
    [key, &sum.columns()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::contract::money::Usd;

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
            ("today", now),
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
        let lines = ["a,b", "plain", "say \"hi\""].map(|key| line(&[key.to_owned()], &sum));
        let figures = "1,0.003000,0.000000,0.000000,0.000000";
        assert_eq!(
            csv(&head(&[GroupBy::Caller]), lines.into_iter()),
            format!(
                "caller,count,charged,unknown,held,saved\n\"a,b\",{figures}\nplain,{figures}\n\"say \"\"hi\"\"\",{figures}\n"
            )
        );
    }
}
