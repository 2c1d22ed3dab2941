//! `[budget]`: what callers may spend.

use super::read::{Section, section};
use super::value::money;
use crate::gateway::contract::money::{Period, SpendLimit};

section! {
    #[derive(Copy, Default)]
    pub struct BudgetConfig {
        /// All callers together.
        pub total: SpendLimit = with(|section| spend(section, "total")),
        /// Each caller.
        pub caller: SpendLimit = with(|section| spend(section, "caller")),
    }
}

/// Reads what may be spent per UTC day, week (from Monday) and month, and ever. The default is no limit.
fn spend(section: &mut Section<'_>, name: &str) -> SpendLimit {
    let limit = section.table(name, |table| {
        if !Period::ALL.iter().any(|period| table.has(period.name())) {
            table.section_error("expected `day`, `week`, `month`, `ever` or several of them");
        }
        let mut amount = |period: Period| table.optional(period.name(), money);
        SpendLimit {
            day: amount(Period::Day),
            week: amount(Period::Week),
            month: amount(Period::Month),
            ever: amount(Period::Ever),
        }
    });
    limit.unwrap_or_default()
}
