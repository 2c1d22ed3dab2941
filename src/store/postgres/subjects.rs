//! Users of a login service, their sessions, and their tokens for programs.
//!
//! Invariant: every change locks the row of the members' version first, and increments it in the
//! same transaction. A token's last use is no change.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::PostgresTarget;
use super::clock_jumps::first_row;
use super::column::{self, Read, nanos, signed};
use super::connect::connect;
use super::handle::PostgresStore;
use super::step::{Need, Statement, Step, statement};
use crate::contract::money::SpendLimit;
use crate::contract::selection::Selection;
use crate::store::audit_log;
use crate::store::subject::{
    MAX_SESSIONS_PER_SUBJECT, MAX_TOKENS_PER_SUBJECT, NO_NAME, budget_text, read_budget,
};
use crate::store::{
    Actor, Caller, Digest, Reason, Role, Subject, SubjectLogin, SubjectTerms, SubjectToken,
    TokenRefusal, Unavailable,
};

const DELETE_EXPIRED: &str = "DELETE FROM subject_logins WHERE until <= {now}";
const KEEP_SUBJECT: &str =
    "INSERT INTO subjects (issuer, name, role, budget, group_name, may_buy, display_name,
        signed_in)
    VALUES ($1, $2, $3, $4, $5, $6, $7, {now})
    ON CONFLICT (issuer, name) DO UPDATE SET role = excluded.role, budget = excluded.budget,
        group_name = excluded.group_name, may_buy = excluded.may_buy, display_name = excluded.display_name,
        signed_in = excluded.signed_in";
/// If no issuer is recorded, the users say whose they are.
macro_rules! other_issuer {
    () => {
        "SELECT issuer FROM subjects WHERE issuer <> $1
    AND (name = $2 OR NOT EXISTS (SELECT 1 FROM subjects WHERE name = $2)) LIMIT 1"
    };
}

const OTHER_ISSUER: &str = other_issuer!();
/// Records an issuer, unless the users are another one's. With `$3`, that one is forgotten.
const BIND_ISSUER: &str = concat!(
    "WITH other AS MATERIALIZED (",
    other_issuer!(),
    "), forgotten AS (
  DELETE FROM subjects WHERE issuer <> $1 AND name = $2 AND $3::boolean
), recorded AS (
  INSERT INTO subjects (issuer, name, role, budget, signed_in)
  SELECT $1::text, $2::text, $4::text, '', {now} WHERE $3::boolean OR NOT EXISTS (SELECT 1 FROM other)
  ON CONFLICT (issuer, name) DO NOTHING
)
SELECT issuer FROM other"
);
const INSERT_SESSION: &str =
    "INSERT INTO subject_logins (id, issuer, subject, until) VALUES ($1, $2, $3, $4)";
const TRIM_SESSIONS: &str = "DELETE FROM subject_logins
    WHERE issuer = $1 AND subject = $2 AND token IS NULL AND number NOT IN (
        SELECT number FROM subject_logins WHERE issuer = $1 AND subject = $2 AND token IS NULL
        ORDER BY number DESC LIMIT $3)";
const DELETE_LOGIN: &str = "DELETE FROM subject_logins WHERE id = $1";
const LOGINS: &str = "SELECT id, subject_logins.issuer, subject, until, role, subjects.budget,
        may_buy, display_name, subject_logins.budget, group_name
    FROM subject_logins
    JOIN subjects ON subjects.issuer = subject_logins.issuer AND subjects.name = subject
    WHERE until > {now} ORDER BY number";

/// Selects the tokens of the user with the session `$1`.
macro_rules! own_tokens {
    ($start:literal, $end:literal) => {
        concat!(
            $start,
            " FROM subject_logins AS own
            JOIN subject_logins AS session ON session.issuer = own.issuer
                AND session.subject = own.subject AND session.token IS NULL
            WHERE session.id = $1 AND session.until > {now} AND own.token IS NOT NULL
                AND own.until > {now} ",
            $end
        )
    };
}

/// Returns why a token named `$2` cannot be added.
const JUDGE_TOKEN: &str = concat!(
    "SELECT CASE
      WHEN NOT EXISTS (SELECT 1 FROM subject_logins
        WHERE id = $1 AND token IS NULL AND until > {now}) THEN 'ended'
      WHEN coalesce(is_taken, false) THEN 'taken'
      WHEN count >= $3::bigint THEN 'many'
      ELSE '' END, set_config('tollgate.token', CASE WHEN NOT coalesce(is_taken, false)
        AND count < $3::bigint THEN 'add' ELSE '' END, true)
    FROM (",
    own_tokens!("SELECT count(*), bool_or(own.token = $2::text) AS is_taken", ""),
    ") AS known"
);
const ADD_TOKEN: &str = "INSERT INTO subject_logins
    (id, issuer, subject, until, token, prefix, budget, created)
    SELECT $2::bytea, issuer, subject, $3::bigint, $4::text, $5::text, $6::text, $7::bigint
    FROM subject_logins WHERE id = $1 AND token IS NULL AND until > {now}
        AND current_setting('tollgate.token') = 'add'";
const LOG_ADDED: &str = "INSERT INTO audit (at, by, act, of, new)
    SELECT {now}, $2::text || subject, $3::text, $2::text || subject, $4::text
    FROM subject_logins WHERE id = $1 AND current_setting('tollgate.token') = 'add'";
const LOG_REMOVED: &str = concat!(
    "INSERT INTO audit (at, by, act, of, old) ",
    own_tokens!(
        "SELECT {now}, $3::text || own.subject, $4::text, $3::text || own.subject,
            own.token || ' (' || own.prefix || ')'",
        "AND own.token = $2"
    )
);
const TOKENS: &str = own_tokens!(
    "SELECT own.id, own.token, own.prefix, own.budget, own.created, own.until, own.last_used",
    "ORDER BY own.number"
);
const REMOVE_TOKEN: &str = concat!(
    "DELETE FROM subject_logins WHERE number IN (",
    own_tokens!("SELECT own.number", "AND own.token = $2"),
    ") RETURNING 1"
);
const TOKENS_USED: &str =
    "UPDATE subject_logins SET last_used = greatest(used.at, coalesce(last_used, 0))
    FROM unnest($1::bytea[], $2::bigint[]) AS used(id, at)
    WHERE subject_logins.id = used.id AND token IS NOT NULL";
const IS_KNOWN: &str = "SELECT 1 FROM subjects WHERE issuer = $1 AND name = $2";
const LOG_REVOKED: &str = "INSERT INTO audit (at, by, act, of)
    SELECT {now}, $1::text, $2::text, $3::text FROM subjects WHERE issuer = $4 AND name = $5";
const REVOKE_SUBJECT: &str = "DELETE FROM subject_logins WHERE issuer = $1 AND subject = $2";

impl PostgresStore {
    pub(in crate::store) async fn sign_in(&self, login: &SubjectLogin) -> Result<(), Unavailable> {
        let SubjectLogin { id, subject, expires_at, .. } = login;
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
        .map(drop)
    }

    pub(in crate::store) async fn sign_out(&self, id: Digest) -> Result<(), Unavailable> {
        self.change_logins(vec![statement!(DELETE_LOGIN, id.to_vec())]).await.map(drop)
    }

    pub(in crate::store) async fn other_issuer(
        &self,
        issuer: Arc<str>,
    ) -> Result<Option<Arc<str>>, Unavailable> {
        let find = statement!(OTHER_ISSUER, issuer.to_string(), NO_NAME);
        self.query_one(&self.lanes().reads, find, |row| column::text(row, 0)).await
    }

    pub(in crate::store) async fn bind_issuer(
        &self,
        issuer: Arc<str>,
        is_new: bool,
    ) -> Result<Option<Arc<str>>, Unavailable> {
        let role = Role::default().name();
        let bind = statement!(BIND_ISSUER, issuer.to_string(), NO_NAME, is_new, role);
        let rows = self.change_logins(vec![bind]).await?;
        first_row(&rows, 0).map(|row| column::text(row, 0)).transpose()
    }

    pub(in crate::store) async fn subject_logins(&self) -> Result<Vec<SubjectLogin>, Unavailable> {
        self.query(&self.lanes().pulse, statement!(LOGINS), login).await
    }

    pub(in crate::store) async fn add_token(
        &self,
        session: Digest,
        token: &SubjectToken,
    ) -> Result<Result<(), TokenRefusal>, Unavailable> {
        let SubjectToken { id, name, prefix, budget, created_at, expires_at, .. } = token;
        let most = signed(MAX_TOKENS_PER_SUBJECT);
        let rows = self
            .change_logins(vec![
                statement!(DELETE_EXPIRED),
                statement!(JUDGE_TOKEN, session.to_vec(), name.to_string(), most),
                statement!(
                    ADD_TOKEN,
                    session.to_vec(),
                    id.to_vec(),
                    nanos(*expires_at),
                    name.to_string(),
                    prefix.to_string(),
                    budget_text(*budget),
                    nanos(*created_at)
                ),
                statement!(
                    LOG_ADDED,
                    session.to_vec(),
                    audit_prefix(),
                    audit_log::ADD_TOKEN,
                    audit_log::describe_token(token)
                ),
            ])
            .await?;
        let row = rows.get(1).and_then(|rows| rows.first());
        let row = row.ok_or_else(|| Unavailable("the database sent no verdict".into()))?;
        Ok(match column::get::<&str>(row, 0)? {
            "" => Ok(()),
            "taken" => Err(TokenRefusal::NameTaken),
            "many" => Err(TokenRefusal::TooMany),
            _ => Err(TokenRefusal::SessionEnded),
        })
    }

    pub(in crate::store) async fn tokens(
        &self,
        session: Digest,
    ) -> Result<Vec<SubjectToken>, Unavailable> {
        self.query(&self.lanes().pulse, statement!(TOKENS, session.to_vec()), token).await
    }

    pub(in crate::store) async fn remove_token(
        &self,
        session: Digest,
        name: Arc<str>,
    ) -> Result<bool, Unavailable> {
        let remove = statement!(REMOVE_TOKEN, session.to_vec(), name.to_string());
        let (act, name) = (audit_log::REVOKE_TOKEN, name.to_string());
        let log = statement!(LOG_REMOVED, session.to_vec(), name, audit_prefix(), act);
        let rows = self.change_logins(vec![log, remove]).await?;
        Ok(rows.get(1).is_some_and(|rows| !rows.is_empty()))
    }

    pub(in crate::store) async fn mark_tokens_used(
        &self,
        used: Vec<(Digest, Duration)>,
    ) -> Result<(), Unavailable> {
        let (ids, times): (Vec<_>, Vec<_>) =
            used.into_iter().map(|(id, at)| (id.to_vec(), nanos(at))).unzip();
        let step = Step::new(Need::Quiet, vec![statement!(TOKENS_USED, ids, times)]);
        self.run(&self.lanes().marks, step).await.map(drop)
    }

    pub(in crate::store) async fn revoke_subject(
        &self,
        by: &Actor,
        issuer: Arc<str>,
        subject: Arc<str>,
    ) -> Result<bool, Unavailable> {
        let (of, by) = (Caller::Subject(Arc::clone(&subject)).name(), by.name().to_owned());
        let (issuer, subject) = (issuer.to_string(), subject.to_string());
        let known = statement!(IS_KNOWN, issuer.clone(), subject.clone());
        let act = audit_log::REVOKE_SUBJECT;
        let log = statement!(LOG_REVOKED, by, act, of.to_string(), issuer.clone(), subject.clone());
        let revoke = statement!(REVOKE_SUBJECT, issuer, subject);
        let rows = self.change_logins(vec![known, log, revoke]).await?;
        Ok(rows.first().is_some_and(|rows| !rows.is_empty()))
    }
}

/// Returns what the name of a caller begins with, if a login service vouches for it.
fn audit_prefix() -> String {
    Caller::Subject("".into()).to_string()
}

/// Returns the issuer of a ledger's users, if it is another one. A ledger without tables has none.
pub async fn other_issuer(
    target: &PostgresTarget,
    issuer: &str,
) -> Result<Option<Arc<str>>, Reason> {
    let connection = connect(target).await?;
    let rows = match connection.client.query(OTHER_ISSUER, &[&issuer, &NO_NAME]).await {
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Vec::new(),
        rows => rows?,
    };
    connection.close().await;
    let issuer = rows.first().map(|row| row.try_get::<_, &str>(0)).transpose()?;
    Ok(issuer.map(Arc::from))
}

fn keep_subject(Subject { issuer, name, terms }: &Subject) -> Statement {
    let SubjectTerms { role, own_budget, group, may_buy, display_name } = terms;
    statement!(
        KEEP_SUBJECT,
        issuer.to_string(),
        name.to_string(),
        role.name(),
        budget_text(*own_budget),
        group.as_ref().map(ToString::to_string),
        may_buy.as_ref().map(Selection::to_string),
        display_name.as_ref().map(ToString::to_string),
    )
}

fn login(row: &Row) -> Read<SubjectLogin> {
    let terms = SubjectTerms {
        role: column::named(row, 4, &Role::ALL, Role::name)?,
        own_budget: budget(row, 5)?,
        group: column::get::<Option<&str>>(row, 9)?.map(Into::into),
        may_buy: column::get::<Option<&str>>(row, 6)?.map(Selection::parse),
        display_name: column::get::<Option<&str>>(row, 7)?.map(Into::into),
    };
    let subject = Subject { issuer: column::text(row, 1)?, name: column::text(row, 2)?, terms };
    let (id, expires_at) = (column::digest(row, 0)?, column::moment(row, 3)?);
    let is_token = column::get::<Option<&str>>(row, 8)?.is_some();
    let token_budget = is_token.then(|| budget(row, 8)).transpose()?;
    Ok(SubjectLogin { id, subject, expires_at, token_budget })
}

fn token(row: &Row) -> Read<SubjectToken> {
    Ok(SubjectToken {
        id: column::digest(row, 0)?,
        name: column::text(row, 1)?,
        prefix: column::text(row, 2)?,
        budget: budget(row, 3)?,
        created_at: column::moment(row, 4)?,
        expires_at: column::moment(row, 5)?,
        last_used: column::moment_or_none(row, 6)?,
    })
}

fn budget(row: &Row, at: usize) -> Read<SpendLimit> {
    let budget = read_budget(column::get(row, at)?);
    budget.ok_or_else(|| Unavailable("a budget in the ledger is unreadable".into()))
}
