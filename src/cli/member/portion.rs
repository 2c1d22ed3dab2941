//! `--budget 5.00/day`: one part of a member's own budget.

use super::Refusal;
use crate::cli::Exit;
use crate::contract::money::Usd;
use crate::store::Own;

/// What may be spent in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// Per UTC day.
    Day(Usd),
    /// Per UTC month.
    Month(Usd),
}

/// No more than this can be counted.
const LARGEST: Usd = Usd::dollars(1_000_000_000);

pub(super) fn read(text: &str) -> Result<Portion, String> {
    let expected = || "expected dollars and a period, such as 5.00/day or 50.00/month".to_owned();
    let (amount, period) = text.split_once('/').ok_or_else(expected)?;
    let amount: Usd = amount.parse().map_err(|error| format!("{}: {error}", expected()))?;
    if amount > LARGEST {
        return Err(format!("expected at most {}", LARGEST.short()));
    }
    match period {
        "day" => Ok(Portion::Day(amount)),
        "month" => Ok(Portion::Month(amount)),
        _ => Err(expected()),
    }
}

/// A period that is named twice is a mistake.
pub(super) fn must_differ(portions: &[Portion]) -> Result<(), Refusal> {
    let day = |portion: &Portion| matches!(portion, Portion::Day(_));
    if portions.len() > 2 || matches!(portions, [one, other] if day(one) == day(other)) {
        let why = "--budget: expected each period once at most".to_owned();
        return Err(Refusal(Exit::Mistake, why));
    }
    Ok(())
}

/// The budget with these portions instead of its own.
pub(super) fn join(own: Own, portions: &[Portion]) -> Own {
    portions.iter().fold(own, |own, portion| match *portion {
        Portion::Day(amount) => Own { day: Some(amount), ..own },
        Portion::Month(amount) => Own { month: Some(amount), ..own },
    })
}

pub(super) fn words(own: Own) -> String {
    match (own.day, own.month) {
        (None, None) => "without a budget of its own".to_owned(),
        (Some(day), None) => format!("budget {} a day", day.short()),
        (None, Some(month)) => format!("budget {} a month", month.short()),
        (Some(day), Some(month)) => {
            format!("budget {} a day, {} a month", day.short(), month.short())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_dollars_and_a_period() {
        for (text, portion) in [
            ("5.00/day", Portion::Day(Usd::dollars(5))),
            ("0.006/month", Portion::Month(Usd::mills(6))),
            ("0/day", Portion::Day(Usd::ZERO)),
        ] {
            assert_eq!(read(text), Ok(portion));
        }
        for text in ["", "5", "5/week", "5.00 / day", "$5/day", "/day", "-1/day", "1/day/month"] {
            assert!(read(text).unwrap_err().contains("5.00/day"), "{text}");
        }
        assert!(read("1000000001/day").is_err());
    }
}
