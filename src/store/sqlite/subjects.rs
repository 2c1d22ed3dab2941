//! Users of a login service, and their sessions.
//!
//! Invariant: every change increments the members' version in the same transaction, and waits for
//! the disk.

use std::sync::Arc;

use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};

use super::Result;
use super::column::{self, Sql, nanos};
use super::command::Durability;
use super::handle::SqliteStore;
use super::ledger::Ledger;
use super::members::bump_version;
use crate::contract::money::SpendLimit;
use crate::contract::selection::Selection;
use crate::store::subject::{MAX_SESSIONS_PER_SUBJECT, budget_text, read_budget};
use crate::store::{Digest, Role, Subject, SubjectLogin, SubjectTerms, Unavailable};

const KEEP_SUBJECT: &str = "INSERT OR REPLACE INTO subjects
    (issuer, name, role, budget, may_buy, display_name, signed_in) VALUES (?, ?, ?, ?, ?, ?, ?)";
const TRIM_SESSIONS: &str = "DELETE FROM subject_logins
    WHERE issuer = ?1 AND subject = ?2 AND token IS NULL AND number NOT IN (
        SELECT number FROM subject_logins WHERE issuer = ?1 AND subject = ?2 AND token IS NULL
        ORDER BY number DESC LIMIT ?3)";
const LOGINS: &str = "SELECT id, subject_logins.issuer, subject, until, role, subjects.budget,
        may_buy, display_name
    FROM subject_logins
    JOIN subjects ON subjects.issuer = subject_logins.issuer AND subjects.name = subject
    WHERE until > ? ORDER BY number";

impl SqliteStore {
    pub(in crate::store) async fn sign_in(&self, login: &SubjectLogin) -> Result<(), Unavailable> {
        let login = login.clone();
        let keep = move |ledger: &Ledger| {
            let (connection, now) = (&ledger.connection, nanos(ledger.now()));
            let SubjectLogin { id, subject, expires_at } = &login;
            let Subject { issuer, name, .. } = subject;
            connection.run("DELETE FROM subject_logins WHERE until <= ?", [now])?;
            keep_subject(connection, subject, now)?;
            connection.run(
                "INSERT INTO subject_logins (id, issuer, subject, until) VALUES (?, ?, ?, ?)",
                params![id, issuer, name, nanos(*expires_at)],
            )?;
            let most = column::signed(MAX_SESSIONS_PER_SUBJECT);
            connection.run(TRIM_SESSIONS, params![issuer, name, most])?;
            bump_version(connection)
        };
        self.run(Durability::Synced, keep).await
    }

    pub(in crate::store) async fn sign_out(&self, id: Digest) -> Result<(), Unavailable> {
        let end = move |ledger: &Ledger| {
            ledger.connection.run("DELETE FROM subject_logins WHERE id = ?", [id])?;
            bump_version(&ledger.connection)
        };
        self.run(Durability::Synced, end).await
    }

    pub(in crate::store) async fn subject_logins(&self) -> Result<Vec<SubjectLogin>, Unavailable> {
        self.run_while_starting(Durability::Buffered, |ledger| {
            Ok(ledger.connection.all(LOGINS, [nanos(ledger.now())], login)?)
        })
        .await
    }
}

fn keep_subject(connection: &Connection, subject: &Subject, now: i64) -> Result<()> {
    let Subject { issuer, name, terms } = subject;
    let SubjectTerms { role, own_budget, may_buy, display_name } = terms;
    let may_buy = may_buy.as_ref().map(Selection::to_string);
    let (role, budget) = (role.name(), budget_text(*own_budget));
    let values = params![issuer, name, role, budget, may_buy, display_name, now];
    connection.run(KEEP_SUBJECT, values)?;
    Ok(())
}

fn login(row: &Row<'_>) -> rusqlite::Result<SubjectLogin> {
    let terms = SubjectTerms {
        role: column::named(row, 4, &Role::ALL, Role::name)?,
        own_budget: budget(row, 5)?,
        may_buy: row.get::<_, Option<String>>(6)?.map(|names| Selection::parse(&names)),
        display_name: row.get(7)?,
    };
    let subject = Subject { issuer: row.get(1)?, name: row.get(2)?, terms };
    Ok(SubjectLogin { id: row.get(0)?, subject, expires_at: column::moment(row, 3)? })
}

fn budget(row: &Row<'_>, at: usize) -> rusqlite::Result<SpendLimit> {
    let text: Arc<str> = row.get(at)?;
    read_budget(&text).ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(at, Type::Text, "not a budget".into())
    })
}
