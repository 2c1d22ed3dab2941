//! `tollgate usage`: what was spent, from the ledger, also while a server is writing it.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::{Exit, ledger};
use crate::clock::{self, Date};
use crate::config::Config;
use crate::reports::csv::cell;
use crate::reports::usage::{self, Sum, Usage};
use crate::store::{Row, Store};

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
    let (name, by) = match by {
        By::Member => ("member", usage::By::Member),
        By::Model => ("model", usage::By::Model),
        By::Day => ("day", usage::By::Day),
    };
    let usage = usage::add_up(&rows, by);
    match format {
        Format::Table => table(name, &usage, out)?,
        Format::Csv => csv(&usage, out)?,
        Format::Json => json(&usage, out)?,
    }
    Ok(Exit::Done)
}

async fn rows(config: &Config, since: Since) -> Result<Vec<Row>, String> {
    let path = ledger::file(config)?;
    let ledger =
        Store::open_read_only(path, Arc::new(clock::wall)).map_err(|error| error.to_string())?;
    ledger.rows(since.moment(clock::wall())).await.map_err(|error| error.to_string())
}

fn columns(sum: &Sum) -> [String; 4] {
    [sum.count.to_string(), sum.settled.to_string(), sum.unknown.to_string(), sum.held.to_string()]
}

fn table(by: &str, usage: &Usage, out: &mut impl Write) -> io::Result<()> {
    let head = ["count", "settled", "unknown", "held"].map(str::to_owned);
    let groups = usage.groups.iter().map(|(key, sum)| (key.as_str(), columns(sum)));
    let lines: Vec<_> = std::iter::once((by, head))
        .chain(groups)
        .chain([("total", columns(&usage.total))])
        .collect();
    let first = lines.iter().map(|(key, _)| key.chars().count()).max().unwrap_or_default();
    let widths: [usize; 4] = std::array::from_fn(|column| {
        lines.iter().map(|(_, cells)| cells[column].len()).max().unwrap_or_default()
    });
    for (key, cells) in &lines {
        write!(out, "{key:<first$}")?;
        for (cell, width) in cells.iter().zip(widths) {
            write!(out, "  {cell:>width$}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn csv(usage: &Usage, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "key,count,settled,unknown,held")?;
    for (key, sum) in &usage.groups {
        writeln!(out, "{},{}", cell(key), columns(sum).join(","))?;
    }
    Ok(())
}

fn json(usage: &Usage, out: &mut impl Write) -> io::Result<()> {
    let report = Report {
        rows: usage
            .groups
            .iter()
            .map(|(key, sum)| Group { key, figures: Figures::of(sum) })
            .collect(),
        total: Figures::of(&usage.total),
    };
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
        let [_, settled, unknown, held] = columns(sum);
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
        let groups = ["a,b", "say \"hi\"", "plain"].map(|key| (key.to_owned(), sum));
        let mut out = Vec::new();
        csv(&Usage { groups: groups.into(), total: sum }, &mut out).unwrap();
        let figures = "1,0.003000,0.000000,0.000000";
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!(
                "key,count,settled,unknown,held\n\"a,b\",{figures}\nplain,{figures}\n\"say \"\"hi\"\"\",{figures}\n"
            )
        );
    }
}
