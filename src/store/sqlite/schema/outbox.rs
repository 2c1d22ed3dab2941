//! The tables of alerts and of the events that webhooks are waiting for.

pub(super) const TABLES: &str = "
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

    -- What was reported and has not ended; period 0: until it is over.
    CREATE TABLE alerts (
        rule   TEXT NOT NULL,
        whose  TEXT NOT NULL,
        period INTEGER NOT NULL,
        at     INTEGER NOT NULL,
        PRIMARY KEY (rule, whose, period)
    ) STRICT, WITHOUT ROWID;
";
