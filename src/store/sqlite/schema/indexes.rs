//! Indexes that each purchase wrote, and that something cheaper replaced.

pub(super) const DROPPED: &str = "
    -- Reports find purchases by their caller and time, also those of all callers.
    DROP INDEX purchases_at;
";

pub(super) const DEDUPE_KEYS: &str = "
    DROP INDEX purchases_key;
    -- Finds purchases by the first half of their key. An entry may be outdated, so the purchase's key is compared.
    CREATE TABLE dedupe_keys (
        key    BLOB PRIMARY KEY CHECK (length(key) = 16),
        number INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    -- It has the keys of all purchases up to this number.
    ALTER TABLE identity ADD COLUMN keys_through INTEGER NOT NULL DEFAULT 0;
";
