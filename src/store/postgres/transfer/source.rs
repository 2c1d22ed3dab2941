//! A database whose ledger moves to a file.

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::rows;
use crate::store::Reason;
use crate::store::postgres::PostgresTarget;
use crate::store::postgres::flush::PreparedConnection;
use crate::store::postgres::moved;
use crate::store::postgres::step::statement;
use crate::store::transfer::cell::CellRow;
use crate::store::transfer::side::{Facts, MovedTo, Rows, Source};
use crate::store::transfer::tables::{Schema, TablePlan};

const FACTS: &str = "SELECT name, money, secret, members_version.version, requests, seconds
    FROM store, members_version, rate_limit";
const NOTE_MOVED: &str = "UPDATE store SET moved_to = $1, moved_at = coalesce(moved_at, {now})";
/// Ended by a living instance, or by the next that starts.
const RUNNING: &str = "SELECT count(*) FROM purchases WHERE ended_at IS NULL";
const LATEST_INSTANCE: &str = "SELECT name, (SELECT max(id) FROM instances) FROM store";

/// Other processes may read the database, but not write in it, until this is dropped.
pub(in crate::store) struct PostgresSource {
    session: PreparedConnection,
    mark: Uuid,
    moved_to: Option<MovedTo>,
}

impl PostgresSource {
    /// Locks the tables, and ends what dead instances have left.
    pub(in crate::store) async fn open(target: &PostgresTarget) -> Result<Self, Reason> {
        let named = |Reason { cause, text }| Reason::new(cause, format!("{target}: {text}"));
        let session = rows::open(target, false).await.map_err(named)?;
        let mut source = Self { session, mark: Uuid::nil(), moved_to: None };
        source.begin(target).await.map_err(named)?;
        Ok(source)
    }

    async fn begin(&mut self, target: &PostgresTarget) -> Result<(), Reason> {
        let client = self.session.client();
        let tables: Vec<_> = rows::columns(client).await?.into_keys().collect();
        let lock = format!("BEGIN; LOCK TABLE {} IN EXCLUSIVE MODE", tables.join(", "));
        client.batch_execute(&lock).await.map_err(|error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                Reason::from("a server or a command writes in it: stop all of them first")
            }
            _ => error.into(),
        })?;
        moved::ensure_idle(&self.session).await?;
        moved::bury_dead(&self.session).await?;
        let running: i64 = self.one(RUNNING).await?.try_get(0)?;
        if running > 0 {
            let why = "purchases of ended servers are still open: start a server, wait half a minute, \
                       and stop it";
            return Err(why.into());
        }
        let moved = moved::state(&self.session).await?;
        if moved.is_importing {
            return Err("a copy into it was not finished: finish that one first".into());
        }
        if moved.money.is_some_and(|money| money != target.money.name()) {
            return Err("it holds the other kind of money".into());
        }
        self.moved_to = moved.moved_to.map(|(to, _)| MovedTo(to));
        let row = self.one(LATEST_INSTANCE).await?;
        let (name, latest): (&str, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let mut hasher = blake3::Hasher::new();
        hasher.update(name.as_bytes()).update(&latest.unwrap_or_default().to_be_bytes());
        let mut mark = [0; 16];
        hasher.finalize_xof().fill(&mut mark);
        self.mark = Uuid::from_bytes(mark);
        Ok(())
    }

    async fn one(&self, query: &str) -> Result<tokio_postgres::Row, Reason> {
        let rows = self.session.query(query, &[]).await?;
        rows.into_iter().next().ok_or_else(|| "it sent no row".into())
    }

    pub(in crate::store) async fn schema(&self) -> Result<Schema, Reason> {
        rows::columns(self.session.client()).await
    }
}

impl Rows for PostgresSource {
    async fn begin_reading(&mut self, plan: &TablePlan, skip: u64) -> Result<(), Reason> {
        rows::begin_reading(self.session.client(), plan, skip).await
    }

    async fn next_rows(&mut self, plan: &TablePlan) -> Result<Vec<CellRow>, Reason> {
        rows::next(self.session.client(), plan).await
    }
}

impl Source for PostgresSource {
    fn mark(&self) -> Uuid {
        self.mark
    }

    fn moved_to(&self) -> Option<&MovedTo> {
        self.moved_to.as_ref()
    }

    async fn facts(&mut self) -> Result<Facts, Reason> {
        let row = self.one(FACTS).await?;
        let (requests, seconds): (Option<i64>, Option<i64>) = (row.try_get(4)?, row.try_get(5)?);
        Ok(Facts {
            name: row.try_get(0)?,
            money: row.try_get(1)?,
            secret: row.try_get(2)?,
            members_version: row.try_get(3)?,
            rate_limit: requests.zip(seconds),
        })
    }

    async fn count(&mut self, plan: &TablePlan) -> Result<u64, Reason> {
        let count: i64 =
            self.one(&format!("SELECT count(*) FROM {}", plan.table.name)).await?.try_get(0)?;
        Ok(count.unsigned_abs())
    }

    async fn note_moved(&mut self, to: &str) -> Result<(), Reason> {
        let note = statement!(NOTE_MOVED, to.to_owned());
        self.session.query(note.sql, &note.values).await?;
        Ok(self.session.client().batch_execute("COMMIT").await?)
    }
}
