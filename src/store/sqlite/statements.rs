//! The statements of each purchase, which the writer keeps prepared.
//!
//! rusqlite's cache hashes a statement's text twice per use, and copies it.

use std::cell::RefCell;
use std::ptr;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Result, Row, Statement};

/// More than a purchase has.
const MAX_HELD: usize = 24;

pub(super) struct Statements<'a> {
    connection: &'a Connection,
    held: RefCell<[Option<Held<'a>>; MAX_HELD]>,
}

struct Held<'a> {
    sql: &'static str,
    statement: CachedStatement<'a>,
}

impl<'a> Statements<'a> {
    pub(super) fn new(connection: &'a Connection) -> Self {
        Self { connection, held: RefCell::new([const { None }; MAX_HELD]) }
    }

    /// Returns the connection, for statements that are rare.
    pub(super) fn connection(&self) -> &'a Connection {
        self.connection
    }

    /// Returns the number of rows that were changed.
    pub(super) fn run(&self, sql: &'static str, values: impl Params) -> Result<usize> {
        self.with(sql, |statement| statement.execute(values))
    }

    pub(super) fn first<T>(
        &self,
        sql: &'static str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.with(sql, |statement| statement.query_row(values, read).optional())
    }

    /// A statement is found by the address of its text, which is never freed.
    fn with<T>(
        &self,
        sql: &'static str,
        work: impl FnOnce(&mut Statement<'a>) -> Result<T>,
    ) -> Result<T> {
        for place in self.held.borrow_mut().iter_mut() {
            let held = match place {
                Some(held) => held,
                None => place.insert(Held { sql, statement: self.connection.prepare_cached(sql)? }),
            };
            if ptr::eq(held.sql, sql) {
                return work(&mut held.statement);
            }
        }
        let mut statement = self.connection.prepare_cached(sql)?;
        work(&mut statement)
    }
}
