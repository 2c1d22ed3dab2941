//! Users of a login service, their sessions, and their tokens for programs.

pub(super) const TABLES: &str = "
    -- What the login service said about a user at the last sign-in.
    CREATE TABLE subjects (
        issuer       text NOT NULL,
        name         text NOT NULL,     -- `sub`
        role         text NOT NULL CHECK (role IN ('member', 'admin')),
        budget       text NOT NULL,     -- such as `1.00/day 5.00/month`; empty: none
        may_buy      text,              -- services and models; NULL is `access.may_buy`
        display_name text,
        signed_in    bigint NOT NULL,
        PRIMARY KEY (issuer, name)
    );

    -- Sessions, and tokens for programs. A change goes up `members_version`.
    CREATE TABLE subject_logins (
        number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id        bytea NOT NULL UNIQUE CHECK (length(id) = 32),    -- a keyed hash
        issuer    text NOT NULL,
        subject   text NOT NULL,
        until     bigint NOT NULL,
        -- A session has none of these.
        token     text,                 -- the token's name
        prefix    text,
        budget    text,                 -- the token's own
        created   bigint,
        last_used bigint,
        CHECK ((token IS NULL) = (prefix IS NULL) AND (token IS NULL) = (budget IS NULL)
            AND (token IS NULL) = (created IS NULL))
    );
    CREATE UNIQUE INDEX subject_tokens ON subject_logins (issuer, subject, token)
        WHERE token IS NOT NULL;
";
