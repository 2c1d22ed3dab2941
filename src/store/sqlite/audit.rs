//! Checkpoints, evidence and the account's keys in the ledger's file.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::books::Books;
use super::column::{self, nanos};
use super::fault::Fault;
use super::step::Weight;
use super::{Sqlite, report};
use crate::store::{
    Answer, Audit, Checkpoint, Evidence, JobState, PurchaseId, Recognise, Row, SETTLES_WITHIN,
    Snapshot, Unavailable,
};

/// Checkpoints that are remembered.
const MAX_CHECKS: i64 = 1_000;

impl Audit for Sqlite {
    fn check(&self, snapshot: Snapshot) -> Answer<'_, Result<(), Unavailable>> {
        self.ask(Weight::Cheap, move |books| check(books, snapshot))
    }

    fn last_check(&self) -> Answer<'_, Result<Option<Checkpoint>, Unavailable>> {
        self.ask(Weight::Cheap, |books| last_check(&books.connection))
    }

    fn checks(&self, most: usize) -> Answer<'_, Result<Vec<Snapshot>, Unavailable>> {
        self.ask(Weight::Cheap, move |books| checks(&books.connection, most))
    }

    fn unknown_after(&self, number: u64) -> Answer<'_, Result<u64, Unavailable>> {
        self.reports.read(move |connection| {
            let count = "SELECT count(*) FROM purchases WHERE number > ? AND state = 'unknown'";
            connection.query_row(count, [signed(number)], |row| row.get(0))
        })
    }

    fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Answer<'_, Result<Vec<Evidence>, Unavailable>> {
        self.reports.read(move |connection| evidence(connection, settled, refundable))
    }

    fn purchase(&self, id: PurchaseId) -> Answer<'_, Result<Option<Row>, Unavailable>> {
        self.reports.read(move |connection| report::purchase(connection, id))
    }

    fn recognise(
        &self,
        keys: Vec<String>,
        how: Recognise,
    ) -> Answer<'_, Result<bool, Unavailable>> {
        let clock = self.clock.clone();
        self.ask(Weight::Dear, move |books| recognise(&books.connection, &keys, how, clock()))
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
