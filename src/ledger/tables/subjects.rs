//! Users of a login service, their sessions, and their tokens for programs.
//!
//! Invariant: every change increments the members' version in the same transaction, and waits for
//! the disk. A token's last use is no change.

use std::sync::Arc;
use std::time::Duration;

use super::column::{exists, insert, read, record, select, upsert};
use super::ledger::Ledger;
use super::members::bump_version;
use crate::gateway::contract::selection::Selection;
use crate::gateway::contract::terms::budget_text;
use crate::ledger::audit_log::{ADD_TOKEN, REVOKE_SUBJECT, REVOKE_TOKEN, describe_token};
use crate::ledger::engine::{Engine, Result, Row, Sql, params};
use crate::ledger::subject::{MAX_SESSIONS_PER_SUBJECT, MAX_TOKENS_PER_SUBJECT, NO_NAME};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, Caller, Digest, Store, Subject, SubjectLogin, SubjectTerms, SubjectToken, TokenRefusal,
    Unavailable,
};

record!(SubjectToken {
    id: "id",
    name: "token",
    prefix: "prefix",
    budget: "budget",
    created_at: "created",
    expires_at: "until",
    last_used: "last_used",
});

const LOGINS: &str = "SELECT id, until, subject_logins.budget, subjects.issuer, name, role,
        subjects.budget, group_name, may_buy, display_name
    FROM subject_logins
    JOIN subjects ON subjects.issuer = subject_logins.issuer AND subjects.name = subject
    WHERE until > ? ORDER BY number";
const TRIM_SESSIONS: &str = "DELETE FROM subject_logins
    WHERE issuer = ?1 AND subject = ?2 AND token IS NULL AND number NOT IN (
        SELECT number FROM subject_logins WHERE issuer = ?1 AND subject = ?2 AND token IS NULL
        ORDER BY number DESC LIMIT ?3)";
/// If no issuer is recorded, the users say whose they are.
const OTHER_ISSUER: &str = "SELECT issuer FROM subjects WHERE issuer <> ?1
    AND (name = ?2 OR NOT EXISTS (SELECT 1 FROM subjects WHERE name = ?2)) LIMIT 1";

impl Store {
    /// Adds a session, and records what the login service said. Deletes what has expired, and
    /// the user's oldest session beyond a hundred.
    pub async fn sign_in(&self, login: &SubjectLogin) -> Result<(), Unavailable> {
        let SubjectLogin { id, subject, expires_at, .. } = login.clone();
        let keep = move |ledger: &Ledger| {
            let (db, Subject { issuer, name, .. }) = (&*ledger.db, &subject);
            ledger.delete_expired()?;
            ledger.keep_subject(&subject)?;
            insert!(
                db,
                subject_logins { id: id, issuer: issuer, subject: name, until: expires_at }
            )?;
            db.run(TRIM_SESSIONS, params![issuer, name, MAX_SESSIONS_PER_SUBJECT])?;
            bump_version(db)
        };
        self.run("sign_in", Durability::Synced, keep).await
    }

    pub async fn sign_out(&self, id: Digest) -> Result<(), Unavailable> {
        let end = move |ledger: &Ledger| {
            ledger.db.run("DELETE FROM subject_logins WHERE id = ?", [id])?;
            bump_version(&*ledger.db)
        };
        self.run("sign_out", Durability::Synced, end).await
    }

    /// Returns the issuer of the ledger's users, if it is another one.
    pub async fn other_issuer(&self, issuer: Arc<str>) -> Result<Option<Arc<str>>, Unavailable> {
        let find = move |ledger: &Ledger| find_other_issuer(&*ledger.db, &issuer);
        self.execute("other_issuer", Durability::Buffered, find).await
    }

    /// Records the issuer of the ledger's users. If it was another one, returns that, and only
    /// gives the users to this one with `is_new`.
    pub async fn bind_issuer(
        &self,
        issuer: Arc<str>,
        is_new: bool,
    ) -> Result<Option<Arc<str>>, Unavailable> {
        self.execute("bind_issuer", Durability::Synced, move |ledger| {
            let db = &*ledger.db;
            let other = find_other_issuer(db, &issuer)?;
            if other.is_some() && !is_new {
                return Ok(other);
            }
            db.run("DELETE FROM subjects WHERE name = ?", [NO_NAME])?;
            let (name, terms) = (NO_NAME.into(), SubjectTerms::default());
            ledger.keep_subject(&Subject { issuer: Arc::clone(&issuer), name, terms })?;
            Ok(other)
        })
        .await
    }

    /// Returns the sessions and tokens that have not expired.
    pub async fn subject_logins(&self) -> Result<Vec<SubjectLogin>, Unavailable> {
        let find = |ledger: &Ledger| ledger.db.all(LOGINS, [ledger.now()], login);
        self.execute("subject_logins", Durability::Buffered, find).await
    }

    /// Adds a token of the user whose session this is.
    pub async fn add_token(
        &self,
        session: Digest,
        token: &SubjectToken,
    ) -> Result<Result<(), TokenRefusal>, Unavailable> {
        let token = token.clone();
        let add = move |ledger: &Ledger| {
            ledger.delete_expired()?;
            let Some((issuer, subject)) = ledger.session_user(session)? else {
                return Ok(Err(TokenRefusal::SessionEnded));
            };
            let SubjectToken { id, name, prefix, budget, created_at, expires_at, .. } = &token;
            let count = "SELECT count(*), count(CASE WHEN token = ?3 THEN 1 END)
                FROM subject_logins WHERE issuer = ?1 AND subject = ?2 AND token IS NOT NULL";
            let (count, is_taken): (usize, bool) =
                ledger.db.one(count, params![issuer, subject, name], read)?;
            if is_taken {
                return Ok(Err(TokenRefusal::NameTaken));
            }
            if count >= MAX_TOKENS_PER_SUBJECT {
                return Ok(Err(TokenRefusal::TooMany));
            }
            insert!(
                ledger.db,
                subject_logins {
                    id: id,
                    issuer: issuer,
                    subject: subject,
                    until: expires_at,
                    token: name,
                    prefix: prefix,
                    budget: budget_text(*budget),
                    created: created_at,
                }
            )?;
            let user = Caller::Subject(subject);
            let (act, new) = ((ADD_TOKEN, &*user.name()), Some(describe_token(&token)));
            ledger.audit(&Actor::from(&user), act, None, new)?;
            bump_version(&*ledger.db).map(Ok)
        };
        self.run("add_token", Durability::Synced, add).await
    }

    /// Returns the tokens of the user whose session this is, the oldest first.
    pub async fn tokens(&self, session: Digest) -> Result<Vec<SubjectToken>, Unavailable> {
        let tokens = select::<SubjectToken>(
            "FROM subject_logins WHERE issuer = ? AND subject = ? AND token IS NOT NULL
                AND until > ? ORDER BY number",
        );
        let find = move |ledger: &Ledger| match ledger.session_user(session)? {
            Some((issuer, subject)) => {
                ledger.db.all(&tokens, params![issuer, subject, ledger.now()], read)
            }
            None => Ok(Vec::new()),
        };
        self.query("tokens", find).await
    }

    /// Ends a token of the user whose session this is. Returns whether there was one.
    pub async fn remove_token(&self, session: Digest, name: Arc<str>) -> Result<bool, Unavailable> {
        let remove = move |ledger: &Ledger| {
            let Some((issuer, subject)) = ledger.session_user(session)? else { return Ok(false) };
            let remove = "DELETE FROM subject_logins
                WHERE issuer = ? AND subject = ? AND token = ? AND until > ?
                RETURNING token || ' (' || prefix || ')'";
            let values = params![issuer, subject, name, ledger.now()];
            let Some(token) = ledger.db.first(remove, values, read)? else { return Ok(false) };
            let user = Caller::Subject(subject);
            ledger.audit(&Actor::from(&user), (REVOKE_TOKEN, &user.name()), Some(token), None)?;
            bump_version(&*ledger.db)?;
            Ok(true)
        };
        self.run("remove_token", Durability::Synced, remove).await
    }

    /// Records when tokens were last used. This does not count as a change.
    pub async fn mark_tokens_used(&self, used: Vec<(Digest, Duration)>) -> Result<(), Unavailable> {
        let sql = "UPDATE subject_logins SET last_used = ?2
            WHERE id = ?1 AND token IS NOT NULL AND coalesce(last_used, 0) < ?2";
        let mark = move |ledger: &Ledger| {
            used.iter().try_for_each(|(id, at)| ledger.db.run(sql, params![id, at]).map(drop))
        };
        self.run("mark_tokens_used", Durability::Buffered, mark).await
    }

    /// Ends all sessions and tokens of a user. Returns whether the user has ever signed in.
    pub async fn revoke_subject(
        &self,
        by: &Actor,
        issuer: Arc<str>,
        subject: Arc<str>,
    ) -> Result<bool, Unavailable> {
        let by = by.clone();
        let revoke = move |ledger: &Ledger| {
            let (db, user) = (&*ledger.db, params![issuer, subject]);
            if !exists(db, "SELECT 1 FROM subjects WHERE issuer = ? AND name = ?", user)? {
                return Ok(false);
            }
            db.run("DELETE FROM subject_logins WHERE issuer = ? AND subject = ?", user)?;
            let caller = Caller::Subject(Arc::clone(&subject)).name();
            ledger.audit(&by, (REVOKE_SUBJECT, &caller), None, None)?;
            bump_version(db)?;
            Ok(true)
        };
        self.run("revoke_subject", Durability::Synced, revoke).await
    }
}

impl Ledger {
    fn delete_expired(&self) -> Result<()> {
        self.db.run("DELETE FROM subject_logins WHERE until <= ?", [self.now()]).map(drop)
    }

    /// Returns the issuer and the name of the user with this session.
    fn session_user(&self, session: Digest) -> Result<Option<(Arc<str>, Arc<str>)>> {
        let find = "SELECT issuer, subject FROM subject_logins
            WHERE id = ? AND token IS NULL AND until > ?";
        self.db.first(find, params![session, self.now()], read)
    }

    fn keep_subject(&self, Subject { issuer, name, terms }: &Subject) -> Result<usize> {
        upsert!(self.db, subjects (issuer: issuer, name: name) {
            role: terms.role,
            budget: budget_text(terms.own_budget),
            group_name: terms.group,
            may_buy: terms.may_buy.as_ref().map(Selection::to_string),
            display_name: terms.display_name,
            signed_in: self.now(),
        })
    }
}

/// Reads a row of [`LOGINS`].
fn login(row: &Row<'_>) -> Result<SubjectLogin> {
    let terms = SubjectTerms {
        role: row.get(5)?,
        own_budget: row.get(6)?,
        group: row.get(7)?,
        may_buy: row.get(8)?,
        display_name: row.get(9)?,
    };
    Ok(SubjectLogin {
        id: row.get(0)?,
        expires_at: row.get(1)?,
        token_budget: row.get(2)?,
        subject: Subject { issuer: row.get(3)?, name: row.get(4)?, terms },
    })
}

pub(in crate::ledger) fn find_other_issuer(
    db: &dyn Engine,
    issuer: &str,
) -> Result<Option<Arc<str>>> {
    db.first(OTHER_ISSUER, params![issuer, NO_NAME], read)
}
