//! Users of a login service, their sessions, and their tokens for programs.

pub(super) const TABLES: &str = "
    -- What the login service said about a user at the last sign-in.
    CREATE TABLE subjects (
        issuer       TEXT NOT NULL,
        name         TEXT NOT NULL,     -- `sub`
        role         TEXT NOT NULL CHECK (role = 'member' OR role = 'admin'),
        budget       TEXT NOT NULL,     -- such as `1.00/day 5.00/month`; empty: none
        may_buy      TEXT,              -- services and models; NULL is `access.may_buy`
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
        token     TEXT,                 -- the token's name
        prefix    TEXT,
        budget    TEXT,                 -- the token's own
        created   INTEGER,
        last_used INTEGER,
        CHECK ((token IS NULL) = (prefix IS NULL) AND (token IS NULL) = (budget IS NULL)
            AND (token IS NULL) = (created IS NULL))
    ) STRICT;
    CREATE UNIQUE INDEX subject_tokens ON subject_logins (issuer, subject, token)
        WHERE token IS NOT NULL;
";
