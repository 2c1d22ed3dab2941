//! Adds up what purchases cost, by member, model or day.

use std::collections::BTreeMap;

use crate::clock::Date;
use crate::contract::money::Usd;
use crate::store::{Row, State};

/// What purchases are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Whose they are.
    Member,
    /// What was bought.
    Model,
    /// The UTC day on which they began.
    Day,
}

/// What a group of purchases comes to. Voided ones count nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub count: u64,
    /// What those that were charged cost.
    pub settled: Usd,
    /// The tolls of those of which nobody knows; they count as spent.
    pub unknown: Usd,
    /// The tolls that are set aside for what is under way.
    pub held: Usd,
}

/// Groups in the order of their keys, and all together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Key and sum.
    pub groups: BTreeMap<String, Sum>,
    /// Of all groups.
    pub total: Sum,
}

/// Adds up `rows`.
pub fn add_up(rows: &[Row], by: By) -> Usage {
    let mut usage = Usage::default();
    for row in rows.iter().filter(|row| row.state != State::Voided) {
        usage.groups.entry(key(row, by)).or_default().add(row);
        usage.total.add(row);
    }
    usage
}

fn key(row: &Row, by: By) -> String {
    match by {
        By::Member => row.caller.clone(),
        By::Model => row.model.clone(),
        By::Day => {
            let Date { year, month, day } = Date::at(row.at);
            format!("{year:04}-{month:02}-{day:02}")
        }
    }
}

impl Sum {
    fn add(&mut self, row: &Row) {
        let amount = match row.state {
            State::Voided => return,
            State::Posted => &mut self.settled,
            State::Unknown => &mut self.unknown,
            State::Reserved | State::Sent => &mut self.held,
        };
        // The ledger itself counts no further than this.
        *amount = amount.checked_add(row.toll).unwrap_or(Usd::micros(u64::MAX));
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::{PurchaseId, Service};

    fn row(caller: &str, model: &str, day: u64, mills: u64, state: State) -> Row {
        Row {
            id: PurchaseId::new(),
            at: Date::on(day).begins() + Duration::from_secs(86_399),
            ended: None,
            caller: caller.to_owned(),
            service: Service::Chat,
            model: model.to_owned(),
            toll: Usd::mills(mills),
            state,
        }
    }

    #[test]
    fn each_state_has_its_column_and_voided_ones_have_none() {
        let rows = [
            row("a", "m", 0, 3, State::Posted),
            row("a", "n", 1, 6, State::Posted),
            row("b", "m", 1, 3_000, State::Unknown),
            row("b", "m", 1, 5_000, State::Voided),
            row("b", "n", 1, 10, State::Reserved),
            row("b", "n", 1, 20, State::Sent),
            row("c", "o", 2, 1, State::Voided),
        ];
        let sum = |count, settled, unknown, held| Sum {
            count,
            settled: Usd::mills(settled),
            unknown: Usd::mills(unknown),
            held: Usd::mills(held),
        };
        for (by, groups) in [
            (By::Member, [("a", sum(2, 9, 0, 0)), ("b", sum(3, 0, 3_000, 30))]),
            (By::Model, [("m", sum(2, 3, 3_000, 0)), ("n", sum(3, 6, 0, 30))]),
            (By::Day, [("1970-01-01", sum(1, 3, 0, 0)), ("1970-01-02", sum(4, 6, 3_000, 30))]),
        ] {
            let usage = add_up(&rows, by);
            let expected = groups.map(|(key, sum)| (key.to_owned(), sum));
            assert_eq!(usage.groups, BTreeMap::from(expected), "{by:?}");
            assert_eq!(usage.total, sum(5, 9, 3_000, 30), "{by:?}");
        }
        assert_eq!(add_up(&rows[3..4], By::Day), Usage::default());
    }
}
