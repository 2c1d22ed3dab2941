//! The query of `GET /bff/admin/usage`: how many days, and as what.

use super::Checked;
use super::rule::{Faults, Rule};
use super::since::days;
use super::text::shown;
use crate::problem::{Fault, Problem};

/// How many days are shown where the query does not say.
const DEFAULT: u64 = 7;
/// No more are shown than a year has.
const MOST: u64 = 366;

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

/// Reads and judges the query, without its `?`: `since=30d&format=csv`.
///
/// Errors: 422 `invalid_request` with every fault; its pointers name the parameters.
pub fn everybody(query: Option<&str>) -> Result<Checked<EverybodyQuery>, Problem> {
    let mut draft = Draft::default();
    let mut unknown = Faults::default();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("since", value) => draft.periods.push(days(value, MOST)),
            ("format", "json") => draft.shapes.push(Some(Shape::Json)),
            ("format", "csv") => draft.shapes.push(Some(Shape::Csv)),
            ("format", _) => draft.shapes.push(None),
            (name, _) => unknown.push(
                format_args!("/{}", shown(name).replace('~', "~0").replace('/', "~1")),
                "unknown_parameter",
                format!("there is no parameter `{}`; known: since, format", shown(name)),
            ),
        }
    }
    let mut faults = Faults::default();
    faults.judge(RULES, &draft, &"");
    faults.append(unknown);
    match faults.is_empty() {
        true => {
            let days = draft.periods.first().copied().flatten().unwrap_or(DEFAULT);
            let shape = draft.shapes.first().copied().flatten().unwrap_or_default();
            Ok(Checked(EverybodyQuery { days, shape }))
        }
        false => Err(faults.into_problem()),
    }
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

/// Every parameter of the query; `None` for a value that is none.
#[derive(Default)]
struct Draft {
    periods: Vec<Option<u64>>,
    shapes: Vec<Option<Shape>>,
}

#[rustfmt::skip]
const RULES: &[Rule<Draft>] = &[
    Rule { pointer: "/since", code: "duplicate", broken: |query| {
        (query.periods.len() > 1).then(|| format!("expected one since, not {}", query.periods.len()))
    } },
    Rule { pointer: "/since", code: "bad_period", broken: |query| {
        query.periods.contains(&None).then(|| format!("expected 1d to {MOST}d, such as since={DEFAULT}d"))
    } },
    Rule { pointer: "/format", code: "duplicate", broken: |query| {
        (query.shapes.len() > 1).then(|| format!("expected one format, not {}", query.shapes.len()))
    } },
    Rule { pointer: "/format", code: "bad_format", broken: |query| {
        query.shapes.contains(&None).then(|| "expected json or csv".to_owned())
    } },
];

#[cfg(test)]
mod tests {
    use super::*;

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
