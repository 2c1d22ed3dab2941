//! What a ledger notes when it is copied to another store or restored, or when its clock jumps.

pub(super) const TABLES: &str = "
    -- The file that has the ledger now, once it was moved. Nothing is sold from here any more.
    ALTER TABLE store ADD COLUMN moved_to text, ADD COLUMN moved_at bigint,
        ADD CHECK ((moved_to IS NULL) = (moved_at IS NULL));
    -- The database's cluster and timeline. In another one, the ledger may lack purchases.
    ALTER TABLE store ADD COLUMN cluster text;
    -- Programs before these tables count no group's and no token's spending.
    UPDATE store SET floor = 2;
    -- The fingerprint of the secret that a server uses, if it needs one.
    ALTER TABLE instances ADD COLUMN secret bytea;
    -- The fingerprint of the budgets and limits that a server goes by.
    ALTER TABLE instances ADD COLUMN rules bytea;
    -- How far replies of slots were moved in all, because the database's clock jumped ahead.
    ALTER TABLE rate_limit ADD COLUMN clock_moved bigint NOT NULL DEFAULT 0;
    -- How many rows a copy into this database has written; empty once the copy is complete.
    CREATE TABLE imports (
        source     uuid NOT NULL,
        done_table text NOT NULL,
        last       bigint NOT NULL,
        PRIMARY KEY (source, done_table)
    );
";
