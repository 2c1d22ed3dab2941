//! `tollgate usage`: what was spent, from the ledger, also while a server is writing it.

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

/// `--by`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GroupBy {
    /// Who bought
    Member,
    /// What was bought
    Model,
    /// The UTC day
    Day,
}

/// `--format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Columns for people
    Table,
    /// Comma-separated values with a header
    Csv,
    /// JSON with all details
    Json,
}

/// `--since`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// So long before now.
    Last(Duration),
    /// From the beginning of this UTC day on.
    Day(Date),
}

/// Reads `90m`, `24h`, `7d`, or a date such as `2026-11-01`.
pub(super) fn since(text: &str) -> Result<Since, &'static str> {
    let parsed = if text.contains('-') { date(text) } else { duration(text) };
    parsed.ok_or("expected a time such as 24h or 7d, or a date such as 2026-11-01")
}

fn date(text: &str) -> Option<Since> {
    let [year, month, day] = text.split('-').collect::<Vec<_>>()[..] else { return None };
    let is_date = (year.len(), month.len(), day.len()) == (4, 2, 2);
    let date = Date { year: number(year)?, month: number(month)?, day: number(day)? };
    // A day that the calendar does not have comes back as another one.
    let exists =
        date.year >= 1970 && (1..=12).contains(&date.month) && Date::from_days(date.days()) == date;
    (is_date && exists).then_some(Since::Day(date))
}

fn duration(text: &str) -> Option<Since> {
    const UNITS: &[(char, u64)] = &[('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];
    let unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, seconds)));
    let (count, seconds) = unit?;
    Some(Since::Last(Duration::from_secs(number(count)?.checked_mul(*seconds)?)))
}

fn number(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

pub async fn usage(
    config: &Settings,
    (since, by, format): (Since, GroupBy, OutputFormat),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let since = match since {
        Since::Last(time) => clock::wall().saturating_sub(time),
        Since::Day(date) => date.start(),
    };
    let rows = ledger::open_read_only(config)?.spend(None, since, usize::MAX).await?;
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

fn line(key: &str, sum: &SpendTotals) -> [String; 5] {
    let [count, charged, unknown, held] = sum.columns();
    [key.to_owned(), count, charged, unknown, held]
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

    #[test]
    fn a_time_or_a_date_says_since_when() {
        let day = |year, month, day| Since::Day(Date { year, month, day });
        for (text, expected) in [
            ("24h", Since::Last(Duration::from_secs(86_400))),
            ("7d", Since::Last(Duration::from_secs(604_800))),
            ("90m", Since::Last(Duration::from_secs(5_400))),
            ("0s", Since::Last(Duration::ZERO)),
            ("2026-11-01", day(2026, 11, 1)),
            ("2024-02-29", day(2024, 2, 29)),
            ("1970-01-01", day(1970, 1, 1)),
        ] {
            assert_eq!(since(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "7",
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
    }

    #[test]
    fn a_key_that_would_break_a_line_is_quoted() {
        let sum = SpendTotals { count: 1, charged: Usd::mills(3), ..SpendTotals::default() };
        let lines = ["a,b", "plain", "say \"hi\""].map(|key| line(key, &sum));
        let figures = "1,0.003000,0.000000,0.000000";
        assert_eq!(
            csv(&head("key"), lines.into_iter()),
            format!(
                "key,count,charged,unknown,held\n\"a,b\",{figures}\nplain,{figures}\n\"say \"\"hi\"\"\",{figures}\n"
            )
        );
    }
}
