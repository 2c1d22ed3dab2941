//! The limits that the ledger itself keeps: those of groups, and what raises a caller's.

use std::sync::Arc;

use super::audit_log;
use super::column::{self, changed_limits, signed};
use super::handle::PostgresStore;
use super::members::LOCK;
use super::schema::has_members;
use super::step::{Need, Step, statement};
use crate::contract::money::Usd;
use crate::store::{
    Actor, BudgetScope, Extra, Group, GroupChange, GroupError, KeptLimit, Period, SpendLimit,
    Unavailable,
};

const GROUP: &str = "SELECT day_micros, week_micros, month_micros, ever_micros FROM groups
    WHERE name = $1";
const EXTRA: &str = "SELECT least(sum(micros), 4611686018427387903)::bigint, min(until)
    FROM extras WHERE caller = $1 AND until > {now} HAVING count(*) > 0";

const GROUPS: &str = "SELECT name, day_micros, week_micros, month_micros, ever_micros,
        (SELECT count(*) FROM members WHERE group_name = groups.name AND revoked IS NULL)
    FROM groups ORDER BY name";
const KNOWN: &str =
    concat!("SELECT EXISTS (SELECT 1 FROM groups WHERE name = $1), ", has_members!("$1"));
const ADD: &str = "INSERT INTO groups (name, day_micros, week_micros, month_micros, ever_micros)
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING";
const UPDATE: &str = concat!("UPDATE groups SET ", changed_limits!("$2", "$3"), " WHERE name = $1");
const REMOVE: &str = concat!("DELETE FROM groups WHERE name = $1 AND NOT ", has_members!("$1"));

impl PostgresStore {
    pub(in crate::store) async fn kept_limit(
        &self,
        scope: BudgetScope,
    ) -> Result<KeptLimit, Unavailable> {
        let lane = &self.lanes().reads;
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

    pub(in crate::store) async fn groups(&self) -> Result<Vec<Group>, Unavailable> {
        self.query(&self.lanes().pulse, statement!(GROUPS), |row| {
            let budget = column::limit(row, 1)?;
            Ok(Group { name: column::text(row, 0)?, budget, members: column::count(row, 5)? })
        })
        .await
    }

    /// The lock is that of members, so that none joins a group that is being removed.
    pub(in crate::store) async fn change_group(
        &self,
        by: &Actor,
        name: Arc<str>,
        change: GroupChange,
    ) -> Result<Result<(), GroupError>, Unavailable> {
        let write = match change {
            GroupChange::Add(limit) => {
                let amount = |period| limit.get(period).map(Usd::as_micros).map(signed);
                let [day, week, month, ever] = Period::ALL.map(amount);
                statement!(ADD, name.to_string(), day, week, month, ever)
            }
            GroupChange::Update(change) => {
                let (sets, amounts) = column::limit_change(change);
                statement!(UPDATE, name.to_string(), sets, amounts)
            }
            GroupChange::Remove => statement!(REMOVE, name.to_string()),
        };
        let known = statement!(KNOWN, name.to_string());
        let audit = audit_log::group_change(by, &name, change);
        let statements = vec![statement!(LOCK), known, audit, write];
        let rows = self.run(&self.lanes().marks, Step::new(Need::Plain, statements)).await?;
        let row = rows.get(1).and_then(|rows| rows.first());
        let row = row.ok_or_else(|| Unavailable("the database sent no verdict".into()))?;
        Ok(change.check((column::get(row, 0)?, column::get(row, 1)?)))
    }
}
