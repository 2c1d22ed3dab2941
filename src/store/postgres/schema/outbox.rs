//! The tables of alerts and of the events that webhooks are waiting for.

pub(super) const TABLES: &str = "
    -- Which webhook wants which event; a webhook is the hash of its address.
    CREATE TABLE webhooks (
        event   text NOT NULL,
        webhook bytea NOT NULL CHECK (length(webhook) = 16),
        PRIMARY KEY (event, webhook)
    );
    -- One row for each event and webhook, until it is delivered or given up.
    CREATE TABLE outbox (
        number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id       text NOT NULL,
        webhook  bytea NOT NULL CHECK (length(webhook) = 16),
        event    text NOT NULL,
        at       bigint NOT NULL,
        data     text NOT NULL,             -- an object of JSON
        due      bigint NOT NULL,           -- the next attempt, or the end of a sender's lease
        attempts bigint NOT NULL DEFAULT 0,
        UNIQUE (id, webhook)
    );
    CREATE INDEX outbox_due ON outbox (webhook, due);
    -- What was reported and has not ended; period 0: until it is over.
    CREATE TABLE alerts (
        rule   text NOT NULL,
        whose  text NOT NULL,
        period bigint NOT NULL,
        at     bigint NOT NULL,
        PRIMARY KEY (rule, whose, period)
    );
";
