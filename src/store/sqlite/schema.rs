//! The tables of the ledger's file, version by version.

mod groups;
mod indexes;
mod jobs;
mod logins;
mod moves;
mod outbox;

use rusqlite::Connection;

/// Marks a SQLite file as ours: `toll`.
pub(super) const APPLICATION: i64 = 0x746f_6c6c;

/// Each entry migrates a file to the next version; the first creates it.
const MIGRATIONS: &[&[&str]] = &[&["
    -- Money is in micro-dollars, moments are in nanoseconds since 1970-01-01 UTC.
    CREATE TABLE purchases (
        number      INTEGER PRIMARY KEY,
        id          BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
        at          INTEGER NOT NULL,
        day         INTEGER NOT NULL,   -- days since 1970-01-01
        month       INTEGER NOT NULL,   -- months since January of the year 0
        caller      TEXT NOT NULL,
        service     TEXT NOT NULL CHECK (service IN ('chat', 'video', 'other')),
        model       TEXT NOT NULL,
        toll_micros INTEGER NOT NULL CHECK (toll_micros >= 0),
        cost_micros INTEGER CHECK (cost_micros >= 0),
        state       TEXT NOT NULL CHECK (state IN ('reserved', 'sent', 'posted', 'voided', 'unknown')),
        key         BLOB CHECK (length(key) = 32),
        payload     BLOB CHECK (length(payload) = 32),
        likeness    BLOB CHECK (length(likeness) = 32),
        delivered   INTEGER NOT NULL DEFAULT 0 CHECK (delivered IN (0, 1)),
        ended_at    INTEGER,
        keep_until  INTEGER,
        CHECK ((cost_micros IS NOT NULL) = (state = 'posted')),
        CHECK ((keep_until IS NOT NULL) = (state = 'posted')),
        CHECK ((ended_at IS NULL) = (state IN ('reserved', 'sent'))),
        CHECK ((key IS NULL) = (payload IS NULL))
    ) STRICT;
    CREATE INDEX purchases_at ON purchases (at);
    CREATE INDEX purchases_running ON purchases (number) WHERE ended_at IS NULL;
    CREATE UNIQUE INDEX purchases_key ON purchases (key) WHERE key IS NOT NULL;
    CREATE INDEX purchases_likeness ON purchases (likeness, ended_at) WHERE likeness IS NOT NULL;

    -- Apart from the purchases, so that a mark on a purchase does not write its reply again.
    CREATE TABLE replies (
        number  INTEGER PRIMARY KEY REFERENCES purchases (number),
        until   INTEGER NOT NULL,
        status  INTEGER NOT NULL CHECK (status BETWEEN 100 AND 999),
        is_json INTEGER NOT NULL CHECK (is_json IN (0, 1)),
        body    BLOB NOT NULL
    ) STRICT;
    CREATE INDEX replies_until ON replies (until);

    -- What counts as spent: posted, set aside and unknown.
    CREATE TABLE spent (
        scope  TEXT NOT NULL,           -- 'total', or 'caller ' and who
        unit   TEXT NOT NULL CHECK (unit IN ('day', 'month')),
        period INTEGER NOT NULL,
        micros INTEGER NOT NULL CHECK (micros >= 0),
        PRIMARY KEY (scope, unit, period)
    ) STRICT, WITHOUT ROWID;

    -- Play money and real money never share a ledger: one row, once it is known.
    CREATE TABLE money (
        number INTEGER PRIMARY KEY CHECK (number = 1),
        kind   TEXT NOT NULL CHECK (kind IN ('play', 'real'))
    ) STRICT;
    CREATE TABLE jobs (
        number      INTEGER PRIMARY KEY,
        request_id  TEXT NOT NULL UNIQUE,
        owner       TEXT NOT NULL,
        key         BLOB CHECK (length(key) = 8),
        model       TEXT NOT NULL,
        toll_micros INTEGER NOT NULL CHECK (toll_micros >= 0),
        at          INTEGER NOT NULL,
        heard_at    INTEGER,
        body        BLOB,
        state       TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'finished', 'failed')),
        CHECK ((heard_at IS NULL) = (body IS NULL)),
        CHECK (state = 'open' OR heard_at IS NOT NULL)
    ) STRICT;
    CREATE INDEX jobs_open ON jobs (number) WHERE state = 'open';
    CREATE INDEX jobs_owner ON jobs (owner, number);
    CREATE INDEX jobs_times ON jobs (model, heard_at) WHERE state = 'finished';

    CREATE TABLE checks (
        number        INTEGER PRIMARY KEY,
        at            INTEGER NOT NULL,
        balance_cents INTEGER NOT NULL,
        chats         INTEGER NOT NULL,
        chat_cents    INTEGER NOT NULL,
        spent_cents   INTEGER NOT NULL
    ) STRICT;

    -- What was sent to the gateway in the last day, which its rate limit counts.
    CREATE TABLE places (
        id      BLOB PRIMARY KEY CHECK (length(id) = 16),
        at      INTEGER NOT NULL,
        replied INTEGER                 -- when its reply or failure came
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX places_at ON places (at);
"], &["
    -- Who may call. A row stays when its member is revoked, so that no other gets the name.
    CREATE TABLE members (
        name         TEXT PRIMARY KEY,
        role         TEXT NOT NULL CHECK (role IN ('member', 'admin')),
        day_micros   INTEGER CHECK (day_micros >= 0),     -- its own budget
        month_micros INTEGER CHECK (month_micros >= 0),
        token        BLOB NOT NULL CHECK (length(token) = 32),  -- a keyed hash
        prefix       TEXT NOT NULL,
        added        INTEGER NOT NULL,
        revoked      INTEGER
    ) STRICT, WITHOUT ROWID;

    -- Logins; each ends with the token that it was opened with.
    CREATE TABLE sessions (
        number INTEGER PRIMARY KEY,
        id     BLOB NOT NULL UNIQUE CHECK (length(id) = 32),    -- a keyed hash
        member TEXT NOT NULL,
        token  BLOB NOT NULL CHECK (length(token) = 32),
        until  INTEGER NOT NULL
    ) STRICT;

    -- One row that goes up with every change of the two above.
    CREATE TABLE members_edition (
        number  INTEGER PRIMARY KEY CHECK (number = 1),
        edition INTEGER NOT NULL
    ) STRICT;
    INSERT INTO members_edition VALUES (1, 0);
"], &["
    -- The fingerprint of the secret that tokens are hashed with: one row, once it is known.
    CREATE TABLE secret (
        number INTEGER PRIMARY KEY CHECK (number = 1),
        print  BLOB NOT NULL CHECK (length(print) = 32)
    ) STRICT;
"], &["
    -- Which ledger this is: one row, once it was served.
    CREATE TABLE identity (
        number  INTEGER PRIMARY KEY CHECK (number = 1),
        name    TEXT NOT NULL,          -- public; changes when purchases may have been forgotten
        nonce   BLOB NOT NULL CHECK (length(nonce) = 16),   -- of the last start; the lock file has it, too
        boot    TEXT NOT NULL           -- the system's boot id at the last start; empty: not known
    ) STRICT;
    CREATE INDEX purchases_unknown ON purchases (at) WHERE state = 'unknown';
    -- What one caller bought since a time.
    CREATE INDEX purchases_caller ON purchases (caller, at);
    -- The account's rate limit as the gateway told it last: one row, once it is known.
    CREATE TABLE rate_limit (
        number   INTEGER PRIMARY KEY CHECK (number = 1),
        requests INTEGER NOT NULL CHECK (requests > 0),    -- in any window
        seconds  INTEGER NOT NULL CHECK (seconds > 0)      -- the length of a window
    ) STRICT;
    -- Charged by inference or by the operator's word; no reply was read.
    ALTER TABLE purchases ADD COLUMN assumed INTEGER NOT NULL DEFAULT 0 CHECK (assumed IN (0, 1));
    -- Sent while nobody knew whose account the gateway's keys are of: it may be another one's.
    ALTER TABLE purchases ADD COLUMN unrecognised INTEGER NOT NULL DEFAULT 0 CHECK (unrecognised IN (0, 1));

    -- Numbers of purchases. Without them, a checkpoint is of an earlier version or of an earlier account:
    -- it shows how the balance went, and nothing is reconciled from it.
    ALTER TABLE checks ADD COLUMN settled INTEGER;      -- all up to this one were counted by then
    ALTER TABLE checks ADD COLUMN purchases INTEGER;    -- the last one that had begun

    ALTER TABLE jobs ADD COLUMN purchase BLOB CHECK (length(purchase) = 16);    -- purchases.id
    CREATE INDEX jobs_purchase ON jobs (purchase) WHERE purchase IS NOT NULL;

    -- The account that the ledger is about, by the ids of its keys as the gateway lists them.
    CREATE TABLE account_keys (
        id      TEXT PRIMARY KEY,
        noted   INTEGER NOT NULL,
        retired INTEGER                 -- when the ledger was given to another account
    ) STRICT, WITHOUT ROWID;
"], &["
    -- What the account's balance covers, in micro-dollars: one row. Each start of a server begins it anew.
    CREATE TABLE credit (
        number  INTEGER PRIMARY KEY CHECK (number = 1),
        held    INTEGER NOT NULL CHECK (held >= 0),
        spent   INTEGER NOT NULL CHECK (spent >= 0),    -- by what ended since the start
        balance INTEGER CHECK (balance >= 0),           -- as the gateway told it last
        since   INTEGER,                                -- what of `spent` is in the balance
        as_of   INTEGER,
        CHECK ((balance IS NULL) = (since IS NULL) AND (since IS NULL) = (as_of IS NULL))
    ) STRICT;
    INSERT INTO credit (number, held, spent) VALUES (1, 0, 0);
"], &["
    -- Plain names for states, prices and fingerprints. A constraint on the states cannot be changed in place.
    CREATE TABLE purchases_renamed (
        number       INTEGER PRIMARY KEY,
        id           BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
        at           INTEGER NOT NULL,
        day          INTEGER NOT NULL,   -- days since 1970-01-01
        month        INTEGER NOT NULL,   -- months since January of the year 0
        caller       TEXT NOT NULL,
        service      TEXT NOT NULL CHECK (service IN ('chat', 'video', 'other')),
        model        TEXT NOT NULL,
        price_micros INTEGER NOT NULL CHECK (price_micros >= 0),
        cost_micros  INTEGER CHECK (cost_micros >= 0),
        state        TEXT NOT NULL CHECK (state IN ('held', 'sent', 'charged', 'released', 'unknown')),
        key          BLOB CHECK (length(key) = 32),
        payload      BLOB CHECK (length(payload) = 32),
        fingerprint  BLOB CHECK (length(fingerprint) = 32),
        delivered    INTEGER NOT NULL DEFAULT 0 CHECK (delivered IN (0, 1)),
        ended_at     INTEGER,
        keep_until   INTEGER,
        -- Charged by inference or because the operator says so; no reply was read.
        assumed      INTEGER NOT NULL DEFAULT 0 CHECK (assumed IN (0, 1)),
        -- Sent while the account of the gateway's keys was unknown: it may be another one's.
        unrecognised INTEGER NOT NULL DEFAULT 0 CHECK (unrecognised IN (0, 1)),
        CHECK ((cost_micros IS NOT NULL) = (state = 'charged')),
        CHECK ((keep_until IS NOT NULL) = (state = 'charged')),
        CHECK ((ended_at IS NULL) = (state IN ('held', 'sent'))),
        CHECK ((key IS NULL) = (payload IS NULL))
    ) STRICT;
    INSERT INTO purchases_renamed
        SELECT number, id, at, day, month, caller, service, model, toll_micros, cost_micros,
            CASE state WHEN 'reserved' THEN 'held' WHEN 'posted' THEN 'charged'
                WHEN 'voided' THEN 'released' ELSE state END,
            key, payload, likeness, delivered, ended_at, keep_until, assumed, unrecognised
        FROM purchases ORDER BY number;
    DROP TABLE purchases;
    ALTER TABLE purchases_renamed RENAME TO purchases;
    CREATE INDEX purchases_at ON purchases (at);
    CREATE INDEX purchases_running ON purchases (number) WHERE ended_at IS NULL;
    CREATE UNIQUE INDEX purchases_key ON purchases (key) WHERE key IS NOT NULL;
    CREATE INDEX purchases_fingerprint ON purchases (fingerprint, ended_at) WHERE fingerprint IS NOT NULL;
    CREATE INDEX purchases_unknown ON purchases (at) WHERE state = 'unknown';
    -- What one caller bought since a time.
    CREATE INDEX purchases_caller ON purchases (caller, at);
    ALTER TABLE jobs RENAME COLUMN toll_micros TO price_micros;
    ALTER TABLE jobs RENAME COLUMN heard_at TO status_at;
    ALTER TABLE jobs ADD COLUMN prompt TEXT;    -- only with `jobs.keep_prompts`
    ALTER TABLE places RENAME TO slots;
    DROP INDEX places_at;
    CREATE INDEX slots_at ON slots (at);
    ALTER TABLE members_edition RENAME TO members_version;
    ALTER TABLE members_version RENAME COLUMN edition TO version;
"], &["
    -- SQLite builds a temporary b-tree for each IN with more than two values, at each write.
    CREATE TABLE purchases_checked (
        number       INTEGER PRIMARY KEY,
        id           BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
        at           INTEGER NOT NULL,
        day          INTEGER NOT NULL,   -- days since 1970-01-01
        month        INTEGER NOT NULL,   -- months since January of the year 0
        caller       TEXT NOT NULL,
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
    INSERT INTO purchases_checked
        SELECT number, id, at, day, month, caller, service, model, price_micros, cost_micros, state,
            key, payload, fingerprint, delivered, ended_at, keep_until, assumed, unrecognised, 0
        FROM purchases ORDER BY number;
    DROP TABLE purchases;
    ALTER TABLE purchases_checked RENAME TO purchases;
    CREATE INDEX purchases_at ON purchases (at);
    CREATE INDEX purchases_running ON purchases (number) WHERE ended_at IS NULL;
    CREATE UNIQUE INDEX purchases_key ON purchases (key) WHERE key IS NOT NULL;
    CREATE INDEX purchases_fingerprint ON purchases (fingerprint, ended_at) WHERE fingerprint IS NOT NULL;
    CREATE INDEX purchases_unknown ON purchases (at) WHERE state = 'unknown';
    -- What one caller bought since a time.
    CREATE INDEX purchases_caller ON purchases (caller, at);
    -- Each start began it anew, so it needs no row.
    DROP TABLE credit;
    -- The fingerprint of the secret that the token is hashed with, if it is known.
    ALTER TABLE members ADD COLUMN secret BLOB CHECK (length(secret) = 32);
    UPDATE members SET secret = (SELECT print FROM secret);
"], &["
    -- An integer as the key and no index: see `slots`. What was running has a reply once the ledger is open.
    CREATE TABLE slots_numbered (
        number  INTEGER PRIMARY KEY,
        at      INTEGER NOT NULL,
        replied INTEGER                 -- when its reply or failure came
    ) STRICT;
    INSERT INTO slots_numbered (at, replied) SELECT at, replied FROM slots ORDER BY at;
    DROP TABLE slots;
    ALTER TABLE slots_numbered RENAME TO slots;
    -- All purchases up to this number have ended, so a start reads only later ones: no index finds those that run.
    ALTER TABLE identity ADD COLUMN ended_through INTEGER NOT NULL DEFAULT 0;
    UPDATE identity SET ended_through = coalesce(
        (SELECT min(number) - 1 FROM purchases WHERE ended_at IS NULL),
        (SELECT max(number) FROM purchases),
        0);
    DROP INDEX purchases_running;
"], &["
    -- Names of services and models, with spaces between them; NULL: what `access.may_buy` says.
    ALTER TABLE members ADD COLUMN may_buy TEXT;
",
], &[
    groups::TABLES,
    logins::TABLES,
    moves::TABLES,
    outbox::TABLES,
], &[jobs::TABLES], &[indexes::DROPPED], &[indexes::DEDUPE_KEYS]];

/// The version that renamed states, and the columns of prices and fingerprints.
const NEW_NAMES: i64 = 6;

/// The version that dropped the index on running purchases.
const ENDED_THROUGH: i64 = 8;

/// The version that added groups and tokens.
const GROUPS: i64 = 10;

/// The version that added the table of dedupe keys.
const DEDUPE_KEYS: i64 = 13;

/// Returns the condition for running purchases in a file of this version.
pub(super) fn is_running(version: i64) -> &'static str {
    if version < ENDED_THROUGH {
        "ended_at IS NULL"
    } else {
        "ended_at IS NULL AND number > coalesce((SELECT ended_through FROM identity), 0)"
    }
}

/// Selects how much each purchase counts in a file of this version: files are examined before they are migrated.
pub(super) fn counted(version: i64) -> &'static str {
    if version < NEW_NAMES {
        "SELECT caller, day, month, CASE state WHEN 'voided' THEN 0 WHEN 'posted' THEN cost_micros
            ELSE toll_micros END AS micros, NULL, NULL FROM purchases"
    } else if version < GROUPS {
        "SELECT caller, day, month, CASE state WHEN 'released' THEN 0 WHEN 'charged' THEN cost_micros
            ELSE price_micros END AS micros, NULL, NULL FROM purchases"
    } else {
        "SELECT caller, day, month, CASE state WHEN 'released' THEN 0 WHEN 'charged' THEN cost_micros
            ELSE price_micros END AS micros, group_name, token FROM purchases"
    }
}

/// Selects how many dedupe keys are missing from their index in a file of this version, or `None` if that
/// version has no such table.
pub(super) fn missing_dedupe_keys(version: i64) -> Option<&'static str> {
    (version >= DEDUPE_KEYS).then_some(
        "SELECT count(*) FROM purchase_keys AS expected
         WHERE number <= coalesce((SELECT keys_through FROM identity), 0)
            AND NOT EXISTS (SELECT 1 FROM dedupe_keys AS found
                WHERE found.key = expected.key AND found.number = expected.number)",
    )
}

pub(super) fn newest_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Empty,
    Ledger(i64),
    Foreign,
}

pub(super) fn file_kind(connection: &Connection) -> rusqlite::Result<FileKind> {
    // In one transaction: another process may be creating the file.
    let moment = connection.unchecked_transaction()?;
    let pragma = |name| moment.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    Ok(match (application, version) {
        (APPLICATION, 1..) => FileKind::Ledger(version),
        (0, 0) if pragma("page_count")? == 0 => FileKind::Empty,
        _ => FileKind::Foreign,
    })
}

pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    apply_migrations(connection, MIGRATIONS)
}

fn apply_migrations(connection: &mut Connection, migrations: &[&[&str]]) -> rusqlite::Result<()> {
    // With foreign keys, a table that others refer to could not be replaced by one with other constraints.
    // It cannot be switched within a transaction.
    connection.pragma_update(None, "foreign_keys", false)?;
    let migrated = in_one_transaction(connection, migrations);
    connection.pragma_update(None, "foreign_keys", true)?;
    migrated
}

fn in_one_transaction(connection: &mut Connection, migrations: &[&[&str]]) -> rusqlite::Result<()> {
    let writing = rusqlite::TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(writing)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let mut next = version;
    for migration in migrations.iter().skip(usize::try_from(version).unwrap_or(usize::MAX)) {
        for statements in *migration {
            transaction.execute_batch(statements)?;
        }
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
