//! The tables of a ledger that is copied to another store, or restored.

pub(super) const TABLES: &str = "
    -- The file that has the ledger now, once it was moved. Nothing is sold from here any more.
    ALTER TABLE store ADD COLUMN moved_to text, ADD COLUMN moved_at bigint,
        ADD CHECK ((moved_to IS NULL) = (moved_at IS NULL));
    -- The database's cluster and timeline. In another one, the ledger may lack purchases.
    ALTER TABLE store ADD COLUMN cluster text;
    -- How many rows a copy into this database has written; empty once the copy is complete.
    CREATE TABLE imports (
        source     uuid NOT NULL,
        done_table text NOT NULL,
        last       bigint NOT NULL,
        PRIMARY KEY (source, done_table)
    );
";
