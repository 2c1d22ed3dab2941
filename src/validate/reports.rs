//! The queries of reports: how many days, and for admins, as what.

use super::Checked;
use super::query::{Params, Wrong};
use crate::problem::{Fault, Problem};

/// How many days are shown where the query does not say.
const DEFAULT: u64 = 7;
/// A caller sees no more days than a month has, an admin no more than a year has.
const MONTH: u64 = 31;
const YEAR: u64 = 366;

/// A checked query for what a caller spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinceQuery {
    /// UTC days, today included: 1 to 31.
    pub days: u64,
}

/// A checked query for what everybody spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EverybodyQuery {
    /// UTC days, today included: 1 to 366.
    pub days: u64,
    /// How it is answered.
    pub shape: Shape,
}

/// `format=`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// One object.
    #[default]
    Json,
    /// Comma-separated values with a header, to be kept as a file.
    Csv,
}

/// Reads and judges the query of `GET /bff/usage`, without its `?`: `since=7d`.
///
/// # Errors
/// 422 `invalid_request` with every fault; its pointers name the parameters.
pub fn since(query: Option<&str>) -> Result<Checked<SinceQuery>, Problem> {
    let mut params = Params::read(query);
    let days = params.one("since", |value| days(value, MONTH));
    params.finish()?;
    Ok(Checked(SinceQuery { days: days.unwrap_or(DEFAULT) }))
}

/// Reads and judges the query of `GET /bff/admin/usage`, without its `?`: `since=30d&format=csv`.
///
/// # Errors
/// As [`since`].
pub fn everybody(query: Option<&str>) -> Result<Checked<EverybodyQuery>, Problem> {
    let mut params = Params::read(query);
    let days = params.one("since", |value| days(value, YEAR));
    let shape = params.one("format", |value| match value {
        "json" => Ok(Shape::Json),
        "csv" => Ok(Shape::Csv),
        _ => Err(Wrong { code: "bad_format", detail: "expected json or csv".to_owned() }),
    });
    params.finish()?;
    let (days, shape) = (days.unwrap_or(DEFAULT), shape.unwrap_or_default());
    Ok(Checked(EverybodyQuery { days, shape }))
}

fn days(value: &str, most: u64) -> Result<u64, Wrong> {
    let digits = value.strip_suffix('d').unwrap_or_default();
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let days = digits.parse().ok().filter(|days| plain && (1..=most).contains(days));
    days.ok_or_else(|| {
        let detail = format!("expected 1d to {most}d, such as since={DEFAULT}d");
        Wrong { code: "bad_period", detail }
    })
}

/// 422 for a query that more rows answer than are told at once.
pub fn too_many_rows(most: usize) -> Problem {
    Problem::invalid(vec![Fault {
        pointer: "/since".to_owned(),
        code: "too_many_rows",
        detail: format!(
            "there are more than {most} rows; ask for fewer days, or run `tollgate usage` beside the \
             ledger"
        ),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_of_days_can_be_asked_for_and_nothing_else() {
        for (query, days) in
            [(None, 7), (Some(""), 7), (Some("since=1d"), 1), (Some("since=31d"), 31)]
        {
            assert_eq!(since(query).expect("right").get().days, days, "{query:?}");
        }
        for (query, code) in [
            ("since=0d", "bad_period"),
            ("since=32d", "bad_period"),
            ("since=7", "bad_period"),
            ("since=+7d", "bad_period"),
            ("since=", "bad_period"),
            ("since=24h", "bad_period"),
            ("since=99999999999999999999d", "bad_period"),
            ("since=1d&since=1d", "duplicate"),
            ("until=1d", "unknown_parameter"),
        ] {
            let problem = since(Some(query)).expect_err(query);
            let codes: Vec<_> = problem.faults().iter().map(|fault| fault.code).collect();
            assert_eq!(codes, [code], "{query}");
        }
    }

    #[test]
    fn a_year_of_days_can_be_asked_for_as_json_or_csv() {
        for (query, days, shape) in [
            (None, 7, Shape::Json),
            (Some("since=366d"), 366, Shape::Json),
            (Some("format=csv"), 7, Shape::Csv),
            (Some("format=json&since=1d"), 1, Shape::Json),
        ] {
            let found = *everybody(query).expect("right").get();
            assert_eq!(found, EverybodyQuery { days, shape }, "{query:?}");
        }
        for (query, codes) in [
            ("since=367d", &["bad_period"][..]),
            ("since=0d&format=xml", &["bad_period", "bad_format"]),
            ("format=", &["bad_format"]),
            ("format=csv&format=csv", &["duplicate"]),
            ("since=1d&since=2d", &["duplicate"]),
            ("caller=ann", &["unknown_parameter"]),
        ] {
            let problem = everybody(Some(query)).expect_err(query);
            let found: Vec<_> = problem.faults().iter().map(|fault| fault.code).collect();
            assert_eq!(found, codes, "{query}");
        }
    }
}
