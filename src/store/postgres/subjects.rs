//! Users of a login service, and their sessions.
//!
//! Invariant: every change locks the row of the members' version first, and increments it in the
//! same transaction.

use tokio_postgres::Row;

use super::column::{self, Read, nanos, signed};
use super::handle::PostgresStore;
use super::step::{Statement, statement};
use crate::contract::money::SpendLimit;
use crate::contract::selection::Selection;
use crate::store::subject::{MAX_SESSIONS_PER_SUBJECT, budget_text, read_budget};
use crate::store::{Digest, Role, Subject, SubjectLogin, SubjectTerms, Unavailable};

const DELETE_EXPIRED: &str = "DELETE FROM subject_logins WHERE until <= {now}";
const KEEP_SUBJECT: &str =
    "INSERT INTO subjects (issuer, name, role, budget, may_buy, display_name, signed_in)
    VALUES ($1, $2, $3, $4, $5, $6, {now})
    ON CONFLICT (issuer, name) DO UPDATE SET role = excluded.role, budget = excluded.budget,
        may_buy = excluded.may_buy, display_name = excluded.display_name,
        signed_in = excluded.signed_in";
const INSERT_SESSION: &str =
    "INSERT INTO subject_logins (id, issuer, subject, until) VALUES ($1, $2, $3, $4)";
const TRIM_SESSIONS: &str = "DELETE FROM subject_logins
    WHERE issuer = $1 AND subject = $2 AND token IS NULL AND number NOT IN (
        SELECT number FROM subject_logins WHERE issuer = $1 AND subject = $2 AND token IS NULL
        ORDER BY number DESC LIMIT $3)";
const DELETE_LOGIN: &str = "DELETE FROM subject_logins WHERE id = $1";
const LOGINS: &str = "SELECT id, subject_logins.issuer, subject, until, role, subjects.budget,
        may_buy, display_name
    FROM subject_logins
    JOIN subjects ON subjects.issuer = subject_logins.issuer AND subjects.name = subject
    WHERE until > {now} ORDER BY number";

impl PostgresStore {
    pub(in crate::store) async fn sign_in(&self, login: &SubjectLogin) -> Result<(), Unavailable> {
        let SubjectLogin { id, subject, expires_at } = login;
        let (issuer, name) = (subject.issuer.to_string(), subject.name.to_string());
        self.change_logins(vec![
            statement!(DELETE_EXPIRED),
            keep_subject(subject),
            statement!(
                INSERT_SESSION,
                id.to_vec(),
                issuer.clone(),
                name.clone(),
                nanos(*expires_at)
            ),
            statement!(TRIM_SESSIONS, issuer, name, signed(MAX_SESSIONS_PER_SUBJECT)),
        ])
        .await
    }

    pub(in crate::store) async fn sign_out(&self, id: Digest) -> Result<(), Unavailable> {
        self.change_logins(vec![statement!(DELETE_LOGIN, id.to_vec())]).await
    }

    pub(in crate::store) async fn subject_logins(&self) -> Result<Vec<SubjectLogin>, Unavailable> {
        self.query(&self.lanes().pulse, statement!(LOGINS), login).await
    }
}

fn keep_subject(Subject { issuer, name, terms }: &Subject) -> Statement {
    let SubjectTerms { role, own_budget, may_buy, display_name } = terms;
    statement!(
        KEEP_SUBJECT,
        issuer.to_string(),
        name.to_string(),
        role.name(),
        budget_text(*own_budget),
        may_buy.as_ref().map(Selection::to_string),
        display_name.as_ref().map(ToString::to_string),
    )
}

fn login(row: &Row) -> Read<SubjectLogin> {
    let terms = SubjectTerms {
        role: column::named(row, 4, &Role::ALL, Role::name)?,
        own_budget: budget(row, 5)?,
        may_buy: column::get::<Option<&str>>(row, 6)?.map(Selection::parse),
        display_name: column::get::<Option<&str>>(row, 7)?.map(Into::into),
    };
    let subject = Subject { issuer: column::text(row, 1)?, name: column::text(row, 2)?, terms };
    let (id, expires_at) = (column::digest(row, 0)?, column::moment(row, 3)?);
    Ok(SubjectLogin { id, subject, expires_at })
}

fn budget(row: &Row, at: usize) -> Read<SpendLimit> {
    let budget = read_budget(column::get(row, at)?);
    budget.ok_or_else(|| Unavailable("a budget in the ledger is unreadable".into()))
}
