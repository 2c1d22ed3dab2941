//! Users of a login service, their sessions, and their tokens for programs.
//!
//! Invariant: every change increments the members' version in the same transaction, and waits for
//! the disk. A token's last use is no change.

use std::sync::Arc;
use std::time::Duration;

use super::audit_log;
use super::column::{self, nanos};
use super::ledger::Ledger;
use super::members::bump_version;
use crate::contract::money::SpendLimit;
use crate::contract::selection::Selection;
use crate::ledger::audit_log::{ADD_TOKEN, REVOKE_SUBJECT, REVOKE_TOKEN, describe_token};
use crate::ledger::engine::{Engine, Result, Row, Sql, params, unfit};
use crate::ledger::subject::{
    MAX_SESSIONS_PER_SUBJECT, MAX_TOKENS_PER_SUBJECT, NO_NAME, budget_text, read_budget,
};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, Caller, Digest, Role, Store, Subject, SubjectLogin, SubjectTerms, SubjectToken,
    TokenRefusal, Unavailable,
};

const KEEP_SUBJECT: &str = "INSERT INTO subjects
    (issuer, name, role, budget, group_name, may_buy, display_name, signed_in)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (issuer, name) DO UPDATE SET role = excluded.role, budget = excluded.budget,
        group_name = excluded.group_name, may_buy = excluded.may_buy,
        display_name = excluded.display_name, signed_in = excluded.signed_in";
/// If no issuer is recorded, the users say whose they are.
const OTHER_ISSUER: &str = "SELECT issuer FROM subjects WHERE issuer <> ?1
    AND (name = ?2 OR NOT EXISTS (SELECT 1 FROM subjects WHERE name = ?2)) LIMIT 1";
const TRIM_SESSIONS: &str = "DELETE FROM subject_logins
    WHERE issuer = ?1 AND subject = ?2 AND token IS NULL AND number NOT IN (
        SELECT number FROM subject_logins WHERE issuer = ?1 AND subject = ?2 AND token IS NULL
        ORDER BY number DESC LIMIT ?3)";
const LOGINS: &str = "SELECT id, subject_logins.issuer, subject, until, role, subjects.budget,
        may_buy, display_name, subject_logins.budget, group_name
    FROM subject_logins
    JOIN subjects ON subjects.issuer = subject_logins.issuer AND subjects.name = subject
    WHERE until > ? ORDER BY number";

/// Selects the tokens of the user with the session `?1`, which has to last at `?2`.
macro_rules! own_tokens {
    ($start:literal, $end:literal) => {
        concat!(
            $start,
            " FROM subject_logins AS own
            JOIN subject_logins AS session ON session.issuer = own.issuer
                AND session.subject = own.subject AND session.token IS NULL
            WHERE session.id = ?1 AND session.until > ?2 AND own.token IS NOT NULL
                AND own.until > ?2 ",
            $end
        )
    };
}

const HAS_SESSION: &str =
    "SELECT EXISTS (SELECT 1 FROM subject_logins WHERE id = ? AND token IS NULL)";
const COUNT_TOKENS: &str =
    own_tokens!("SELECT count(*), count(CASE WHEN own.token = ?3 THEN 1 END)", "");
const TOKEN: &str =
    own_tokens!("SELECT own.token || ' (' || own.prefix || ')'", "AND own.token = ?3");
const TOKENS: &str = own_tokens!(
    "SELECT own.id, own.token, own.prefix, own.budget, own.created, own.until, own.last_used",
    "ORDER BY own.number"
);
const REMOVE_TOKEN: &str = concat!(
    "DELETE FROM subject_logins WHERE number IN (",
    own_tokens!("SELECT own.number", "AND own.token = ?3"),
    ")"
);
const INSERT_TOKEN: &str = "INSERT INTO subject_logins
    (id, issuer, subject, until, token, prefix, budget, created)
    SELECT ?2, issuer, subject, ?3, ?4, ?5, ?6, ?7 FROM subject_logins WHERE id = ?1";
const TOKEN_USED: &str = "UPDATE subject_logins SET last_used = ?2
    WHERE id = ?1 AND token IS NOT NULL AND coalesce(last_used, 0) < ?2";

impl Store {
    /// Adds a session, and records what the login service said. Deletes what has expired, and
    /// the user's oldest session beyond a hundred.
    pub async fn sign_in(&self, login: &SubjectLogin) -> Result<(), Unavailable> {
        let login = login.clone();
        let keep = move |ledger: &Ledger| {
            let (db, now) = (&*ledger.db, nanos(ledger.now()));
            let SubjectLogin { id, subject, expires_at, .. } = &login;
            let Subject { issuer, name, .. } = subject;
            delete_expired(db, now)?;
            keep_subject(db, subject, now)?;
            db.run(
                "INSERT INTO subject_logins (id, issuer, subject, until) VALUES (?, ?, ?, ?)",
                params![id, issuer, name, nanos(*expires_at)],
            )?;
            let most = column::signed(MAX_SESSIONS_PER_SUBJECT);
            db.run(TRIM_SESSIONS, params![issuer, name, most])?;
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
        self.execute("other_issuer", Durability::Buffered, move |ledger| {
            find_other_issuer(&*ledger.db, &issuer)
        })
        .await
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
            let recorded = Subject { issuer: Arc::clone(&issuer), name, terms };
            keep_subject(db, &recorded, nanos(ledger.now()))?;
            Ok(other)
        })
        .await
    }

    /// Returns the sessions and tokens that have not expired.
    pub async fn subject_logins(&self) -> Result<Vec<SubjectLogin>, Unavailable> {
        self.execute("subject_logins", Durability::Buffered, |ledger| {
            ledger.db.all(LOGINS, [nanos(ledger.now())], login)
        })
        .await
    }

    /// Adds a token of the user whose session this is.
    pub async fn add_token(
        &self,
        session: Digest,
        token: &SubjectToken,
    ) -> Result<Result<(), TokenRefusal>, Unavailable> {
        let token = token.clone();
        let add = move |ledger: &Ledger| {
            let (db, now) = (&*ledger.db, nanos(ledger.now()));
            delete_expired(db, now)?;
            if let Some(refusal) = token_refusal(db, (session, now), &token.name)? {
                return Ok(Err(refusal));
            }
            let SubjectToken { id, name, prefix, budget, created_at, expires_at, .. } = &token;
            let (until, created, budget) =
                (nanos(*expires_at), nanos(*created_at), budget_text(*budget));
            let values = params![session, id, until, name, prefix, budget, created];
            db.run(INSERT_TOKEN, values)?;
            let act = (ADD_TOKEN, Some(describe_token(&token)));
            write_own_act(ledger, session, act, None)?;
            bump_version(db)?;
            Ok(Ok(()))
        };
        self.run("add_token", Durability::Synced, add).await
    }

    /// Returns the tokens of the user whose session this is, the oldest first.
    pub async fn tokens(&self, session: Digest) -> Result<Vec<SubjectToken>, Unavailable> {
        let read = move |ledger: &Ledger| {
            let now = nanos(ledger.now());
            ledger.db.all(TOKENS, params![session, now], token)
        };
        self.query("tokens", read).await
    }

    /// Ends a token of the user whose session this is. Returns whether there was one.
    pub async fn remove_token(&self, session: Digest, name: Arc<str>) -> Result<bool, Unavailable> {
        let remove = move |ledger: &Ledger| {
            let (db, now) = (&*ledger.db, nanos(ledger.now()));
            let known = db.first(TOKEN, params![session, now, name], |row| row.get(0))?;
            let Some(token) = known else { return Ok(false) };
            write_own_act(ledger, session, (REVOKE_TOKEN, None), Some(token))?;
            db.run(REMOVE_TOKEN, params![session, now, name])?;
            bump_version(db)?;
            Ok(true)
        };
        self.run("remove_token", Durability::Synced, remove).await
    }

    /// Records when tokens were last used. This does not count as a change.
    pub async fn mark_tokens_used(&self, used: Vec<(Digest, Duration)>) -> Result<(), Unavailable> {
        let mark = move |ledger: &Ledger| {
            for (id, at) in &used {
                ledger.db.run(TOKEN_USED, params![id, nanos(*at)])?;
            }
            Ok(())
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
            let (db, who) = (&*ledger.db, params![issuer, subject]);
            let is_known = "SELECT EXISTS (SELECT 1 FROM subjects WHERE issuer = ? AND name = ?)";
            let is_known: Option<bool> = db.first(is_known, who, |row| row.get(0))?;
            if is_known != Some(true) {
                return Ok(false);
            }
            db.run("DELETE FROM subject_logins WHERE issuer = ? AND subject = ?", who)?;
            let act = (REVOKE_SUBJECT, &*Caller::Subject(Arc::clone(&subject)).name());
            audit_log::write(db, (&by, ledger.now()), act, (None, None))?;
            bump_version(db)?;
            Ok(true)
        };
        self.run("revoke_subject", Durability::Synced, revoke).await
    }
}

/// Writes what the user with this session did to a token.
fn write_own_act(
    ledger: &Ledger,
    session: Digest,
    (act, new): (&str, Option<String>),
    old: Option<String>,
) -> Result<()> {
    let db = &*ledger.db;
    let of_session = "SELECT subject FROM subject_logins WHERE id = ?";
    let Some(subject) = db.first(of_session, [session], |row| row.get(0))? else {
        return Ok(());
    };
    let user = Caller::Subject(subject);
    let by = (&Actor::from(&user), ledger.now());
    audit_log::write(db, by, (act, &user.name()), (old.as_deref(), new.as_deref()))
}

fn delete_expired(db: &dyn Engine, now: i64) -> Result<()> {
    db.run("DELETE FROM subject_logins WHERE until <= ?", [now])?;
    Ok(())
}

fn token_refusal(
    db: &dyn Engine,
    (session, now): (Digest, i64),
    name: &str,
) -> Result<Option<TokenRefusal>> {
    let has_session: Option<bool> = db.first(HAS_SESSION, [session], |row| row.get(0))?;
    if has_session != Some(true) {
        return Ok(Some(TokenRefusal::SessionEnded));
    }
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let counted = db.first(COUNT_TOKENS, params![session, now, name], read)?;
    let (count, is_taken): (usize, bool) = counted.unwrap_or_default();
    let is_full = count >= MAX_TOKENS_PER_SUBJECT;
    Ok(match (is_taken, is_full) {
        (true, _) => Some(TokenRefusal::NameTaken),
        (false, true) => Some(TokenRefusal::TooMany),
        (false, false) => None,
    })
}

fn keep_subject(db: &dyn Engine, subject: &Subject, now: i64) -> Result<()> {
    let Subject { issuer, name, terms } = subject;
    let SubjectTerms { role, own_budget, group, may_buy, display_name } = terms;
    let may_buy = may_buy.as_ref().map(Selection::to_string);
    let (role, budget) = (role.name(), budget_text(*own_budget));
    let values = params![issuer, name, role, budget, group, may_buy, display_name, now];
    db.run(KEEP_SUBJECT, values)?;
    Ok(())
}

fn login(row: &Row<'_>) -> Result<SubjectLogin> {
    let terms = SubjectTerms {
        role: column::named(row, 4, &Role::ALL, Role::name)?,
        own_budget: budget(row, 5)?,
        group: row.get(9)?,
        may_buy: row.get::<Option<String>>(6)?.map(|names| Selection::parse(&names)),
        display_name: row.get(7)?,
    };
    let subject = Subject { issuer: row.get(1)?, name: row.get(2)?, terms };
    let token_budget =
        if row.get::<Option<String>>(8)?.is_some() { Some(budget(row, 8)?) } else { None };
    let (id, expires_at) = (row.get(0)?, column::moment(row, 3)?);
    Ok(SubjectLogin { id, subject, expires_at, token_budget })
}

fn token(row: &Row<'_>) -> Result<SubjectToken> {
    Ok(SubjectToken {
        id: row.get(0)?,
        name: row.get(1)?,
        prefix: row.get(2)?,
        budget: budget(row, 3)?,
        created_at: column::moment(row, 4)?,
        expires_at: column::moment(row, 5)?,
        last_used: column::moment_or_none(row, 6)?,
    })
}

fn budget(row: &Row<'_>, at: usize) -> Result<SpendLimit> {
    let text: Arc<str> = row.get(at)?;
    read_budget(&text).ok_or_else(|| unfit(at))
}

pub(in crate::ledger) fn find_other_issuer(
    db: &dyn Engine,
    issuer: &str,
) -> Result<Option<Arc<str>>> {
    db.first(OTHER_ISSUER, params![issuer, NO_NAME], |row| row.get(0))
}
