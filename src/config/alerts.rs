//! `[alerts]`: what is reported before it is a problem.

use super::read::{Section, section};
use super::value::money;
use crate::gateway::contract::money::{Thresholds, Usd};

section! {
    #[derive(PartialEq, Eq)]
    pub struct AlertsConfig {
        /// The percentages of each budget at which `budget.threshold` is reported.
        pub budget: Thresholds = with(budget),
        /// The balance below which `balance.low` is reported.
        pub balance: Usd = text("balance", money, Usd::dollars(10)),
    }
}

fn budget(section: &mut Section<'_>) -> Thresholds {
    const EXPECTED: &str =
        "expected a list of at most 4 whole percentages from 1 to 100, such as [80, 100]";
    let percent = |number: i64| match u8::try_from(number) {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err(EXPECTED.into()),
    };
    let percents = section.numbers("budget", percent, vec![80, 100]);
    Thresholds::new(&percents).unwrap_or_else(|| {
        section.error("budget", EXPECTED);
        Thresholds::NONE
    })
}
