//! The limits that the ledger itself keeps: those of groups, and what raises a caller's.

use super::column;
use super::handle::PostgresStore;
use super::step::statement;
use crate::store::{BudgetScope, Extra, KeptLimit, SpendLimit, Unavailable};

const GROUP: &str = "SELECT day_micros, week_micros, month_micros, ever_micros FROM groups
    WHERE name = $1";
const EXTRA: &str = "SELECT least(sum(micros), 4611686018427387903)::bigint, min(until)
    FROM extras WHERE caller = $1 AND until > {now} HAVING count(*) > 0";

impl PostgresStore {
    pub(in crate::store) async fn kept_limit(
        &self,
        scope: BudgetScope,
    ) -> Result<KeptLimit, Unavailable> {
        let lane = &self.lanes().pulse;
        Ok(match scope {
            BudgetScope::Group(name) => {
                let read = |row: &_| column::limit(row, 0);
                let limit = self.query_one(lane, statement!(GROUP, name), read).await?;
                KeptLimit { limit: limit.unwrap_or_default(), extra: None }
            }
            BudgetScope::Caller(name) => {
                let read = |row: &_| {
                    let (amount, until) = (column::money(row, 0)?, column::moment(row, 1)?);
                    Ok(Extra { amount, until })
                };
                let extra = self.query_one(lane, statement!(EXTRA, name), read).await?;
                KeptLimit { limit: SpendLimit::NONE, extra }
            }
            BudgetScope::Total | BudgetScope::Token(_) => KeptLimit::default(),
        })
    }
}
