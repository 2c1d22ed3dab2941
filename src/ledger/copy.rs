//! Moves a ledger from a file to PostgreSQL, or back.
//!
//! Both have the same tables. All rows are inserted into an empty ledger in one transaction, read from it
//! again and compared. Then the source notes where it went, and sells no more; only then the target may
//! sell. If a copy dies, the same copy can run again.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::engine::{
    Engine, FromSqlValue, Result, Sql, SqlValue, StoreError, ToSqlValue, WriterEngine,
};
use super::postgres::{PostgresEngine, PostgresTarget, ensure_idle};
use super::schema::{SqlDialect, tables};
use super::sqlite::{NewFile, canonical_path, open_to_move};
use super::tables::{moved_to, note_moved, read};
use super::{Clock, Digest, Reason, Unavailable};
use crate::clock::wall;
use crate::gateway::contract::money::Usd;

/// Tables that say where a ledger is.
const NOT_COPIED: [&str; 2] = ["identity", "moved"];
/// Tables that a ledger may have rows in although it was never used.
const REPLACED: [&str; 5] = ["members_version", "rate_limit", "webhooks", "money", "secret"];
/// How many rows a statement reads or inserts. It may have 32,766 values, and a purchase has 26.
const PAGE_ROWS: usize = 250;
/// If a page has more bytes, each of its rows is inserted alone.
const MAX_STATEMENT_BYTES: usize = 1 << 20;
const EVENT_ROWS: u64 = 5_000;
/// How long the database may count a table, or commit the rows of a whole ledger.
const PATIENCE: Duration = Duration::from_secs(120);
/// One side waits while the other one is read.
const MAX_IDLE: &str = "SET LOCAL idle_in_transaction_session_timeout = '1h'";
const OPEN: &str = "purchases of ended servers are still open: start a server, wait five minutes, \
                    and stop it";

/// The account's balance is asked for again.
const FORGET_BALANCE: &str =
    "UPDATE credit SET held = 0, spent = 0, balance = NULL, since = NULL, as_of = NULL";

/// An event during a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEvent {
    /// This many rows will be read: each is copied, then compared.
    Started {
        rows: u64,
    },
    Copied {
        table: &'static str,
        rows: u64,
    },
    Compared {
        table: &'static str,
        rows: u64,
    },
}

/// A table of both ledgers, as they were compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedTable {
    pub name: &'static str,
    pub rows: u64,
    /// The sum of each column with an amount of money.
    pub sums: Vec<(String, Usd)>,
    /// Of all rows in the order of their key.
    pub hash: Digest,
}

/// A ledger that was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedLedger {
    pub tables: Vec<CopiedTable>,
    /// Where the ledger is now.
    pub destination: String,
    /// The fingerprint of the secret that tokens are hashed with.
    pub secret: Option<Digest>,
}

/// Moves the ledger of a file to an empty database.
///
/// # Errors
///
/// Fails if a process has the file or the database, or if the two differ in the end. The source can
/// then still sell, unless the error says that it sells nothing any more.
pub async fn move_to_postgres(
    path: &Path,
    target: PostgresTarget,
    clock: Clock,
    watch: &mut dyn FnMut(CopyEvent),
) -> Result<MovedLedger, Reason> {
    let path = path.to_owned();
    in_thread(watch, move |watch| {
        let file = open_to_move(&path, clock, target.money)?;
        let source = Side::begin(url_of(&canonical_path(&path)), file)?;
        let target = open_database(target)?;
        let (moved, name) = copy(&source, &target, watch)?;
        target.run(|db| {
            db.run("UPDATE ledger SET name = coalesce(?, name)", [name])?;
            db.run(FORGET_BALANCE, ()).map(drop)
        })?;
        // Until the source knows, the target says that the ledger is there.
        target.leave(&source.name)?;
        source.leave(&target.name)?;
        let arrive = target.run(|db| {
            db.begin(true)?;
            db.run("DELETE FROM moved", ())?;
            db.commit(None).map(drop)
        });
        arrive.map_err(unfinished)?;
        Ok(moved)
    })
    .await
}

/// Moves the ledger of a database, which no living server uses, to a new file.
///
/// # Errors
///
/// See [`move_to_postgres`].
pub async fn move_to_sqlite(
    mut source: PostgresTarget,
    path: &Path,
    watch: &mut dyn FnMut(CopyEvent),
) -> Result<MovedLedger, Reason> {
    let path = path.to_owned();
    source.may_migrate = false;
    in_thread(watch, move |watch| {
        let source = open_database(source)?;
        source.run(|db| {
            let open = "SELECT 1 FROM purchases WHERE ended_at IS NULL LIMIT 1";
            db.first(open, (), read::<i64>)?.map_or(Ok(()), |_| Err(refusal(OPEN)))
        })?;
        let (file, db) = NewFile::create(&path, Arc::new(wall))?;
        let mut target = Side::begin(url_of(&file.path), db)?;
        let (moved, name) = copy(&source, &target, watch)?;
        let name = name.ok_or("its table `ledger` is empty")?;
        let db = target.db.take().ok_or("it is closed")?;
        let publish = file.complete(db, &name).map_err(|why| named(&target.name, why))?;
        source.leave(&target.name)?;
        publish().map_err(unfinished)?;
        Ok(moved)
    })
    .await
}

fn unfinished(why: Reason) -> Reason {
    let text = format!("{why}; the old ledger sells nothing any more: run the same copy again");
    Reason::new(why.cause, text)
}

/// Runs what blocks on a thread of its own.
async fn in_thread(
    watch: &mut dyn FnMut(CopyEvent),
    work: impl FnOnce(Watch<'_>) -> Result<MovedLedger, Reason> + Send + 'static,
) -> Result<MovedLedger, Reason> {
    let (send, mut events) = mpsc::unbounded_channel();
    let work = spawn_blocking(move || work(&mut |event| _ = send.send(event)));
    while let Some(event) = events.recv().await {
        watch(event);
    }
    work.await.unwrap_or_else(|_| Err("the thread of the copy panicked".into()))
}

type Watch<'a> = &'a mut dyn FnMut(CopyEvent);

fn url_of(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn open_database(mut target: PostgresTarget) -> Result<Side, Reason> {
    // Also after a copy that died when one side was moved.
    target.reads_only = true;
    target.min_patience = target.min_patience.max(PATIENCE);
    let (name, money) = (target.to_string(), target.money.name());
    let opened = PostgresEngine::open_alone(target);
    let side = Side::begin(name.clone(), Box::new(opened.map_err(|why| named(&name, why))?))?;
    side.run(|db| {
        db.run(MAX_IDLE, ())?;
        ensure_idle(db, side.now)?;
        match db.first("SELECT kind FROM money", (), read::<String>)? {
            Some(kind) if kind != money => Err(refusal("it holds the other kind of money")),
            Some(_) | None => Ok(()),
        }
    })?;
    Ok(side)
}

/// One of the two ledgers, in a transaction. It is rolled back when this is dropped.
struct Side {
    name: String,
    /// `None` once it is closed.
    db: Option<Box<dyn WriterEngine>>,
    now: Duration,
}

impl Side {
    fn begin(name: String, db: Box<dyn WriterEngine>) -> Result<Self, Reason> {
        let mut side = Self { name, db: Some(db), now: Duration::ZERO };
        side.now = side.run(|db| Ok(db.begin(true)?.now))?;
        Ok(side)
    }

    /// Runs statements. An error names the ledger.
    fn run<T>(&self, work: impl FnOnce(&dyn WriterEngine) -> Result<T>) -> Result<T, Reason> {
        let db = self.db.as_deref().ok_or("it is closed")?;
        work(db).map_err(|fault| named(&self.name, fault.into()))
    }

    /// Has the ledger sell no more.
    fn leave(&self, destination: &str) -> Result<(), Reason> {
        self.run(|db| {
            note_moved(db, destination, self.now)?;
            db.commit(None).map(drop)
        })
    }

    /// Reads all rows of a table, and hands them on by pages.
    fn read(
        &self,
        table: &Table,
        mut each: impl FnMut(&[Cells]) -> Result<(), Reason>,
        mut report: impl FnMut(u64),
    ) -> Result<CopiedTable, Reason> {
        let (mut hasher, mut sums) = (blake3::Hasher::new(), vec![0_u64; table.columns.len()]);
        let (mut last, mut rows, mut reported) = (None, 0, 0);
        loop {
            let page = self.run(|db| table.page(db, last.as_ref()))?;
            each(&page)?;
            for row in &page {
                for (cell, sum) in row.iter().zip(&mut sums) {
                    cell.hash(&mut hasher);
                    if let Cell::Integer(number) = cell {
                        *sum = sum.saturating_add_signed(*number);
                    }
                }
            }
            rows += page.len() as u64;
            let is_last = page.len() < PAGE_ROWS;
            if rows - reported >= EVENT_ROWS || (is_last && rows > reported) {
                report(rows - reported);
                reported = rows;
            }
            last = page.into_iter().next_back();
            if is_last {
                break;
            }
        }
        let sums = table.columns.iter().cloned().zip(sums.into_iter().map(Usd::micros));
        let sums = sums.filter(|(column, _)| column.ends_with("micros")).collect();
        Ok(CopiedTable { name: table.name, rows, sums, hash: *hasher.finalize().as_bytes() })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let Some(db) = self.db.take() else { return };
        let is_whole = db.roll_back().is_ok();
        let is_checked = db.stop();
        db.close(is_whole, is_checked);
    }
}

/// Copies all rows to an empty ledger, and compares them. Returns the ledger's public name, too.
fn copy(
    source: &Side,
    target: &Side,
    watch: Watch<'_>,
) -> Result<(MovedLedger, Option<String>), Reason> {
    if let Some((to, _)) = source.run(|db| moved_to(db))?.filter(|(to, _)| *to != target.name) {
        return Err(named(&source.name, format!("it was moved to {to} before").into()));
    }
    let name = source.run(|db| name_of(db))?;
    let secret = source.run(|db| db.first("SELECT print FROM secret", (), read))?;
    let names = || tables().into_iter().filter(|name| !NOT_COPIED.contains(name));
    target.run(|db| {
        let has_earlier = match moved_to(db)? {
            // This ledger has all that is there: an earlier copy died, or it comes back.
            Some((to, _)) if to == source.name && name_of(db)? == name => true,
            Some((to, at)) => return Err(refusal(Reason::moved(&to, at))),
            None => false,
        };
        names().filter(|_| !has_earlier).try_for_each(|table| ensure_empty(db, table))?;
        // A table comes after those that it refers to.
        names().rev().try_for_each(|table| db.run(&format!("DELETE FROM {table}"), ()).map(drop))
    })?;
    let describe = |table| source.run(|db| Table::describe(db, table));
    let tables = names().map(describe).collect::<Result<Vec<_>, _>>()?;
    let count = |table| {
        let all = format!("SELECT count(*) FROM {table}");
        source.run(|db| db.one(&all, (), read::<u64>))
    };
    let rows = names().map(count).sum::<Result<_, _>>()?;
    watch(CopyEvent::Started { rows });
    let mut found = Vec::with_capacity(tables.len());
    for table in &tables {
        let name = table.name;
        let insert = |page: &[Cells]| {
            let inserted = target.run(|db| table.insert(db, page));
            inserted.map_err(|why| Reason::new(why.cause, format!("{why} (table {name})")))
        };
        let report = |rows| watch(CopyEvent::Copied { table: name, rows });
        found.push(source.read(table, insert, report)?);
        target.run(|db| table.finish(db))?;
    }
    for (table, found) in tables.iter().zip(&found) {
        let report = |rows| watch(CopyEvent::Compared { table: table.name, rows });
        if target.read(table, |_| Ok(()), report)? != *found {
            let why = format!("the copy of {} differs from its source", table.name);
            return Err(named(&target.name, format!("{why}; the ledger was not moved").into()));
        }
    }
    Ok((MovedLedger { tables: found, destination: target.name.clone(), secret }, name))
}

fn name_of(db: &dyn Engine) -> Result<Option<String>> {
    let find = if db.dialect().is_shared() { "ledger" } else { "identity" };
    db.first(&format!("SELECT name FROM {find}"), (), read)
}

fn ensure_empty(db: &dyn Engine, table: &str) -> Result<()> {
    let any = format!("SELECT 1 FROM {table} LIMIT 1");
    if REPLACED.contains(&table) || db.first(&any, (), read::<i64>)?.is_none() {
        return Ok(());
    }
    let why = "it is not empty, and a copy overwrites nothing: create another database";
    Err(refusal(format!("{why} (table {table})")))
}

struct Table {
    name: &'static str,
    columns: Vec<String>,
    /// The positions of the primary key in `columns`.
    key: Vec<usize>,
}

impl Table {
    fn describe(db: &dyn Engine, name: &'static str) -> Result<Self> {
        let find = match db.dialect() {
            SqlDialect::Sqlite => "SELECT name, pk FROM pragma_table_info(?) ORDER BY cid",
            SqlDialect::Postgres => {
                "SELECT attname::text, coalesce(array_position(indkey::int2[], attnum) + 1, 0)::bigint
                FROM pg_attribute LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
                WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
            }
        };
        let found = db.all(find, [name], read::<(String, i64)>)?;
        let keyed = found.iter().map(|(_, place)| *place).enumerate();
        let mut key: Vec<_> = keyed.filter(|(_, place)| *place > 0).collect();
        key.sort_by_key(|(_, place)| *place);
        let key = key.into_iter().map(|(at, _)| at).collect();
        Ok(Self { name, columns: found.into_iter().map(|(column, _)| column).collect(), key })
    }

    fn key_of<'a, T>(&self, row: &'a [T]) -> Vec<&'a T> {
        self.key.iter().filter_map(|at| row.get(*at)).collect()
    }

    /// Returns the first rows, or those after `last`, in the order of their key.
    fn page(&self, db: &dyn Engine, last: Option<&Cells>) -> Result<Vec<Cells>> {
        let (name, columns) = (self.name, self.columns.join(", "));
        let key: Vec<_> = self.key_of(&self.columns).into_iter().map(String::as_str).collect();
        let (key, marks) = (key.join(", "), marks(key.len()));
        let after = if last.is_some() { format!("WHERE ({key}) > {marks}") } else { String::new() };
        let sql = format!("SELECT {columns} FROM {name} {after} ORDER BY {key} LIMIT {PAGE_ROWS}");
        let last = last.map(|row| self.key_of(row)).unwrap_or_default();
        let values: Vec<_> = last.iter().map(|cell| cell as &dyn ToSqlValue).collect();
        db.all(&sql, &*values, |row| (0..self.columns.len()).map(|at| row.get(at)).collect())
    }

    fn insert(&self, db: &dyn Engine, page: &[Cells]) -> Result<()> {
        for row in page.iter().filter(|_| db.dialect().is_shared()) {
            if row.iter().any(|cell| matches!(cell, Cell::Text(text) if text.contains(&0))) {
                let key: Vec<_> = self.key_of(row).into_iter().map(Cell::shown).collect();
                let why = "has text with U+0000, which PostgreSQL cannot store";
                return Err(refusal(format!("the row {} {why}", key.join(", "))));
            }
        }
        let bytes: usize = page.iter().flatten().map(|cell| cell.parts().2.len()).sum();
        let rows = if bytes > MAX_STATEMENT_BYTES { 1 } else { PAGE_ROWS };
        page.chunks(rows).try_for_each(|rows| {
            let (name, columns) = (self.name, self.columns.join(", "));
            let marks = vec![marks(self.columns.len()); rows.len()].join(", ");
            let values: Vec<_> =
                rows.iter().flatten().map(|cell| cell as &dyn ToSqlValue).collect();
            db.run(&format!("INSERT INTO {name} ({columns}) VALUES {marks}"), &*values).map(drop)
        })
    }

    /// Has new rows numbered after those that were copied, and queries planned with their number.
    fn finish(&self, db: &dyn Engine) -> Result<()> {
        if !db.dialect().is_shared() {
            return Ok(());
        }
        let name = self.name;
        if self.columns.iter().any(|column| column == "number") {
            let next =
                format!("SELECT setval(pg_get_serial_sequence('{name}', 'number'), max(number))");
            db.run(&format!("{next} FROM {name} HAVING max(number) > 0"), ())?;
        }
        db.run(&format!("ANALYZE {name}"), ()).map(drop)
    }
}

fn marks(count: usize) -> String {
    format!("({})", vec!["?"; count].join(", "))
}

type Cells = Vec<Cell>;

/// A value of a row.
enum Cell {
    Null,
    Integer(i64),
    Text(Vec<u8>),
    Bytes(Vec<u8>),
}

impl Cell {
    /// Returns the type, the number and the bytes. Different values differ in one of them.
    fn parts(&self) -> (u8, i64, &[u8]) {
        match self {
            Self::Null => (0, 0, &[]),
            Self::Integer(number) => (1, *number, &[]),
            Self::Text(text) => (2, 0, text),
            Self::Bytes(bytes) => (3, 0, bytes),
        }
    }

    fn hash(&self, hasher: &mut blake3::Hasher) {
        let (kind, number, bytes) = self.parts();
        hasher.update(&[kind]).update(&number.to_be_bytes());
        hasher.update(&(bytes.len() as u64).to_be_bytes()).update(bytes);
    }

    fn shown(&self) -> String {
        match self.parts() {
            (_, number, []) => number.to_string(),
            (_, _, text) => String::from_utf8_lossy(text).into_owned(),
        }
    }
}

impl FromSqlValue<'_> for Cell {
    fn from_sql(value: SqlValue<'_>) -> Option<Self> {
        Some(match value {
            SqlValue::Null => Self::Null,
            SqlValue::Integer(number) => Self::Integer(number),
            SqlValue::Text(text) => Self::Text(text.to_vec()),
            SqlValue::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            SqlValue::TooLarge => return None,
        })
    }
}

impl ToSqlValue for Cell {
    fn to_sql_value(&self) -> SqlValue<'_> {
        match self {
            Self::Null => SqlValue::Null,
            Self::Integer(number) => SqlValue::Integer(*number),
            Self::Text(text) => SqlValue::Text(text),
            Self::Bytes(bytes) => SqlValue::Bytes(bytes),
        }
    }
}

fn refusal(why: impl Into<Reason>) -> StoreError {
    Unavailable(why.into()).into()
}

/// Names the ledger that a reason is about.
fn named(ledger: &str, why: Reason) -> Reason {
    let is_named = why.text.starts_with(ledger);
    if is_named { why } else { Reason::new(why.cause, format!("{ledger}: {why}")) }
}
