//! What the commands for members and groups have in common: budgets.

use crate::api::reports::text::limit_text;
use crate::gateway::contract::member;
use crate::gateway::contract::money::{ParseUsdError, Usd};
use crate::ledger::{LimitChange, Period, SpendLimit};

/// Reads a limit such as `5.00/day`. An error says what is wrong, then what is expected.
pub(super) fn budget(text: &str) -> Result<SpendLimit, String> {
    let wrong = |problem: &str| {
        format!(
            "{problem}; expected dollars and a period (day, week, month or ever), such as 5.00/day \
             or 50.00/month"
        )
    };
    let (amount, period) = text.split_once('/').ok_or_else(|| wrong("there is no period"))?;
    if amount.parse::<Usd>() == Err(ParseUsdError::Malformed) {
        return Err(wrong(&format!("{amount:?} is not a plain amount")));
    }
    let amount = member::parse_amount(amount)?;
    let limit = Period::named(period).map(|period| SpendLimit::of(period, amount));
    limit.ok_or_else(|| wrong(&format!("{period:?} is not a period")))
}

/// Merges the budgets of a command. Rejects a period that is given twice.
pub(super) fn merge_budgets<'a>(
    budgets: impl IntoIterator<Item = &'a SpendLimit>,
) -> Result<SpendLimit, &'static str> {
    budgets.into_iter().try_fold(SpendLimit::default(), |budget, one| {
        if one.rows().any(|(period, _)| budget.get(period).is_some()) {
            return Err("--budget: expected each period at most once");
        }
        Ok(one.or(budget))
    })
}

/// Returns the change that sets these limits, and removes the others on request.
pub(super) fn limit_change(removes_others: bool, limits: SpendLimit) -> LimitChange {
    let base = if removes_others { LimitChange::REMOVE_ALL } else { LimitChange::default() };
    base.set(limits)
}

pub(super) fn budget_text(budget: SpendLimit) -> String {
    limit_text(budget).map_or("no budget of its own".to_owned(), |limit| format!("budget {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_has_dollars_and_a_period() {
        let day = |amount| SpendLimit::of(Period::Day, amount);
        for (text, expected) in [
            ("5.00/day", day(Usd::dollars(5))),
            ("0.006/month", SpendLimit::of(Period::Month, Usd::mills(6))),
            ("0/day", day(Usd::ZERO)),
        ] {
            assert_eq!(budget(text), Ok(expected));
        }
        let expected = "expected dollars and a period (day, week, month or ever), such as 5.00/day \
                        or 50.00/month";
        for (text, problem) in [
            ("", "there is no period"),
            ("5", "there is no period"),
            ("5/year", "\"year\" is not a period"),
            ("5/", "\"\" is not a period"),
            ("1/day/month", "\"day/month\" is not a period"),
            ("5.00 / day", "\"5.00 \" is not a plain amount"),
            ("$5/day", "\"$5\" is not a plain amount"),
            ("/day", "\"\" is not a plain amount"),
            ("-1/day", "\"-1\" is not a plain amount"),
        ] {
            assert_eq!(budget(text).unwrap_err(), format!("{problem}; {expected}"), "{text}");
        }
        for (text, expected) in [
            ("1000000001/day", "expected at most $1000000000"),
            ("0.0000001/day", "expected at most six places after the point"),
        ] {
            assert!(budget(text).unwrap_err().starts_with(expected), "{text}");
        }
    }
}
