//! Groups, extras, requests for more budget, and the audit log.

pub(super) const TABLES: &str = "
    -- Whose counters a purchase is in, besides its caller's: they stay its own if the caller moves.
    ALTER TABLE purchases ADD COLUMN group_name TEXT;
    ALTER TABLE purchases ADD COLUMN token TEXT;        -- only if the token has a budget

    ALTER TABLE members ADD COLUMN week_micros INTEGER CHECK (week_micros >= 0);
    ALTER TABLE members ADD COLUMN ever_micros INTEGER CHECK (ever_micros >= 0);
    ALTER TABLE members ADD COLUMN group_name TEXT;

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
";
