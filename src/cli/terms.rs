//! What the commands for members and groups have in common: budgets.

use super::CommandError;
use super::check::limit;
use crate::contract::member::{self, LimitChange};
use crate::store::{Period, SpendLimit};

pub(super) fn budget(text: &str) -> Result<SpendLimit, String> {
    let expected = || {
        "expected dollars and a period, such as 5.00/day or 50.00/month; also week, ever".to_owned()
    };
    let (amount, period) = text.split_once('/').ok_or_else(expected)?;
    let amount =
        member::parse_amount(amount).map_err(|error| format!("{}: {error}", expected()))?;
    Period::named(period).map(|period| SpendLimit::of(period, amount)).ok_or_else(expected)
}

/// Merges the budgets of a command. Rejects a period that is given twice.
pub(super) fn merge_budgets(budgets: &[SpendLimit]) -> Result<SpendLimit, CommandError> {
    budgets.iter().try_fold(SpendLimit::default(), |budget, one| {
        if one.rows().any(|(period, _)| budget.get(period).is_some()) {
            return Err(CommandError::usage("--budget: expected each period at most once"));
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
    limit(budget).map_or("no budget of its own".to_owned(), |limit| format!("budget {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::money::Usd;

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
        for text in ["", "5", "5/year", "5.00 / day", "$5/day", "/day", "-1/day", "1/day/month"] {
            assert!(budget(text).unwrap_err().contains("5.00/day"), "{text}");
        }
        assert!(budget("1000000001/day").is_err());
    }
}
