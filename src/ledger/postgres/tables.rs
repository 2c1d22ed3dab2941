//! The tables of a shared ledger, version by version.

use std::time::Duration;

use super::session::PostgresSession;
use crate::ledger::engine::{Engine, Sql, StoreError};
use crate::ledger::name::new_name;
use crate::ledger::schema::{MIGRATIONS, SqlDialect, newest_version};
use crate::ledger::tables::read;
use crate::ledger::{Cause, Reason};

/// The tables that a file does not have.
const OWN_TABLES: &str = "
    -- One row, which each transaction locks.
    CREATE TABLE ledger (
        number  {key} CHECK (number = 1),
        version {int} NOT NULL,         -- goes up with each transaction that writes
        batch   {text} NOT NULL,        -- the id of the last of them
        schema  {int} NOT NULL,
        floor   {int} NOT NULL,         -- programs that know only lower schemas are refused
        name    {text} NOT NULL,        -- public; changes when purchases may have been lost
        cluster {text} NOT NULL,        -- the database cluster and its timeline; empty: not known
        blocked_until {int} NOT NULL,   -- no slot of the rate limit is free before
        stepped {int} NOT NULL          -- by how much steps have set the database's clock ahead
    ) {strict};
    -- The transactions that have been committed.
    CREATE TABLE batches (
        id {text} PRIMARY KEY,
        at {int} NOT NULL
    ) {strict};
    CREATE INDEX batches_at ON batches (at);
    CREATE INDEX slots_replied ON slots (replied);
    CREATE INDEX purchases_open ON purchases (deadline) WHERE ended_at IS NULL;
    -- The account's balance, and the prices held and spent: one row.
    CREATE TABLE credit (
        number {key} CHECK (number = 1),
        held   {int} NOT NULL,
        spent  {int} NOT NULL,
        balance {int},
        since  {int},                   -- what had been spent when the balance certainly included it
        as_of  {int},
        CHECK ((balance IS NULL) = (since IS NULL) AND (balance IS NULL) = (as_of IS NULL))
    ) {strict};
    INSERT INTO credit VALUES (1, 0, 0);
    -- Replies that cannot be parsed, for the operator and for a day.
    CREATE TABLE unparsable_replies (
        id   {blob} PRIMARY KEY,        -- purchases.id
        at   {int} NOT NULL,
        body {blob} NOT NULL
    ) {strict};
    -- The processes that use the ledger, and those that ended lately. No purchase depends on it.
    CREATE TABLE servers (
        number {key},
        kind   {text} NOT NULL CHECK (kind IN ('server', 'command')),
        name   {text} NOT NULL,
        pid    {int} NOT NULL,
        schema {int} NOT NULL,          -- the newest that it knows
        began  {int} NOT NULL,
        seen   {int} NOT NULL,
        ended  {int},
        rules  {blob},                  -- fingerprint of its budgets and limits
        secret {blob}                   -- fingerprint of the secret that it hashes tokens with
    ) {strict};
";

/// Makes or migrates the tables, or explains why they cannot be used. Servers that start together wait for
/// the one that migrates.
pub(super) fn prepare(session: &PostgresSession) -> Result<(), Reason> {
    session.simple("BEGIN; SELECT pg_advisory_xact_lock(7521)")?;
    session.end(migrate(session))
}

fn migrate(session: &PostgresSession) -> Result<(), Reason> {
    let newest = newest_version();
    let (schema, floor) = versions(session)?;
    check_floor(floor)?;
    if schema >= newest {
        return Ok(());
    }
    if !session.target.may_migrate {
        let why =
            "its tables are missing or older than this tollgate: run `tollgate store migrate`";
        return Err(why.into());
    }
    let known = usize::try_from(schema).unwrap_or_default();
    let mut steps = MIGRATIONS[known.min(MIGRATIONS.len())..].concat();
    let note = if schema == 0 {
        steps.push_str(OWN_TABLES);
        let name = new_name(Duration::ZERO);
        format!("INSERT INTO ledger VALUES (1, 1, '', {newest}, 1, '{name}', '', 0, 0)")
    } else {
        format!("UPDATE ledger SET schema = {newest}")
    };
    session.simple(&format!("{}; {note}", SqlDialect::Postgres.fill_in(&steps)))?;
    Ok(())
}

/// Refuses a ledger that needs a newer program.
pub(super) fn check_floor(floor: i64) -> Result<(), Reason> {
    if floor > newest_version() {
        let why = "a newer tollgate has migrated the ledger, and this one is too old for it";
        return Err(Reason::new(Cause::NewerVersion, why));
    }
    Ok(())
}

/// Returns the version of the tables and the least one that programs must know; 0 without tables.
fn versions(db: &dyn Engine) -> Result<(i64, i64), Reason> {
    if !has_tables(db)? {
        return Ok((0, 0));
    }
    Ok(db.one("SELECT schema, floor FROM ledger", (), read)?)
}

pub(super) fn has_tables(db: &dyn Engine) -> Result<bool, StoreError> {
    db.one("SELECT to_regclass('ledger') IS NOT NULL", (), read)
}
