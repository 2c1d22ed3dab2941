//! The table of video jobs without an `IN` of more than two values.

pub(super) const TABLES: &str = "
    -- SQLite builds a temporary b-tree for each such IN, at each write.
    CREATE TABLE jobs_checked (
        number       INTEGER PRIMARY KEY,
        request_id   TEXT NOT NULL UNIQUE,
        owner        TEXT NOT NULL,
        key          BLOB CHECK (length(key) = 8),
        model        TEXT NOT NULL,
        price_micros INTEGER NOT NULL CHECK (price_micros >= 0),
        at           INTEGER NOT NULL,
        status_at    INTEGER,
        body         BLOB,
        state        TEXT NOT NULL DEFAULT 'open' CHECK (state = 'open' OR state = 'finished' OR state = 'failed'),
        purchase     BLOB CHECK (length(purchase) = 16),    -- purchases.id
        prompt       TEXT,                                  -- only with `jobs.keep_prompts`
        CHECK ((status_at IS NULL) = (body IS NULL)),
        CHECK (state = 'open' OR status_at IS NOT NULL)
    ) STRICT;
    INSERT INTO jobs_checked
        SELECT number, request_id, owner, key, model, price_micros, at, status_at, body, state, purchase, prompt
        FROM jobs ORDER BY number;
    DROP TABLE jobs;
    ALTER TABLE jobs_checked RENAME TO jobs;
    CREATE INDEX jobs_open ON jobs (number) WHERE state = 'open';
    CREATE INDEX jobs_owner ON jobs (owner, number);
    CREATE INDEX jobs_times ON jobs (model, status_at) WHERE state = 'finished';
    CREATE INDEX jobs_purchase ON jobs (purchase) WHERE purchase IS NOT NULL;
";
