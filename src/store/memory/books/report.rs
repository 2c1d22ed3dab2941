//! What reports read of the ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Books, Entry};
use crate::contract::money::Usd;
use crate::store::{CallerSpending, Row, Spending, State};

impl Books {
    pub(in crate::store::memory) fn spending(
        &self,
        caller: &str,
        since: Duration,
    ) -> Vec<Spending> {
        let mut groups: BTreeMap<(u64, &str, &str), Spending> = BTreeMap::new();
        let own = self.entries.values().filter(|entry| {
            entry.row.caller == caller && entry.row.at >= since && entry.row.state != State::Voided
        });
        for Entry { row, today, .. } in own {
            let (day, service, model) = (today.day, row.service, &*row.model);
            let group = groups.entry((day, service.name(), model)).or_insert_with(|| {
                let (model, spent) = (model.to_owned(), Usd::ZERO);
                Spending { day, service, model, count: 0, spent }
            });
            group.count += 1;
            group.spent = group.spent.checked_add(row.toll).unwrap_or(Usd::micros(u64::MAX));
        }
        groups.into_values().collect()
    }

    pub(in crate::store::memory) fn rows(&self, since: Duration) -> Vec<Row> {
        let rows = self.entries.values().map(|entry| &entry.row);
        let mut rows: Vec<Row> = rows.filter(|row| row.at >= since).cloned().collect();
        rows.sort_by_key(|row| row.at);
        rows
    }

    pub(in crate::store::memory) fn spending_of_all(
        &self,
        since: Duration,
        most: usize,
    ) -> Vec<CallerSpending> {
        let mut groups: BTreeMap<_, CallerSpending> = BTreeMap::new();
        let counted = |entry: &&Entry| entry.row.at >= since && entry.row.state != State::Voided;
        for Entry { row, today, .. } in self.entries.values().filter(counted) {
            let key = (&row.caller, today.day, row.service.name(), &row.model);
            let group = groups.entry(key).or_insert_with(|| CallerSpending {
                caller: row.caller.clone(),
                day: today.day,
                service: row.service,
                model: row.model.clone(),
                count: 0,
                settled: Usd::ZERO,
                unknown: Usd::ZERO,
                held: Usd::ZERO,
            });
            group.count += 1;
            let amount = match row.state {
                State::Unknown => &mut group.unknown,
                State::Reserved | State::Sent => &mut group.held,
                State::Posted | State::Voided => &mut group.settled,
            };
            *amount = amount.checked_add(row.toll).unwrap_or(Usd::micros(u64::MAX));
        }
        groups.into_values().take(most).collect()
    }

    pub(in crate::store::memory) fn unknown(&self, most: usize) -> Vec<Row> {
        let mut rows = self.rows(Duration::ZERO);
        rows.retain(|row| row.state == State::Unknown);
        rows.into_iter().rev().take(most).collect()
    }
}
