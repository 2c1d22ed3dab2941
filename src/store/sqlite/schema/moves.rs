//! The tables of a ledger that is copied to another store.

pub(super) const TABLES: &str = "
    -- The store that has the ledger now: one row, once it was moved. This file sells no more.
    CREATE TABLE moved (
        number      INTEGER PRIMARY KEY CHECK (number = 1),
        destination TEXT NOT NULL,
        at          INTEGER NOT NULL
    ) STRICT;
    -- How many rows a copy into this file has written; empty once the copy is complete.
    CREATE TABLE imports (
        source     BLOB NOT NULL CHECK (length(source) = 16),
        done_table TEXT NOT NULL,
        last       INTEGER NOT NULL,
        PRIMARY KEY (source, done_table)
    ) STRICT, WITHOUT ROWID;
";
