//! The query of `GET /bff/usage`: how many days, and nothing else.

use super::Checked;
use super::rule::{Faults, Rule};
use super::text::shown;
use crate::problem::Problem;

/// How many days are shown where the query does not say.
const DEFAULT: u64 = 7;
/// No more are shown than a month has.
const MOST: u64 = 31;

/// A checked query for what was spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinceQuery {
    /// UTC days, today included: 1 to 31.
    pub days: u64,
}

/// Reads and judges the query, without its `?`: `since=7d`.
///
/// Errors: 422 `invalid_request` with every fault; its pointers name the parameters.
pub fn since(query: Option<&str>) -> Result<Checked<SinceQuery>, Problem> {
    let mut draft = Draft::default();
    let mut unknown = Faults::default();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("since", value) => draft.periods.push(days(value, MOST)),
            (name, _) => unknown.push(
                format_args!("/{}", shown(name).replace('~', "~0").replace('/', "~1")),
                "unknown_parameter",
                format!("there is no parameter `{}`; known: since", shown(name)),
            ),
        }
    }
    let mut faults = Faults::default();
    faults.judge(RULES, &draft, &"");
    faults.append(unknown);
    match faults.is_empty() {
        true => {
            let days = draft.periods.first().copied().flatten().unwrap_or(DEFAULT);
            Ok(Checked(SinceQuery { days }))
        }
        false => Err(faults.into_problem()),
    }
}

/// Every `since` of the query, in days; `None` for one that is no such period.
#[derive(Default)]
struct Draft {
    periods: Vec<Option<u64>>,
}

#[rustfmt::skip]
const RULES: &[Rule<Draft>] = &[
    Rule { pointer: "/since", code: "duplicate", broken: |query| {
        (query.periods.len() > 1).then(|| format!("expected one since, not {}", query.periods.len()))
    } },
    Rule { pointer: "/since", code: "bad_period", broken: |query| {
        query.periods.contains(&None).then(|| format!("expected 1d to {MOST}d, such as since={DEFAULT}d"))
    } },
];

/// So many days, from 1 to `most`.
pub(super) fn days(value: &str, most: u64) -> Option<u64> {
    let digits = value.strip_suffix('d')?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|days| plain && (1..=most).contains(days))
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
}
