//! Moves a ledger from a file to PostgreSQL, or back.
//!
//! All rows are copied in batches, then read again on both sides and compared. Then the source notes
//! where it went, and sells no more; only then the target may sell. If the copy is interrupted, the
//! next one resumes it, and at no time both may sell.

pub(super) mod cell;
pub(super) mod side;
pub(super) mod tables;

use std::path::Path;

use self::side::{Rows, Source, Target};
use self::tables::TablePlan;
use super::postgres::PostgresTarget;
use super::postgres::transfer::{PostgresSource, PostgresTransfer};
use super::sqlite::transfer::{SqliteSource, SqliteTransfer};
use super::{Clock, Digest, Reason};
use crate::contract::money::Usd;

/// What happens during a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEvent {
    /// This many rows will be read: each is copied, then compared.
    Started {
        rows: u64,
    },
    /// An earlier copy was interrupted, and this many rows need not be copied again.
    Resumed {
        rows: u64,
    },
    /// The source has changed since an interrupted copy, so all rows are copied again.
    Restarted {
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
    /// A table was copied, or compared, to its end.
    TableDone {
        table: &'static str,
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

/// Moves the ledger of a file to an empty database. Blocks while it reads the file.
///
/// # Errors
///
/// Fails if a process has the file or the database, or if the two differ in the end. The source can
/// then still sell.
pub async fn move_to_postgres(
    path: &Path,
    target: PostgresTarget,
    clock: Clock,
    watch: &mut dyn FnMut(CopyEvent),
) -> Result<MovedLedger, Reason> {
    let to = target.to_string();
    let mut source = SqliteSource::open(path, clock, target.money)?;
    let mut target = PostgresTransfer::open(&target).await?;
    let plans = tables::plan(&source.schema()?, &target.schema().await?)?;
    Transfer { from: path.display().to_string(), to, plans }
        .run(&mut source, &mut target, watch)
        .await
}

/// Moves the ledger of a database, which no living instance uses, to a new file.
///
/// # Errors
///
/// See [`move_to_postgres`].
pub async fn move_to_sqlite(
    source: PostgresTarget,
    path: &Path,
    watch: &mut dyn FnMut(CopyEvent),
) -> Result<MovedLedger, Reason> {
    let from = source.to_string();
    let mut source = PostgresSource::open(&source).await?;
    let mut target = SqliteTransfer::open(path)?;
    let plans = tables::plan(&target.schema()?, &source.schema().await?)?;
    let to = format!("sqlite:{}", target.path().display());
    Transfer { from, to, plans }.run(&mut source, &mut target, watch).await
}

struct Transfer {
    from: String,
    to: String,
    plans: Vec<TablePlan>,
}

impl Transfer {
    async fn run(
        &self,
        source: &mut impl Source,
        target: &mut impl Target,
        watch: &mut dyn FnMut(CopyEvent),
    ) -> Result<MovedLedger, Reason> {
        let of_source = |reason: Reason| at(&self.from, &reason);
        let of_target = |reason: Reason| at(&self.to, &reason);
        if let Some(moved) = source.moved_to().filter(|moved| moved.0 != self.to) {
            let why = format!("{}: it was moved to {} before", self.from, moved.0);
            return Err(why.into());
        }
        let facts = source.facts().await.map_err(of_source)?;
        let mut done = target.begin(&self.plans, source.mark()).await.map_err(of_target)?;
        let mut rows = 0;
        for plan in &self.plans {
            rows += source.count(plan).await.map_err(of_source)?;
        }
        watch(CopyEvent::Started { rows });
        let mut is_resumed = done.iter().any(|rows| *rows > 0);
        if is_resumed {
            watch(CopyEvent::Resumed { rows: done.iter().sum() });
        }
        let tables = loop {
            self.copy(source, target, &done, watch).await?;
            match self.compare(source, target, watch).await? {
                Ok(tables) => break tables,
                Err(_) if is_resumed => {
                    watch(CopyEvent::Restarted { rows });
                    target.restart(&self.plans, source.mark()).await.map_err(of_target)?;
                    done.fill(0);
                    is_resumed = false;
                }
                Err(table) => {
                    let why = format!("{}: the copy of {table} differs from its source", self.to);
                    return Err(format!("{why}; the ledger was not moved").into());
                }
            }
        };
        source.note_moved(&self.to).await.map_err(of_source)?;
        target.finish(&facts).await.map_err(of_target)?;
        let secret = facts.secret.and_then(|print| print.try_into().ok());
        Ok(MovedLedger { tables, destination: self.to.clone(), secret })
    }

    async fn copy(
        &self,
        source: &mut impl Source,
        target: &mut impl Target,
        done: &[u64],
        watch: &mut dyn FnMut(CopyEvent),
    ) -> Result<(), Reason> {
        for (plan, done) in self.plans.iter().zip(done) {
            let table = plan.table.name;
            let mut at_row = *done;
            let of_source = |reason: Reason| at(&self.from, &reason);
            source.begin_reading(plan, at_row).await.map_err(of_source)?;
            loop {
                let rows = source.next_rows(plan).await.map_err(of_source)?;
                if rows.is_empty() {
                    break;
                }
                let written = target.write(plan, &rows, at_row).await;
                written.map_err(|reason| at(&format!("{}, table {table}", self.to), &reason))?;
                at_row += rows.len() as u64;
                watch(CopyEvent::Copied { table, rows: rows.len() as u64 });
            }
            watch(CopyEvent::TableDone { table });
        }
        Ok(())
    }

    /// Reads all rows of both. `Err` has the name of the first table that differs.
    async fn compare(
        &self,
        source: &mut impl Source,
        target: &mut impl Target,
        watch: &mut dyn FnMut(CopyEvent),
    ) -> Result<Result<Vec<CopiedTable>, &'static str>, Reason> {
        let mut tables = Vec::with_capacity(self.plans.len());
        for plan in &self.plans {
            let table = plan.table.name;
            let found = tally(source, plan, |_| {}).await;
            let found = found.map_err(|reason| at(&self.from, &reason))?;
            let shown = |rows| watch(CopyEvent::Compared { table, rows });
            let copied = tally(target, plan, shown).await;
            if copied.map_err(|reason| at(&self.to, &reason))? != found {
                return Ok(Err(table));
            }
            watch(CopyEvent::TableDone { table });
            tables.push(found);
        }
        Ok(Ok(tables))
    }
}

async fn tally(
    rows: &mut impl Rows,
    plan: &TablePlan,
    mut read: impl FnMut(u64),
) -> Result<CopiedTable, Reason> {
    let amounts: Vec<_> = plan.names().map(|name| name.ends_with("micros")).collect();
    let mut sums = vec![0_u64; amounts.len()];
    let (mut count, mut hasher) = (0, blake3::Hasher::new());
    rows.begin_reading(plan, 0).await?;
    loop {
        let batch = rows.next_rows(plan).await?;
        if batch.is_empty() {
            break;
        }
        for row in &batch {
            for ((cell, is_amount), sum) in row.iter().zip(&amounts).zip(&mut sums) {
                cell.hash(&mut hasher);
                if let (cell::Cell::Integer(micros), true) = (cell, is_amount) {
                    *sum = sum.saturating_add_signed(*micros);
                }
            }
        }
        count += batch.len() as u64;
        read(batch.len() as u64);
    }
    let sums = plan.names().zip(amounts).zip(sums).filter(|((_, is_amount), _)| *is_amount);
    let sums = sums.map(|((name, _), sum)| (name.to_owned(), Usd::micros(sum))).collect();
    Ok(CopiedTable {
        name: plan.table.name,
        rows: count,
        sums,
        hash: *hasher.finalize().as_bytes(),
    })
}

/// Names the store that a reason is about.
fn at(store: &str, reason: &Reason) -> Reason {
    Reason::new(reason.cause, format!("{store}: {}", reason.text))
}
