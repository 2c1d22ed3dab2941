//! Indexes that each purchase wrote, and that something cheaper replaced.

pub(super) const DROPPED: &str = "
    -- Reports find purchases by their caller and time, also those of all callers.
    DROP INDEX purchases_at;
";

pub(super) const DEDUPE_KEYS: &str = "
    DROP INDEX purchases_key;
    DROP INDEX purchases_fingerprint;
    -- Finds purchases by the first half of their key or fingerprint. The purchase may have given it up.
    CREATE TABLE dedupe_keys (
        key    BLOB NOT NULL CHECK (length(key) = 16),
        number INTEGER NOT NULL,
        PRIMARY KEY (key, number)
    ) STRICT, WITHOUT ROWID;
    -- All entries that it must have, except those that wait in memory.
    CREATE VIEW purchase_keys AS
        SELECT substr(coalesce(key, fingerprint), 1, 16) AS key, number FROM purchases
        WHERE coalesce(key, fingerprint) IS NOT NULL;
    -- `dedupe_keys` has those of all purchases up to this number.
    ALTER TABLE identity ADD COLUMN keys_through INTEGER NOT NULL DEFAULT 0;
";
