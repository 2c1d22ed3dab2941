//! The members and their logins.
//!
//! Invariant: every change increments the version in the same transaction, and waits for the disk.
//! A revoked token does not come back after a power failure.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::Result;
use super::column::{self, nanos};
use super::handle::{Store, StoreOp};
use super::ledger::Ledger;
use super::writer::Durability;
use crate::contract::money::Usd;
use crate::store::member::MAX_LOGINS_PER_MEMBER;
use crate::store::{
    Digest, LoginSession, Member, MemberChange, MemberError, OwnBudget, Role, Unavailable,
};

/// A refusal leaves nothing to roll back.
type ChangeResult = Result<Result<(), MemberError>>;

/// A login that raced with the end of its token is not valid.
const VALID_SESSION: &str =
    "until > ?1 AND EXISTS (SELECT 1 FROM members WHERE members.name = sessions.member
    AND members.token = sessions.token AND members.revoked IS NULL)";

/// Every change is durable on return. Other processes see it at their next
/// [`members_version`](Store::members_version).
impl Store {
    /// Applies all changes, or none if one is refused, and returns whose it was. With new tokens,
    /// the fingerprint of the secret that they are hashed with is recorded.
    pub async fn change_members(
        &self,
        fingerprint: Option<Digest>,
        changes: Vec<(Arc<str>, MemberChange)>,
    ) -> Result<(), (Arc<str>, MemberError)> {
        let first = changes.first().map(|(name, _)| Arc::clone(name));
        let clock = self.inner.clock.clone();
        let step = move |ledger: &Ledger| {
            let connection = &ledger.connection;
            connection.execute_batch("SAVEPOINT members")?;
            for (name, change) in &changes {
                if let Err(error) = apply_change(connection, name, change, clock())? {
                    connection.execute_batch("ROLLBACK TO members; RELEASE members")?;
                    return Ok(Err((Arc::clone(name), error)));
                }
            }
            if let Some(fingerprint) = fingerprint {
                set_token_secret_fingerprint(connection, fingerprint)?;
            }
            connection.execute_batch("RELEASE members")?;
            Ok(Ok(()))
        };
        let answer = self.run(StoreOp::Other("change_members"), Durability::Synced, step).await;
        answer.map_err(|why| (first.unwrap_or_default(), why.into()))?
    }

    pub async fn change_member(
        &self,
        name: Arc<str>,
        change: MemberChange,
    ) -> Result<(), MemberError> {
        let changed = self.change_members(None, vec![(name, change)]).await;
        changed.map_err(|(_, error)| error)
    }

    pub async fn members(&self) -> Result<Vec<Member>, Unavailable> {
        self.run_while_starting("members", Durability::Buffered, |ledger| {
            members(&ledger.connection)
        })
        .await
    }

    /// Adds a login. Deletes those that have ended, and the member's oldest beyond a hundred.
    pub async fn log_in(&self, session: &LoginSession) -> Result<(), Unavailable> {
        let (session, clock) = (session.clone(), self.inner.clock.clone());
        let keep = move |ledger: &Ledger| log_in(&ledger.connection, &session, clock());
        self.run(StoreOp::Other("log_in"), Durability::Synced, keep).await
    }

    pub async fn log_out(&self, id: Digest) -> Result<(), Unavailable> {
        let end = move |ledger: &Ledger| {
            let connection = &ledger.connection;
            connection.execute("DELETE FROM sessions WHERE id = ?", [id])?;
            bump_version(connection)
        };
        self.run(StoreOp::Other("log_out"), Durability::Synced, end).await
    }

    pub async fn sessions(&self) -> Result<Vec<LoginSession>, Unavailable> {
        let clock = self.inner.clock.clone();
        self.run_while_starting("sessions", Durability::Buffered, move |ledger| {
            sessions(&ledger.connection, clock())
        })
        .await
    }

    /// Returns the fingerprint of the secret that tokens are hashed with, if one is recorded and
    /// any member's token depends on it.
    pub async fn token_secret_fingerprint(&self) -> Result<Option<Digest>, Unavailable> {
        self.run_while_starting("token_secret_fingerprint", Durability::Buffered, |ledger| {
            token_secret_fingerprint(&ledger.connection)
        })
        .await
    }

    pub async fn set_token_secret_fingerprint(
        &self,
        fingerprint: Digest,
    ) -> Result<(), Unavailable> {
        self.run_while_starting("set_token_secret_fingerprint", Durability::Synced, move |ledger| {
            set_token_secret_fingerprint(&ledger.connection, fingerprint)
        })
        .await
    }

    /// Returns a number that changes with every change of members or logins, in any process. It is
    /// cheap to poll.
    pub async fn members_version(&self) -> Result<u64, Unavailable> {
        self.run_while_starting("members_version", Durability::Buffered, |ledger| {
            let query = "SELECT version FROM members_version";
            let mut read = ledger.connection.prepare_cached(query)?;
            Ok(read.query_row([], |row| row.get(0))?)
        })
        .await
    }
}

pub(super) fn token_secret_fingerprint(connection: &Connection) -> Result<Option<Digest>> {
    let query =
        "SELECT print FROM secret WHERE EXISTS (SELECT 1 FROM members WHERE revoked IS NULL)";
    Ok(connection.query_row(query, [], |row| row.get(0)).optional()?)
}

fn set_token_secret_fingerprint(connection: &Connection, fingerprint: Digest) -> Result<()> {
    let note = "INSERT OR REPLACE INTO secret (number, print) VALUES (1, ?)";
    connection.execute(note, [fingerprint])?;
    Ok(())
}

fn apply_change(
    connection: &Connection,
    name: &str,
    to: &MemberChange,
    now: Duration,
) -> ChangeResult {
    match to {
        MemberChange::Add(member) => insert(connection, member),
        MemberChange::Revoke => revoke(connection, name, now),
        MemberChange::Update(role, own) => update(connection, name, *role, *own),
        MemberChange::Rotate(token, prefix) => rotate(connection, name, token, prefix),
    }
}

fn insert(connection: &Connection, member: &Member) -> ChangeResult {
    let mut insert = connection.prepare_cached(
        "INSERT INTO members
            (name, role, day_micros, month_micros, token, prefix, added, revoked)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
    )?;
    let written = insert.execute(params![
        member.name,
        member.role.name(),
        member.own_budget.day.map(Usd::as_micros),
        member.own_budget.month.map(Usd::as_micros),
        member.token,
        member.prefix,
        nanos(member.added_at),
        member.revoked_at.map(nanos),
    ])?;
    if written == 0 {
        return Ok(Err(MemberError::NameTaken));
    }
    Ok(Ok(bump_version(connection)?))
}

fn revoke(connection: &Connection, name: &str, now: Duration) -> ChangeResult {
    let end = "UPDATE members SET revoked = coalesce(revoked, ?) WHERE name = ?";
    if connection.execute(end, params![nanos(now), name])? == 0 {
        return Ok(Err(MemberError::NotFound));
    }
    Ok(Ok(delete_sessions(connection, name)?))
}

fn update(
    connection: &Connection,
    name: &str,
    role: Option<Role>,
    own: Option<OwnBudget>,
) -> ChangeResult {
    if let Err(error) = ensure_active(connection, name)? {
        return Ok(Err(error));
    }
    if let Some(role) = role {
        let write = "UPDATE members SET role = ? WHERE name = ?";
        connection.execute(write, params![role.name(), name])?;
    }
    if let Some(OwnBudget { day, month }) = own {
        let (day, month) = (day.map(Usd::as_micros), month.map(Usd::as_micros));
        let write = "UPDATE members SET day_micros = ?, month_micros = ? WHERE name = ?";
        connection.execute(write, params![day, month, name])?;
    }
    Ok(Ok(bump_version(connection)?))
}

fn rotate(connection: &Connection, name: &str, token: &Digest, prefix: &str) -> ChangeResult {
    if let Err(error) = ensure_active(connection, name)? {
        return Ok(Err(error));
    }
    let write = "UPDATE members SET token = ?, prefix = ? WHERE name = ?";
    connection.execute(write, params![token, prefix, name])?;
    Ok(Ok(delete_sessions(connection, name)?))
}

fn ensure_active(connection: &Connection, name: &str) -> ChangeResult {
    let ask = "SELECT revoked IS NULL FROM members WHERE name = ?";
    let is_active: Option<bool> = connection.query_row(ask, [name], |row| row.get(0)).optional()?;
    Ok(match is_active {
        Some(true) => Ok(()),
        Some(false) => Err(MemberError::Revoked),
        None => Err(MemberError::NotFound),
    })
}

fn delete_sessions(connection: &Connection, name: &str) -> Result<()> {
    connection.execute("DELETE FROM sessions WHERE member = ?", [name])?;
    bump_version(connection)
}

fn log_in(connection: &Connection, session: &LoginSession, now: Duration) -> Result<()> {
    connection
        .execute(&format!("DELETE FROM sessions WHERE NOT ({VALID_SESSION})"), [nanos(now)])?;
    connection.execute(
        "INSERT OR REPLACE INTO sessions (id, member, token, until) VALUES (?, ?, ?, ?)",
        params![session.id, session.member, session.token, nanos(session.expires_at)],
    )?;
    let limit = i64::try_from(MAX_LOGINS_PER_MEMBER).unwrap_or(i64::MAX);
    connection.execute(
        "DELETE FROM sessions WHERE member = ?1 AND number NOT IN
            (SELECT number FROM sessions WHERE member = ?1 ORDER BY number DESC LIMIT ?2)",
        params![session.member, limit],
    )?;
    bump_version(connection)
}

fn bump_version(connection: &Connection) -> Result<()> {
    connection.execute("UPDATE members_version SET version = version + 1", [])?;
    Ok(())
}

fn members(connection: &Connection) -> Result<Vec<Member>> {
    let mut all = connection.prepare_cached(
        "SELECT name, role, day_micros, month_micros, token, prefix, added, revoked FROM members
         ORDER BY name",
    )?;
    let all = all.query_map([], |row| {
        let amount = |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<u64>>(at)?.map(Usd::micros));
        let revoked: Option<u64> = row.get(7)?;
        Ok(Member {
            name: row.get(0)?,
            role: column::named(row, 1, &Role::ALL, Role::name)?,
            own_budget: OwnBudget { day: amount(2)?, month: amount(3)? },
            token: row.get(4)?,
            prefix: row.get(5)?,
            added_at: column::moment(row, 6)?,
            revoked_at: revoked.map(Duration::from_nanos),
        })
    })?;
    Ok(all.collect::<rusqlite::Result<_>>()?)
}

fn sessions(connection: &Connection, now: Duration) -> Result<Vec<LoginSession>> {
    let query = format!(
        "SELECT id, member, token, until FROM sessions WHERE {VALID_SESSION} ORDER BY number"
    );
    let mut holding = connection.prepare_cached(&query)?;
    let holding = holding.query_map([nanos(now)], |row| {
        Ok(LoginSession {
            id: row.get(0)?,
            member: row.get(1)?,
            token: row.get(2)?,
            expires_at: column::moment(row, 3)?,
        })
    })?;
    Ok(holding.collect::<rusqlite::Result<_>>()?)
}
