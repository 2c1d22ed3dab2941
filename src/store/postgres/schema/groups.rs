//! Groups, extras, requests for more budget, and the audit log.

pub(super) const TABLES: &str = "
    -- Whose counters a purchase is in, besides its caller's: they stay its own if the caller moves.
    ALTER TABLE purchases ADD COLUMN group_name text;
    ALTER TABLE purchases ADD COLUMN token text;        -- only if the token has a budget

    ALTER TABLE members ADD COLUMN week_micros bigint CHECK (week_micros >= 0);
    ALTER TABLE members ADD COLUMN ever_micros bigint CHECK (ever_micros >= 0);
    ALTER TABLE members ADD COLUMN group_name text;

    CREATE TABLE groups (
        name         text PRIMARY KEY COLLATE \"C\",
        day_micros   bigint CHECK (day_micros >= 0),
        week_micros  bigint CHECK (week_micros >= 0),
        month_micros bigint CHECK (month_micros >= 0),
        ever_micros  bigint CHECK (ever_micros >= 0)
    );

    -- Each raises every limit of a caller until it ends.
    CREATE TABLE extras (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        caller text NOT NULL,
        micros bigint NOT NULL CHECK (micros >= 0),
        until  bigint NOT NULL,
        at     bigint NOT NULL
    );
    CREATE INDEX extras_caller ON extras (caller, until);

    -- Callers that ask for more budget; each has one open request at most.
    CREATE TABLE budget_requests (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        caller text NOT NULL UNIQUE,
        micros bigint NOT NULL CHECK (micros >= 0),
        reason text NOT NULL,
        at     bigint NOT NULL
    );

    -- Each act of an admin or of the command line, written in the act's transaction.
    CREATE TABLE audit (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at     bigint NOT NULL,
        by     text NOT NULL,
        act    text NOT NULL,
        of     text NOT NULL,
        old    text,
        new    text
    );
";
