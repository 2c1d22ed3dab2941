//! `tollgate usage`: what was spent, from the ledger, also while a server is writing it.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::{Exit, ledger};
use crate::clock::{self, Date};
use crate::config::Config;
use crate::reports::text::{csv, table};
use crate::reports::usage::{Sum, Usage, day};
use crate::store::{Spending, Store};

/// `--by`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Who bought
    Member,
    /// What was bought
    Model,
    /// The UTC day
    Day,
}

/// `--format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people
    Table,
    /// Comma-separated values with a header
    Csv,
    /// One object with `rows` and `total`
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
pub(super) fn since(text: &str) -> Result<Since, String> {
    let expected = || "expected a time such as 24h or 7d, or a date such as 2026-11-01".to_owned();
    if let [year, month, day] = text.split('-').collect::<Vec<_>>()[..] {
        let is_date = (year.len(), month.len(), day.len()) == (4, 2, 2);
        let (year, month, day) = (number(year), number(month), number(day));
        let (Some(year), Some(month), Some(day)) = (year, month, day) else {
            return Err(expected());
        };
        let date = Date { year, month, day };
        // A day that the calendar does not have comes back as another one.
        let exists = year >= 1970 && (1..=12).contains(&month) && Date::on(date.days()) == date;
        return if is_date && exists { Ok(Since::Day(date)) } else { Err(expected()) };
    }
    const UNITS: &[(char, u64)] = &[('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];
    let unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, seconds)));
    let (count, seconds) = unit.ok_or_else(expected)?;
    let seconds =
        number(count).and_then(|count| count.checked_mul(*seconds)).ok_or_else(expected)?;
    Ok(Since::Last(Duration::from_secs(seconds)))
}

fn number(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

impl Since {
    fn moment(self, now: Duration) -> Duration {
        match self {
            Self::Last(time) => now.saturating_sub(time),
            Self::Day(date) => date.begins(),
        }
    }
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Model => "model",
            Self::Day => "day",
        }
    }

    fn key(self, row: &Spending) -> String {
        match self {
            Self::Member => row.caller.clone(),
            Self::Model => row.model.clone(),
            Self::Day => day(row.day),
        }
    }
}

/// Prints the report to `out`; a ledger that cannot be read is a sentence on `err`.
///
/// # Errors
/// That of writing.
pub async fn usage(
    config: &Config,
    (since, by, format): (Since, By, Format),
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let rows = match rows(config, since).await {
        Ok(rows) => rows,
        Err(why) => {
            writeln!(err, "tollgate usage: {why}")?;
            return Ok(Exit::Failed);
        }
    };
    let usage = Usage::of(&rows, |row| by.key(row));
    let line = |(key, sum): (&String, &Sum)| line(key, sum);
    match format {
        Format::Table => {
            let lines = usage.groups.iter().map(line);
            let lines = lines.chain([line((&"total".to_owned(), &usage.total))]);
            write!(out, "{}", table(head(by.name()), lines, 1))?;
        }
        Format::Csv => write!(out, "{}", csv(head("key"), usage.groups.iter().map(line)))?,
        Format::Json => json(&usage, out)?,
    }
    Ok(Exit::Done)
}

async fn rows(config: &Config, since: Since) -> Result<Vec<Spending>, String> {
    let path = ledger::file(config)?;
    let ledger =
        Store::open_read_only(path, Arc::new(clock::wall)).map_err(|error| error.to_string())?;
    let rows = ledger.spending(None, since.moment(clock::wall()), usize::MAX).await;
    rows.map_err(|error| error.to_string())
}

fn head(key: &str) -> [&str; 5] {
    let [count, settled, unknown, held] = Sum::COLUMNS;
    [key, count, settled, unknown, held]
}

fn line(key: &str, sum: &Sum) -> [String; 5] {
    let [count, settled, unknown, held] = sum.columns();
    [key.to_owned(), count, settled, unknown, held]
}

fn json(usage: &Usage, out: &mut impl Write) -> io::Result<()> {
    let rows = usage.groups.iter().map(|(key, sum)| Group { key, figures: Figures::of(sum) });
    let report = Report { rows: rows.collect(), total: Figures::of(&usage.total) };
    serde_json::to_writer(&mut *out, &report)?;
    writeln!(out)
}

#[derive(Serialize)]
struct Report<'a> {
    rows: Vec<Group<'a>>,
    total: Figures,
}

#[derive(Serialize)]
struct Group<'a> {
    key: &'a str,
    #[serde(flatten)]
    figures: Figures,
}

/// Money as decimal strings of six places.
#[derive(Serialize)]
struct Figures {
    count: u64,
    settled: String,
    unknown: String,
    held: String,
}

impl Figures {
    fn of(sum: &Sum) -> Self {
        let [_, settled, unknown, held] = sum.columns();
        Self { count: sum.count, settled, unknown, held }
    }
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
        let sum = Sum { count: 1, settled: Usd::mills(3), ..Sum::default() };
        let lines = ["a,b", "plain", "say \"hi\""].map(|key| line(key, &sum));
        let figures = "1,0.003000,0.000000,0.000000";
        assert_eq!(
            csv(head("key"), lines.into_iter()),
            format!(
                "key,count,settled,unknown,held\n\"a,b\",{figures}\nplain,{figures}\n\"say \"\"hi\"\"\",{figures}\n"
            )
        );
    }
}
