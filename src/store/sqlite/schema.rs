//! The tables of the ledger's file.

use rusqlite::Connection;

/// Marks a SQLite file as ours: `tgat`.
pub(super) const APPLICATION: i64 = 0x7467_6174;
/// Marks a file of a tollgate before its first release: `toll`.
const BEFORE_RELEASE: i64 = 0x746f_6c6c;

/// Each entry migrates a file to the next version; the first creates it.
const MIGRATIONS: &[&str] = &[TABLES];

/// SQLite builds a temporary b-tree for each IN of more than two values, at each write.
const TABLES: &str = "
    -- Money is in micro-dollars, moments are in nanoseconds since 1970-01-01 UTC.
    CREATE TABLE purchases (
        number       INTEGER PRIMARY KEY,
        id           BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
        at           INTEGER NOT NULL,
        day          INTEGER NOT NULL,      -- days since 1970-01-01
        month        INTEGER NOT NULL,      -- months since January of the year 0
        caller       TEXT NOT NULL,
        -- The purchase counts for this group and token, too, also after the caller moves to another group.
        group_name   TEXT,
        token        TEXT,                  -- only if the token has a budget
        service      TEXT NOT NULL CHECK (service = 'chat' OR service = 'video' OR service = 'other'),
        model        TEXT NOT NULL,
        price_micros INTEGER NOT NULL CHECK (price_micros >= 0),
        cost_micros  INTEGER CHECK (cost_micros >= 0),
        state        TEXT NOT NULL CHECK (state = 'held' OR state = 'sent' OR state = 'charged'
                         OR state = 'released' OR state = 'unknown'),
        key          BLOB CHECK (length(key) = 32),
        payload      BLOB CHECK (length(payload) = 32),
        fingerprint  BLOB CHECK (length(fingerprint) = 32),
        delivered    INTEGER NOT NULL DEFAULT 0 CHECK (delivered = 0 OR delivered = 1),
        ended_at     INTEGER,
        keep_until   INTEGER,
        -- Charged by inference or because the operator says so; no reply was read.
        assumed      INTEGER NOT NULL DEFAULT 0 CHECK (assumed = 0 OR assumed = 1),
        -- Sent while the account of the gateway's keys was unknown: it may be another one's.
        unrecognised INTEGER NOT NULL DEFAULT 0 CHECK (unrecognised = 0 OR unrecognised = 1),
        -- Duplicates that got its reply: each would have been charged again.
        replays      INTEGER NOT NULL DEFAULT 0 CHECK (replays >= 0),
        CHECK ((cost_micros IS NOT NULL) = (state = 'charged')),
        CHECK ((keep_until IS NOT NULL) = (state = 'charged')),
        CHECK ((ended_at IS NULL) = (state = 'held' OR state = 'sent')),
        CHECK ((key IS NULL) = (payload IS NULL))
    ) STRICT;
    CREATE INDEX purchases_unknown ON purchases (at) WHERE state = 'unknown';
    -- Finds the purchases of one caller since a time.
    CREATE INDEX purchases_caller ON purchases (caller, at);

    CREATE UNIQUE INDEX purchases_key ON purchases (key) WHERE key IS NOT NULL;
    CREATE INDEX purchases_fingerprint ON purchases (fingerprint) WHERE fingerprint IS NOT NULL;

    -- Apart from the purchases, so that a mark on a purchase does not write its reply again.
    CREATE TABLE replies (
        number  INTEGER PRIMARY KEY REFERENCES purchases (number),
        until   INTEGER NOT NULL,
        status  INTEGER NOT NULL CHECK (status BETWEEN 100 AND 999),
        is_json INTEGER NOT NULL CHECK (is_json IN (0, 1)),
        body    BLOB NOT NULL
    ) STRICT;
    CREATE INDEX replies_until ON replies (until);

    -- The sums of charged, held and unknown purchases.
    CREATE TABLE spent (
        scope  TEXT NOT NULL,               -- 'total', or 'caller ' and its name
        unit   TEXT NOT NULL CHECK (unit IN ('day', 'month')),
        period INTEGER NOT NULL,
        micros INTEGER NOT NULL CHECK (micros >= 0),
        PRIMARY KEY (scope, unit, period)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE jobs (
        number       INTEGER PRIMARY KEY,
        request_id   TEXT NOT NULL UNIQUE,
        owner        TEXT NOT NULL,         -- the caller
        key          BLOB CHECK (length(key) = 8),
        model        TEXT NOT NULL,
        price_micros INTEGER NOT NULL CHECK (price_micros >= 0),
        at           INTEGER NOT NULL,
        status_at    INTEGER,
        body         BLOB,
        state        TEXT NOT NULL DEFAULT 'open' CHECK (state = 'open' OR state = 'finished' OR state = 'failed'),
        purchase     BLOB CHECK (length(purchase) = 16),    -- purchases.id
        prompt       TEXT,                  -- only with `jobs.keep_prompts`
        CHECK ((status_at IS NULL) = (body IS NULL)),
        CHECK (state = 'open' OR status_at IS NOT NULL)
    ) STRICT;
    CREATE INDEX jobs_open ON jobs (number) WHERE state = 'open';
    CREATE INDEX jobs_owner ON jobs (owner, number);
    CREATE INDEX jobs_times ON jobs (model, status_at) WHERE state = 'finished';
    CREATE INDEX jobs_purchase ON jobs (purchase) WHERE purchase IS NOT NULL;

    -- Without the numbers of purchases, it shows how the balance went, and nothing is reconciled from it.
    CREATE TABLE checkpoints (
        number        INTEGER PRIMARY KEY,
        at            INTEGER NOT NULL,
        balance_cents INTEGER NOT NULL,
        chats         INTEGER NOT NULL,
        chat_cents    INTEGER NOT NULL,
        spent_cents   INTEGER NOT NULL,
        settled       INTEGER,              -- all purchases up to this number were counted by then
        purchases     INTEGER               -- the number of the last one that had begun
    ) STRICT;
    -- The account that the ledger is about, by the ids of its keys as the gateway lists them.
    CREATE TABLE account_keys (
        id      TEXT PRIMARY KEY,
        noted   INTEGER NOT NULL,
        retired INTEGER                     -- when the ledger was given to another account
    ) STRICT, WITHOUT ROWID;

    -- The gateway's rate limit counts the requests of the last day. An integer is the key, and there is no
    -- index: see `slots`.
    CREATE TABLE slots (
        number  INTEGER PRIMARY KEY,
        at      INTEGER NOT NULL,
        replied INTEGER                     -- when its reply or failure came
    ) STRICT;
    -- The account's rate limit as the gateway reported it last: one row, once it is known.
    CREATE TABLE rate_limit (
        number   INTEGER PRIMARY KEY CHECK (number = 1),
        requests INTEGER NOT NULL CHECK (requests > 0),
        seconds  INTEGER NOT NULL CHECK (seconds > 0)
    ) STRICT;

    -- A row stays when its member is revoked, so that no other gets the name.
    CREATE TABLE members (
        name         TEXT PRIMARY KEY,
        role         TEXT NOT NULL CHECK (role IN ('member', 'admin')),
        day_micros   INTEGER CHECK (day_micros >= 0),       -- its own budget
        month_micros INTEGER CHECK (month_micros >= 0),
        token        BLOB NOT NULL CHECK (length(token) = 32),  -- a keyed hash
        prefix       TEXT NOT NULL,
        added        INTEGER NOT NULL,
        revoked      INTEGER,
        secret       BLOB CHECK (length(secret) = 32),      -- fingerprint of the secret of its token's hash
        may_buy      TEXT,                                  -- services and models; NULL is `access.may_buy`
        week_micros  INTEGER CHECK (week_micros >= 0),
        ever_micros  INTEGER CHECK (ever_micros >= 0),
        group_name   TEXT
    ) STRICT, WITHOUT ROWID;
    -- Each ends with the token that it was opened with.
    CREATE TABLE logins (
        number INTEGER PRIMARY KEY,
        id     BLOB NOT NULL UNIQUE CHECK (length(id) = 32),    -- a keyed hash
        member TEXT NOT NULL,
        token  BLOB NOT NULL CHECK (length(token) = 32),
        until  INTEGER NOT NULL
    ) STRICT;
    -- One row that goes up with every change of members, users and their logins.
    CREATE TABLE members_version (
        number  INTEGER PRIMARY KEY CHECK (number = 1),
        version INTEGER NOT NULL
    ) STRICT;
    INSERT INTO members_version VALUES (1, 0);

    -- The login service sends these facts about a user at each sign-in.
    CREATE TABLE subjects (
        issuer       TEXT NOT NULL,
        name         TEXT NOT NULL,         -- `sub`
        role         TEXT NOT NULL CHECK (role = 'member' OR role = 'admin'),
        budget       TEXT NOT NULL,         -- such as `1.00/day 5.00/month`; empty: none
        group_name   TEXT,
        may_buy      TEXT,                  -- services and models; NULL is `access.may_buy`
        display_name TEXT,
        signed_in    INTEGER NOT NULL,
        PRIMARY KEY (issuer, name)
    ) STRICT, WITHOUT ROWID;
    -- Sessions, and tokens for programs. A change goes up `members_version`.
    CREATE TABLE subject_logins (
        number    INTEGER PRIMARY KEY,
        id        BLOB NOT NULL UNIQUE CHECK (length(id) = 32),     -- a keyed hash
        issuer    TEXT NOT NULL,
        subject   TEXT NOT NULL,
        until     INTEGER NOT NULL,
        -- A session has none of these.
        token     TEXT,                     -- the token's name
        prefix    TEXT,
        budget    TEXT,                     -- the token's own
        created   INTEGER,
        last_used INTEGER,
        CHECK ((token IS NULL) = (prefix IS NULL) AND (token IS NULL) = (budget IS NULL)
            AND (token IS NULL) = (created IS NULL))
    ) STRICT;
    CREATE UNIQUE INDEX subject_tokens ON subject_logins (issuer, subject, token)
        WHERE token IS NOT NULL;

    CREATE TABLE groups (
        name         TEXT PRIMARY KEY,
        day_micros   INTEGER CHECK (day_micros >= 0),
        week_micros  INTEGER CHECK (week_micros >= 0),
        month_micros INTEGER CHECK (month_micros >= 0),
        ever_micros  INTEGER CHECK (ever_micros >= 0)
    ) STRICT, WITHOUT ROWID;
    -- Each raises every limit of a caller until it ends.
    CREATE TABLE extras (
        number INTEGER PRIMARY KEY,
        caller TEXT NOT NULL,
        micros INTEGER NOT NULL CHECK (micros >= 0),
        until  INTEGER NOT NULL,
        at     INTEGER NOT NULL
    ) STRICT;
    -- Callers that ask for more budget; each has one open request at most.
    CREATE TABLE budget_requests (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        caller TEXT NOT NULL UNIQUE,
        micros INTEGER NOT NULL CHECK (micros >= 0),
        reason TEXT NOT NULL,
        at     INTEGER NOT NULL
    ) STRICT;
    -- Each act of an admin or of the command line, written in the act's transaction.
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        at     INTEGER NOT NULL,
        by     TEXT NOT NULL,
        act    TEXT NOT NULL,
        of     TEXT NOT NULL,
        old    TEXT,
        new    TEXT
    ) STRICT;

    -- Which webhook wants which event; a webhook is the hash of its address.
    CREATE TABLE webhooks (
        event   TEXT NOT NULL,
        webhook BLOB NOT NULL CHECK (length(webhook) = 16),
        PRIMARY KEY (event, webhook)
    ) STRICT, WITHOUT ROWID;
    -- One row for each event and webhook, until it is delivered or given up.
    CREATE TABLE outbox (
        number   INTEGER PRIMARY KEY,
        id       TEXT NOT NULL,
        webhook  BLOB NOT NULL CHECK (length(webhook) = 16),
        event    TEXT NOT NULL,
        at       INTEGER NOT NULL,
        data     TEXT NOT NULL,             -- an object of JSON
        due      INTEGER NOT NULL,          -- the next attempt, or the end of a sender's lease
        attempts INTEGER NOT NULL DEFAULT 0,
        UNIQUE (id, webhook)
    ) STRICT;
    CREATE INDEX outbox_due ON outbox (webhook, due);
    -- Alerts that were reported and have not ended. An alert of period 0 lasts until its cause is over.
    CREATE TABLE alerts (
        rule   TEXT NOT NULL,
        whose  TEXT NOT NULL,
        period INTEGER NOT NULL,
        at     INTEGER NOT NULL,
        PRIMARY KEY (rule, whose, period)
    ) STRICT, WITHOUT ROWID;

    -- Play money and real money never share a ledger: one row, once it is known.
    CREATE TABLE money (
        number INTEGER PRIMARY KEY CHECK (number = 1),
        kind   TEXT NOT NULL CHECK (kind IN ('play', 'real'))
    ) STRICT;
    -- The fingerprint of the secret that tokens are hashed with: one row, once it is known.
    CREATE TABLE secret (
        number INTEGER PRIMARY KEY CHECK (number = 1),
        print  BLOB NOT NULL CHECK (length(print) = 32)
    ) STRICT;
    -- Which ledger this is: one row, once it was served.
    CREATE TABLE identity (
        number        INTEGER PRIMARY KEY CHECK (number = 1),
        name          TEXT NOT NULL,        -- public; changes when purchases may have been forgotten
        nonce         BLOB NOT NULL CHECK (length(nonce) = 16), -- of the last start; the lock file has it, too
        boot          TEXT NOT NULL,        -- the system's boot id at the last start; empty: not known
        -- All purchases up to this number have ended, so a start reads only later ones: no index finds
        -- those that run.
        ended_through INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    -- The store that has the ledger now: one row, once it was moved. This file sells no more.
    CREATE TABLE moved (
        number      INTEGER PRIMARY KEY CHECK (number = 1),
        destination TEXT NOT NULL,
        at          INTEGER NOT NULL
    ) STRICT;
    -- How many rows a copy into this file has written; empty once the copy is complete.
    CREATE TABLE imports (
        source     BLOB NOT NULL CHECK (length(source) = 16),
        done_table TEXT NOT NULL,
        last       INTEGER NOT NULL,
        PRIMARY KEY (source, done_table)
    ) STRICT, WITHOUT ROWID;
";

/// The condition for running purchases.
pub(super) const IS_RUNNING: &str =
    "ended_at IS NULL AND number > coalesce((SELECT ended_through FROM identity), 0)";

/// Returns the names of all tables, in the order in which they are created.
pub(super) fn tables() -> Vec<&'static str> {
    let names = TABLES.split("CREATE TABLE ").skip(1);
    names.filter_map(|rest| rest.split_whitespace().next()).collect()
}

pub(super) fn newest_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Empty,
    Ledger(i64),
    BeforeRelease,
    Foreign,
}

pub(super) fn file_kind(connection: &Connection) -> rusqlite::Result<FileKind> {
    // In one transaction: another process may be creating the file.
    let moment = connection.unchecked_transaction()?;
    let pragma = |name| moment.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    Ok(match (application, version) {
        (APPLICATION, 1..) => FileKind::Ledger(version),
        (BEFORE_RELEASE, _) => FileKind::BeforeRelease,
        (0, 0) if pragma("page_count")? == 0 => FileKind::Empty,
        _ => FileKind::Foreign,
    })
}

pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    apply_migrations(connection, MIGRATIONS)
}

fn apply_migrations(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    // With foreign keys, a table that others refer to could not be replaced by one with other constraints.
    // It cannot be switched within a transaction.
    connection.pragma_update(None, "foreign_keys", false)?;
    let migrated = in_one_transaction(connection, migrations);
    connection.pragma_update(None, "foreign_keys", true)?;
    migrated
}

fn in_one_transaction(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    let writing = rusqlite::TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(writing)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let mut next = version;
    for migration in migrations.iter().skip(usize::try_from(version).unwrap_or(usize::MAX)) {
        transaction.execute_batch(migration)?;
        next += 1;
    }
    if next != version {
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", next)?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests;
