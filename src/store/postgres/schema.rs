//! The tables of the shared ledger, version by version.
//!
//! A migration only adds, so that the programs of the last version go on beside those of this one.

mod groups;
mod logins;
mod moves;
mod outbox;

use tokio_postgres::error::SqlState;

use super::flush::PreparedConnection;
use super::step::statement;
use crate::store::{Cause, Reason};

/// How often a migration is tried again, because another instance makes the same one.
const ATTEMPTS: usize = 5;

/// Each entry migrates to the next version; the first creates the tables. Money is in
/// micro-dollars, moments are in nanoseconds since 1970-01-01 UTC.
const MIGRATIONS: &[&[&str]] = &[&["
    CREATE TABLE store (
        one     boolean PRIMARY KEY DEFAULT true CHECK (one),
        name    text NOT NULL,      -- public; changes when purchases may have been lost
        money   text CHECK (money IN ('play', 'real')),     -- once it is known
        secret  bytea CHECK (length(secret) = 32),  -- fingerprint of the secret that tokens are hashed with
        version int NOT NULL,
        floor   int NOT NULL        -- programs that know only lower versions are refused
    );
    INSERT INTO store (name, version, floor) VALUES ('durable-' || replace(gen_random_uuid()::text, '-', ''), 0, 1);

    -- A number is never used again, so it fences: whoever was declared dead decides nothing.
    CREATE TABLE instances (
        id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        kind    text NOT NULL CHECK (kind IN ('server', 'command')),
        name    text NOT NULL,
        pid     bigint NOT NULL,
        version int NOT NULL,
        began   bigint NOT NULL,
        until   bigint NOT NULL,    -- the end of its lease, unless it beats again
        beat    bigint NOT NULL DEFAULT 0,
        ended   bigint
    ) WITH (fillfactor = 50);
    CREATE INDEX instances_alive ON instances (until) WHERE ended IS NULL;

    -- Its lock orders all changes of counters.
    CREATE TABLE account (
        one           boolean PRIMARY KEY DEFAULT true CHECK (one),
        committed     bigint NOT NULL DEFAULT 0,    -- all that was ever held, less what was released
        balance       bigint CHECK (balance >= 0),
        balance_mark  bigint,       -- what of `committed` the balance certainly includes
        balance_as_of bigint,
        CHECK ((balance IS NULL) = (balance_mark IS NULL) AND (balance IS NULL) = (balance_as_of IS NULL))
    ) WITH (fillfactor = 10);
    INSERT INTO account DEFAULT VALUES;

    CREATE TABLE purchases (
        number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id           uuid NOT NULL UNIQUE,
        owner        bigint NOT NULL,   -- the instance that answers for it while it runs
        at           bigint NOT NULL,
        day          bigint NOT NULL,   -- days since 1970-01-01
        month        bigint NOT NULL,   -- months since January of the year 0
        caller       text NOT NULL,
        service      text NOT NULL CHECK (service IN ('chat', 'video', 'other')),
        model        text NOT NULL,
        price_micros bigint NOT NULL CHECK (price_micros >= 0),
        cost_micros  bigint CHECK (cost_micros >= 0),
        state        text NOT NULL CHECK (state IN ('held', 'sent', 'charged', 'released', 'unknown')),
        key          bytea CHECK (length(key) = 32),
        payload      bytea CHECK (length(payload) = 32),
        fingerprint  bytea CHECK (length(fingerprint) = 32),
        delivered    boolean NOT NULL DEFAULT false,
        ended_at     bigint,
        keep_until   bigint,
        -- Charged by inference or because the operator says so; no reply was read.
        assumed      boolean NOT NULL DEFAULT false,
        -- Sent while the account of the gateway's keys was unknown: it may be another one's.
        unrecognised boolean NOT NULL DEFAULT false,
        -- Duplicates that got its reply: each would have been charged again.
        replays      bigint NOT NULL DEFAULT 0 CHECK (replays >= 0),
        CHECK ((cost_micros IS NOT NULL) = (state = 'charged')),
        CHECK ((keep_until IS NOT NULL) = (state = 'charged')),
        CHECK ((ended_at IS NULL) = (state IN ('held', 'sent'))),
        CHECK ((key IS NULL) = (payload IS NULL))
    ) WITH (fillfactor = 80);
    CREATE INDEX purchases_at ON purchases (at);
    CREATE INDEX purchases_running ON purchases (owner, number) WHERE ended_at IS NULL;
    CREATE UNIQUE INDEX purchases_key ON purchases (key) WHERE key IS NOT NULL;
    CREATE INDEX purchases_fingerprint ON purchases (fingerprint, ended_at) WHERE fingerprint IS NOT NULL;
    CREATE INDEX purchases_unknown ON purchases (at) WHERE state = 'unknown';
    CREATE INDEX purchases_caller ON purchases (caller, at);

    CREATE TABLE replies (
        number  bigint PRIMARY KEY REFERENCES purchases,
        until   bigint NOT NULL,
        status  int NOT NULL CHECK (status BETWEEN 100 AND 999),
        is_json boolean NOT NULL,
        bytes   bigint NOT NULL,    -- of the body
        body    bytea NOT NULL
    );
    -- Which ones to delete first, without reading their bodies.
    CREATE INDEX replies_until ON replies (until, number) INCLUDE (bytes);
    -- Replies that cannot be parsed, for the operator and for a day.
    CREATE TABLE unparsable_replies (
        id   uuid PRIMARY KEY,      -- purchases.id
        at   bigint NOT NULL,
        body bytea NOT NULL
    );

    -- What counts as spent: charged, held and unknown.
    CREATE TABLE spent (
        scope  text NOT NULL,       -- 'total', or 'caller ' and its name
        unit   text NOT NULL CHECK (unit IN ('day', 'month')),
        period bigint NOT NULL,
        micros bigint NOT NULL CHECK (micros >= 0),
        PRIMARY KEY (scope, unit, period)
    ) WITH (fillfactor = 50);

    CREATE TABLE jobs (
        number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        request_id   text NOT NULL UNIQUE,
        purchase     uuid,          -- purchases.id
        owner        text NOT NULL, -- the caller
        key          bytea CHECK (length(key) = 8),
        model        text NOT NULL,
        price_micros bigint NOT NULL CHECK (price_micros >= 0),
        at           bigint NOT NULL,
        status_at    bigint,
        body         bytea,
        state        text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'finished', 'failed')),
        prompt       bytea,         -- UTF-8; only with `jobs.keep_prompts`
        poller       bigint,        -- the instance that polls it; NULL: any may begin
        wanted_until bigint,        -- until then, someone watches it at another instance
        revision     bigint NOT NULL DEFAULT 0,     -- goes up with each status
        CHECK ((status_at IS NULL) = (body IS NULL)),
        CHECK (state = 'open' OR status_at IS NOT NULL)
    );
    CREATE INDEX jobs_open ON jobs (number) WHERE state = 'open';
    CREATE INDEX jobs_owner ON jobs (owner, number);
    CREATE INDEX jobs_times ON jobs (model, status_at) WHERE state = 'finished';
    CREATE INDEX jobs_purchase ON jobs (purchase) WHERE purchase IS NOT NULL;

    CREATE TABLE checkpoints (
        number        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at            bigint NOT NULL,
        balance_cents bigint NOT NULL,
        chats         bigint NOT NULL,
        chat_cents    bigint NOT NULL,
        spent_cents   bigint NOT NULL,
        settled       bigint,       -- all purchases up to this number were counted by then
        purchases     bigint        -- the number of the last one that had begun
    );
    -- The account that the ledger is about, by the ids of its keys as the gateway lists them.
    CREATE TABLE account_keys (
        id      text PRIMARY KEY,
        noted   bigint NOT NULL,
        retired bigint              -- when the ledger was given to another account
    );

    -- What was sent to the gateway in the last day, which its rate limit counts.
    CREATE TABLE slots (
        id      uuid PRIMARY KEY,
        owner   bigint NOT NULL,
        caller  text NOT NULL DEFAULT '',   -- its turns are counted
        at      bigint NOT NULL,
        replied bigint              -- when its reply or failure came
    );
    CREATE INDEX slots_at ON slots (at);
    CREATE INDEX slots_taken ON slots ((coalesce(replied, 9223372036854775807)));
    CREATE INDEX slots_running ON slots (owner) WHERE replied IS NULL;
    -- The account's rate limit as the gateway reported it last. Its lock orders all turns.
    CREATE TABLE rate_limit (
        one                  boolean PRIMARY KEY DEFAULT true CHECK (one),
        requests             bigint CHECK (requests > 0),
        seconds              bigint CHECK (seconds > 0),
        blocked_until        bigint NOT NULL DEFAULT 0,
        purchases_since_poll bigint NOT NULL DEFAULT 0,     -- while polls wait
        CHECK ((requests IS NULL) = (seconds IS NULL))
    ) WITH (fillfactor = 10);
    INSERT INTO rate_limit DEFAULT VALUES;
    -- The requests that wait for a slot, at all instances.
    CREATE TABLE waiting (
        slot     uuid PRIMARY KEY,  -- the id of the slot that it gets
        owner    bigint NOT NULL,
        priority smallint NOT NULL,
        caller   text NOT NULL,
        since    bigint NOT NULL,   -- 0 for a retry, which comes first
        seen     bigint NOT NULL    -- when its instance asked last
    );
    CREATE INDEX waiting_owner ON waiting (owner);

    CREATE TABLE members (
        name         text PRIMARY KEY COLLATE \"C\",
        role         text NOT NULL CHECK (role IN ('member', 'admin')),
        day_micros   bigint CHECK (day_micros >= 0),
        month_micros bigint CHECK (month_micros >= 0),
        token        bytea NOT NULL CHECK (length(token) = 32),     -- a keyed hash
        prefix       text NOT NULL,
        added        bigint NOT NULL,
        revoked      bigint,
        secret       bytea CHECK (length(secret) = 32), -- fingerprint of the secret of its token's hash
        may_buy      text                               -- services and models; NULL is `access.may_buy`
    );
    CREATE TABLE logins (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id     bytea NOT NULL UNIQUE CHECK (length(id) = 32),       -- a keyed hash
        member text NOT NULL,
        token  bytea NOT NULL CHECK (length(token) = 32),
        until  bigint NOT NULL
    );
    -- Goes up with every change of the two above.
    CREATE TABLE members_version (
        one     boolean PRIMARY KEY DEFAULT true CHECK (one),
        version bigint NOT NULL
    );
    INSERT INTO members_version (version) VALUES (0);
    ALTER TABLE account SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
    ALTER TABLE instances SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
",
], &[
    groups::TABLES,
    logins::TABLES,
    moves::TABLES,
    outbox::TABLES,
]];

/// Living instances that know only earlier versions.
const OLDER: &str = "SELECT name FROM instances
    WHERE ended IS NULL AND until >= {clock} AND version < $1 ORDER BY id";
const RAISE_FLOOR: &str = "UPDATE store SET floor = greatest(floor, $1)";

/// A public name that no ledger has, as SQL: a UUIDv7 with the time of a loss.
macro_rules! new_name {
    ($now:literal) => {
        concat!(
            "'durable-' || lpad(to_hex(",
            $now,
            " / 1000000), 12, '0')
            || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14)"
        )
    };
}
pub(super) use new_name;

/// Slots, spending and numbers of instances may be missing where `$lost` has a row. `$period` is that of
/// the rate limit, if the settings know it. Sales lock the account before the rate limit, too.
macro_rules! after_loss {
    ($lost:literal, $period:literal) => {
        concat!(
            "forgotten AS (
  UPDATE account SET balance = NULL, balance_mark = NULL, balance_as_of = NULL
  FROM ",
            $lost,
            "
), shut AS (
  UPDATE rate_limit SET blocked_until = greatest(blocked_until,
    {clock} + coalesce(",
            $period,
            ", least(seconds, 86400) * 1000000000, 60000000000))
  FROM ",
            $lost,
            "
), instance_numbers AS (
  SELECT pg_get_serial_sequence('instances', 'id')::regclass AS of
)"
        )
    };
}
pub(super) use after_loss;

/// Whether somebody is in the group `$name`: a member, or a user of a login service with a session or
/// a token.
macro_rules! has_members {
    ($name:literal) => {
        concat!(
            "(EXISTS (SELECT 1 FROM members WHERE revoked IS NULL AND group_name = ",
            $name,
            ") OR EXISTS (SELECT 1 FROM subjects JOIN subject_logins AS login
                ON login.issuer = subjects.issuer AND login.subject = subjects.name
                WHERE group_name = ",
            $name,
            "))"
        )
    };
}
pub(super) use has_members;

/// The version of the tables that this program knows.
pub(super) const NEWEST: i32 = MIGRATIONS.len() as i32;

/// Makes or migrates the tables, or explains why they cannot be used.
pub(super) async fn prepare(session: &PreparedConnection, may_migrate: bool) -> Result<(), Reason> {
    let mut failure = Reason::from("the tables could not be migrated");
    for _ in 0..ATTEMPTS {
        let (version, floor) = version(session).await?;
        if floor > NEWEST {
            let why = "a newer tollgate has migrated the ledger, and this one is too old for it";
            return Err(Reason::new(Cause::NewerVersion, why));
        }
        let next = usize::try_from(version).unwrap_or(usize::MAX);
        let Some(migration) = MIGRATIONS.get(next) else { return Ok(()) };
        if !may_migrate {
            let why =
                "its tables are missing or older than this tollgate: run `tollgate store migrate`";
            return Err(why.into());
        }
        // Each sale reads these first, too, so neither waits for the other. Fails if another instance
        // has made this step meanwhile.
        let lock = if version == 0 {
            String::new()
        } else {
            format!(
                "LOCK TABLE instances, store; SELECT 1 / count(*) FROM store WHERE version = {version};"
            )
        };
        let tables = migration.join(";\n");
        let script = format!(
            "SET LOCAL lock_timeout = '3s'; {lock} {tables}; UPDATE store SET version = {}",
            version + 1
        );
        if let Err(error) = session.run_script(&script).await {
            failure = error.into();
        }
    }
    Err(failure)
}

/// Refuses programs of earlier versions from now on, so that a later migration may remove what only
/// they need. Fails while one lives.
pub(super) async fn contract(session: &PreparedConnection) -> Result<(), Reason> {
    let rows = session.query(OLDER, &[Box::new(NEWEST)]).await?;
    let names: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get(0)).collect();
    let names = names?.join(", ");
    if !names.is_empty() {
        let why = format!("{names} run an older tollgate: stop or upgrade them first");
        return Err(why.into());
    }
    // An older one that joins meanwhile decides nothing: each of its transactions asks for the floor.
    session.query(RAISE_FLOOR, &[Box::new(NEWEST)]).await?;
    Ok(())
}

/// Returns the version and the floor of the tables; zeros without tables.
async fn version(session: &PreparedConnection) -> Result<(i32, i32), Reason> {
    let query = statement!("SELECT version, floor FROM store");
    match session.query(query.sql, &query.values).await {
        Ok(rows) => {
            let row = rows.first().ok_or("its table `store` is empty")?;
            Ok((row.try_get(0)?, row.try_get(1)?))
        }
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok((0, 0)),
        Err(error) => Err(error.into()),
    }
}
