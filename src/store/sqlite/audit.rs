//! Checkpoints, evidence and the account's keys in the ledger's file.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::books::Books;
use super::column::{self, nanos};
use super::fault::Fault;
use super::handle::{Store, Verb};
use super::report;
use super::step::Weight;
use crate::store::{
    Checkpoint, Evidence, JobState, Recognise, SETTLES_WITHIN, Snapshot, Unavailable,
};

/// Checkpoints that are remembered.
const MAX_CHECKS: i64 = 1_000;

/// Reconciliation. Each verb is one step.
impl Store {
    /// Notes what the gateway's books said, with the purchases that had begun and settled by then.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub async fn check(&self, snapshot: Snapshot) -> Result<(), Unavailable> {
        let note = move |books: &Books| check(books, snapshot);
        self.ask(Verb::Other("check"), Weight::Cheap, note).await
    }

    /// The latest checkpoint of this account that has a place among the purchases.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn last_check(&self) -> Result<Option<Checkpoint>, Unavailable> {
        let find = |books: &Books| last_check(&books.connection);
        self.ask(Verb::Other("last_check"), Weight::Cheap, find).await
    }

    /// The latest snapshots, newest first, at most `most`, whichever account they are of.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn checks(&self, most: usize) -> Result<Vec<Snapshot>, Unavailable> {
        let find = move |books: &Books| checks(&books.connection, most);
        self.ask(Verb::Other("checks"), Weight::Cheap, find).await
    }

    /// How many outcomes are unknown among the purchases after this number. It takes little memory,
    /// however many there are.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn unknown_after(&self, number: u64) -> Result<u64, Unavailable> {
        let count = "SELECT count(*) FROM purchases WHERE number > ? AND state = 'unknown'";
        let read =
            move |file: &Connection| file.query_row(count, [signed(number)], |row| row.get(0));
        self.report("unknown_after", read).await
    }

    /// In the order of their numbers: every purchase after `settled`; of the earlier ones those whose
    /// outcome is unknown, and charged videos without a finished job whose end, or whose job's failure,
    /// is later than `refundable` (wall-clock time since the Unix epoch).
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Result<Vec<Evidence>, Unavailable> {
        self.report("evidence", move |file| evidence(file, settled, refundable)).await
    }

    /// Whether the account with these keys is the one that the ledger is about: none is noted yet, or
    /// one id is noted. `keys` must not be empty.
    ///
    /// # Errors
    /// The store cannot be asked, or it cannot be recorded.
    pub async fn recognise(&self, keys: Vec<String>, how: Recognise) -> Result<bool, Unavailable> {
        let clock = self.shared.clock.clone();
        let compare = move |books: &Books| recognise(&books.connection, &keys, how, clock());
        self.ask(Verb::Other("recognise"), Weight::Dear, compare).await
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Looks at the purchases since the last checkpoint only, and at all of them once in a ledger's life.
fn check(books: &Books, snapshot: Snapshot) -> Result<(), Fault> {
    let connection = &books.connection;
    let before = last_check(connection)?.map_or(0, |before| before.settled);
    let settles = nanos(snapshot.at.saturating_sub(SETTLES_WITHIN));
    let (unsettled, number): (Option<i64>, i64) = connection.query_row(
        "SELECT (SELECT min(number) FROM purchases
                 WHERE number > ? AND (ended_at IS NULL OR ended_at > ?)),
                (SELECT coalesce(max(number), 0) FROM purchases)",
        params![signed(before), settles],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let settled = unsettled.map_or(number, |first| first.saturating_sub(1));
    let mut insert = connection.prepare_cached(
        "INSERT INTO checks (at, balance_cents, chats, chat_cents, spent_cents, settled, purchases)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    insert.execute(params![
        nanos(snapshot.at),
        snapshot.balance_cents,
        snapshot.chats,
        snapshot.chat_cents,
        snapshot.spent_cents,
        settled,
        number,
    ])?;
    let oldest = connection.last_insert_rowid().saturating_sub(MAX_CHECKS);
    connection.execute("DELETE FROM checks WHERE number <= ?", [oldest])?;
    Ok(())
}

/// One without numbers is from an earlier version, or another account was found since: nothing is
/// compared with it.
fn last_check(connection: &Connection) -> Result<Option<Checkpoint>, Fault> {
    let mut latest = connection.prepare_cached(
        "SELECT at, balance_cents, chats, chat_cents, spent_cents, settled, purchases FROM checks
         WHERE purchases IS NOT NULL ORDER BY number DESC LIMIT 1",
    )?;
    let found = latest.query_row([], |row| {
        Ok(Checkpoint { snapshot: snapshot(row)?, settled: row.get(5)?, number: row.get(6)? })
    });
    Ok(found.optional()?)
}

fn checks(connection: &Connection, most: usize) -> Result<Vec<Snapshot>, Fault> {
    let mut latest = connection.prepare_cached(
        "SELECT at, balance_cents, chats, chat_cents, spent_cents FROM checks
         ORDER BY number DESC LIMIT ?",
    )?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    Ok(latest.query_map([most], snapshot)?.collect::<rusqlite::Result<_>>()?)
}

fn snapshot(row: &rusqlite::Row<'_>) -> rusqlite::Result<Snapshot> {
    Ok(Snapshot {
        at: column::moment(row, 0)?,
        balance_cents: row.get(1)?,
        chats: row.get(2)?,
        chat_cents: row.get(3)?,
        spent_cents: row.get(4)?,
    })
}

fn evidence(
    connection: &Connection,
    settled: u64,
    refundable: Duration,
) -> rusqlite::Result<Vec<Evidence>> {
    let mut find = connection.prepare(
        "SELECT p.id, p.at, p.caller, p.service, p.model, coalesce(p.cost_micros, p.toll_micros),
                p.state, p.ended_at, p.number, p.assumed, p.unrecognised, j.state
         FROM purchases AS p LEFT JOIN jobs AS j ON j.purchase = p.id
         WHERE p.number > ?1 OR p.state = 'unknown'
            OR (p.state = 'posted' AND p.service = 'video' AND j.state IS NOT 'finished'
                AND iif(j.state = 'failed', j.heard_at, p.ended_at) > ?2)
         ORDER BY p.number",
    )?;
    let found = find.query_map(params![signed(settled), nanos(refundable)], |row| {
        let job = match row.get::<_, Option<String>>(11)? {
            Some(_) => Some(column::named(row, 11, &JobState::ALL, JobState::name)?),
            None => None,
        };
        Ok(Evidence {
            row: report::row(row)?,
            number: row.get(8)?,
            is_assumed: row.get(9)?,
            is_recognised: !row.get::<_, bool>(10)?,
            job,
        })
    })?;
    found.collect()
}

fn recognise(
    connection: &Connection,
    keys: &[String],
    how: Recognise,
    now: Duration,
) -> Result<bool, Fault> {
    let mut noted =
        connection.prepare_cached("SELECT id FROM account_keys WHERE retired IS NULL")?;
    let noted =
        noted.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    let is_same = noted.is_empty() || keys.iter().any(|key| noted.contains(key));
    if how == Recognise::Look {
        return Ok(is_same);
    }
    if !is_same {
        let unuse =
            "UPDATE checks SET settled = NULL, purchases = NULL WHERE purchases IS NOT NULL";
        connection.execute(unuse, [])?;
        if how == Recognise::Note {
            // What it told of its rate limit is not true of the ledger's account.
            connection.execute("DELETE FROM rate_limit", [])?;
            return Ok(false);
        }
        let retire = "UPDATE account_keys SET retired = ? WHERE retired IS NULL";
        connection.execute(retire, [nanos(now)])?;
    }
    let mut note = connection.prepare_cached(
        "INSERT INTO account_keys (id, noted) VALUES (?, ?)
         ON CONFLICT (id) DO UPDATE SET retired = NULL WHERE retired IS NOT NULL",
    )?;
    for key in keys.iter().filter(|key| !is_same || !noted.contains(key)) {
        note.execute(params![key, nanos(now)])?;
    }
    Ok(true)
}
