//! An empty database for a ledger that comes from a file.

use std::pin::pin;

use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::rows;
use crate::store::postgres::PostgresTarget;
use crate::store::postgres::flush::PreparedConnection;
use crate::store::postgres::{moved, schema};
use crate::store::transfer::cell::{Cell, CellRow};
use crate::store::transfer::side::{Facts, Rows, Target};
use crate::store::transfer::tables::{Key, Schema, TablePlan};
use crate::store::{MoneyKind, Reason};

const BEGIN: &str = "BEGIN; LOCK TABLE store, instances, imports IN EXCLUSIVE MODE";
const DONE: &str = "SELECT done_table, last FROM imports WHERE source = $1";
/// Programs that do not know of copies are refused.
const FENCE: &str = "UPDATE store SET floor = greatest(floor, $1)";
const NOTE: &str = "UPDATE imports SET last = $1
    WHERE source = $2 AND done_table = $3 AND last = $4 RETURNING 1";
const FINISH_STORE: &str = "UPDATE store SET name = coalesce($1, name), money = $2, secret = $3";
const FINISH_MEMBERS: &str = "UPDATE members_version SET version = $1";
const FINISH_LIMIT: &str = "UPDATE rate_limit SET requests = $1, seconds = $2";
/// Each status counts as one revision, so that other instances hear of it.
const FINISH_JOBS: &str = "UPDATE jobs SET revision = 1 WHERE body IS NOT NULL";
/// The balance is asked for again.
const FINISH_ACCOUNT: &str = "UPDATE account SET committed = (
    SELECT coalesce(sum(coalesce(cost_micros, price_micros)), 0)::bigint
    FROM purchases WHERE state <> 'released')";
/// Columns that number the rows of their table.
const NUMBERED: &str = "SELECT relname::text, attname::text
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE attidentity <> '' AND relnamespace = current_schema()::regnamespace";

pub(in crate::store) struct PostgresTransfer {
    session: PreparedConnection,
    money: MoneyKind,
    source: Uuid,
}

impl PostgresTransfer {
    /// Creates the tables if the settings allow it.
    pub(in crate::store) async fn open(target: &PostgresTarget) -> Result<Self, Reason> {
        let session = rows::open(target, target.may_migrate)
            .await
            .map_err(|Reason { cause, text }| Reason::new(cause, format!("{target}: {text}")))?;
        Ok(Self { session, money: target.money, source: Uuid::nil() })
    }

    pub(in crate::store) async fn schema(&self) -> Result<Schema, Reason> {
        rows::columns(self.session.client()).await
    }

    async fn execute(&self, script: &str) -> Result<(), Reason> {
        Ok(self.session.client().batch_execute(script).await?)
    }

    async fn run(
        &self,
        query: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Reason> {
        Ok(self.session.client().query(query, values).await?)
    }

    /// Refuses a database that servers use, that was a ledger before, or that has rows.
    async fn ensure_empty(&self, plans: &[TablePlan]) -> Result<(), Reason> {
        let state = moved::state(&self.session).await?;
        if let Some((to, at)) = state.moved_to {
            return Err(Reason::moved(&to, at));
        }
        if state.money.is_some_and(|money| money != self.money.name()) {
            return Err("it holds the other kind of money".into());
        }
        if state.is_importing {
            return Ok(());
        }
        for plan in plans {
            let table = plan.table.name;
            if !self.run(&format!("SELECT 1 FROM {table} LIMIT 1"), &[]).await?.is_empty() {
                let why = "it is not empty, and a copy overwrites nothing: create another database";
                return Err(format!("{why} (table {table})").into());
            }
        }
        Ok(())
    }

    async fn clear(&self, plans: &[TablePlan], source: Uuid) -> Result<(), Reason> {
        let tables: Vec<_> = plans.iter().map(|plan| plan.table.name).collect();
        self.execute(&format!("TRUNCATE {}, imports", tables.join(", "))).await?;
        let begin = "INSERT INTO imports (source, done_table, last)
            SELECT $1, name, 0 FROM unnest($2::text[]) AS names(name)";
        self.run(begin, &[&source, &tables]).await?;
        self.run(FENCE, &[&schema::NEWEST]).await.map(drop)
    }

    async fn done(&self, plans: &[TablePlan]) -> Result<Option<Vec<u64>>, Reason> {
        let mut found = Vec::new();
        for row in self.run(DONE, &[&self.source]).await? {
            found.push((row.try_get::<_, String>(0)?, row.try_get::<_, i64>(1)?));
        }
        let of = |plan: &TablePlan| {
            let row = found.iter().find(|(table, _)| table == plan.table.name)?;
            u64::try_from(row.1).ok()
        };
        Ok(plans.iter().map(of).collect())
    }
}

impl Rows for PostgresTransfer {
    async fn begin_reading(&mut self, plan: &TablePlan, skip: u64) -> Result<(), Reason> {
        self.execute("BEGIN").await?;
        rows::begin_reading(self.session.client(), plan, skip).await
    }

    async fn next_rows(&mut self, plan: &TablePlan) -> Result<Vec<CellRow>, Reason> {
        let rows = rows::next(self.session.client(), plan).await?;
        if rows.is_empty() {
            self.execute("COMMIT").await?;
        }
        Ok(rows)
    }
}

impl Target for PostgresTransfer {
    async fn begin(&mut self, plans: &[TablePlan], source: Uuid) -> Result<Vec<u64>, Reason> {
        self.source = source;
        self.execute(BEGIN).await?;
        moved::ensure_idle(&self.session).await?;
        moved::bury_dead(&self.session).await?;
        self.ensure_empty(plans).await?;
        let done = match self.done(plans).await? {
            Some(done) => done,
            None => {
                self.clear(plans, source).await?;
                vec![0; plans.len()]
            }
        };
        self.execute("COMMIT").await?;
        Ok(done)
    }

    async fn restart(&mut self, plans: &[TablePlan], source: Uuid) -> Result<(), Reason> {
        self.execute(BEGIN).await?;
        self.clear(plans, source).await?;
        self.execute("COMMIT").await
    }

    async fn write(&mut self, plan: &TablePlan, rows: &[CellRow], at: u64) -> Result<(), Reason> {
        let fills: Vec<_> = plan.fills().collect();
        let mut names: Vec<_> = plan.names().chain(fills.iter().map(|(name, _)| *name)).collect();
        if let Key::Position { postgres, .. } = plan.table.key {
            names.push(postgres);
        }
        let (table, names) = (plan.table.name, names.join(", "));
        let transaction = self.session.client_mut().transaction().await?;
        let described = transaction.prepare(&format!("SELECT {names} FROM {table}")).await?;
        let types: Vec<_> =
            described.columns().iter().map(|column| column.type_().clone()).collect();
        let copy = format!("COPY {table} ({names}) FROM STDIN (FORMAT binary)");
        let sink = transaction.copy_in(&copy).await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
        for (number, row) in (at + 1..).zip(rows) {
            let position = match plan.table.key {
                Key::Columns => None,
                // Before all ids that instances make.
                Key::Position { .. } => {
                    Some(Cell::Bytes(Uuid::from_u64_pair(0, number).as_bytes().to_vec()))
                }
            };
            let filled: CellRow = fills.iter().map(|(_, fill)| plan.filled(*fill, row)).collect();
            let cells: Vec<_> = row.iter().chain(&filled).chain(&position).collect();
            writer.as_mut().write_raw(cells).await?;
        }
        writer.finish().await?;
        let last = |rows: u64| i64::try_from(rows).unwrap_or(i64::MAX);
        let (before, after) = (last(at), last(at + rows.len() as u64));
        if transaction.query(NOTE, &[&after, &self.source, &table, &before]).await?.len() != 1 {
            return Err("another copy writes in it".into());
        }
        Ok(transaction.commit().await?)
    }

    async fn finish(&mut self, facts: &Facts) -> Result<(), Reason> {
        self.execute(BEGIN).await?;
        let money = facts.money.as_deref().unwrap_or(self.money.name());
        self.run(FINISH_STORE, &[&facts.name, &money, &facts.secret]).await?;
        self.run(FINISH_MEMBERS, &[&facts.members_version]).await?;
        let (requests, seconds) = facts.rate_limit.unzip();
        self.run(FINISH_LIMIT, &[&requests, &seconds]).await?;
        self.execute(FINISH_JOBS).await?;
        self.execute(FINISH_ACCOUNT).await?;
        for row in self.run(NUMBERED, &[]).await? {
            let (table, column): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            let next = format!(
                "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column}))
                 FROM {table} HAVING max({column}) IS NOT NULL"
            );
            self.execute(&next).await?;
        }
        let gone = "DELETE FROM imports WHERE source = $1 RETURNING 1";
        if self.run(gone, &[&self.source]).await?.is_empty() {
            return Err("another copy writes in it".into());
        }
        self.execute("COMMIT").await?;
        // Without statistics, the first queries could be slow.
        self.execute("ANALYZE").await
    }
}
