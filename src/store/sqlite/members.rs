//! The members and their logins in the ledger's file.
//!
//! Invariant: whatever changes one of them counts the edition up in the same transaction, and waits for
//! the disk: a token that was revoked does not come back with the power.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::Fault;
use super::books::Books;
use super::column::{self, nanos};
use super::handle::{Store, Verb};
use super::writer::Weight;
use crate::contract::money::Usd;
use crate::store::member::MOST_LOGINS;
use crate::store::{Identity, Member, MemberChange, MemberFault, Own, Role, Session, Unavailable};

/// What a step answers: a refusal leaves nothing to undo.
type Judged = Result<Result<(), MemberFault>, Fault>;

/// A login that raced with the end of its token is none.
const HOLDING: &str =
    "until > ?1 AND EXISTS (SELECT 1 FROM members WHERE members.name = sessions.member
    AND members.token = sessions.token AND members.revoked IS NULL)";

/// The list of members and their logins. Every change is durable on return, and other processes on the
/// same store see it at their next [`edition`](Store::edition).
impl Store {
    /// Does all of this, or, where one change is refused, nothing: whose, and why. With a token, the secret
    /// that it is hashed with is noted by its fingerprint.
    pub async fn change_members(
        &self,
        print: Option<Identity>,
        changes: Vec<(Arc<str>, MemberChange)>,
    ) -> Result<(), (Arc<str>, MemberFault)> {
        let first = changes.first().map(|(name, _)| Arc::clone(name));
        let clock = self.shared.clock.clone();
        let step = move |books: &Books| {
            let connection = &books.connection;
            connection.execute_batch("SAVEPOINT members")?;
            for (name, change) in &changes {
                if let Err(fault) = changed(connection, name, change, clock())? {
                    connection.execute_batch("ROLLBACK TO members; RELEASE members")?;
                    return Ok(Err((Arc::clone(name), fault)));
                }
            }
            if let Some(print) = print {
                key_by(connection, print)?;
            }
            connection.execute_batch("RELEASE members")?;
            Ok(Ok(()))
        };
        let answer = self.ask(Verb::Other("change_members"), Weight::Dear, step).await;
        answer.map_err(|why| (first.unwrap_or_default(), why.into()))?
    }

    pub async fn change_member(
        &self,
        name: Arc<str>,
        change: MemberChange,
    ) -> Result<(), MemberFault> {
        let changed = self.change_members(None, vec![(name, change)]).await;
        changed.map_err(|(_, fault)| fault)
    }

    pub async fn members(&self) -> Result<Vec<Member>, Unavailable> {
        self.ask_opening("members", Weight::Cheap, |books| members(&books.connection)).await
    }

    /// Keeps a login; those whose time is over are forgotten with it, and so is the oldest of a member
    /// who has a hundred.
    pub async fn log_in(&self, session: &Session) -> Result<(), Unavailable> {
        let (session, clock) = (session.clone(), self.shared.clock.clone());
        let keep = move |books: &Books| log_in(&books.connection, &session, clock());
        self.ask(Verb::Other("log_in"), Weight::Dear, keep).await
    }

    pub async fn log_out(&self, id: Identity) -> Result<(), Unavailable> {
        let end = move |books: &Books| {
            let connection = &books.connection;
            connection.execute("DELETE FROM sessions WHERE id = ?", [id])?;
            count_up(connection)
        };
        self.ask(Verb::Other("log_out"), Weight::Dear, end).await
    }

    pub async fn sessions(&self) -> Result<Vec<Session>, Unavailable> {
        let clock = self.shared.clock.clone();
        let find = move |books: &Books| sessions(&books.connection, clock());
        self.ask_opening("sessions", Weight::Cheap, find).await
    }

    /// The fingerprint of the secret that tokens are hashed with, where one is noted and a member's token
    /// depends on it.
    pub async fn keyed_by(&self) -> Result<Option<Identity>, Unavailable> {
        self.ask_opening("keyed_by", Weight::Cheap, |books| keyed_by(&books.connection)).await
    }

    pub async fn key_by(&self, print: Identity) -> Result<(), Unavailable> {
        let note = move |books: &Books| key_by(&books.connection, print);
        self.ask_opening("key_by", Weight::Dear, note).await
    }

    /// Another number after any change of members or logins, by whichever process. Cheap: asked several
    /// times a second.
    pub async fn edition(&self) -> Result<u64, Unavailable> {
        let read = |books: &Books| {
            let query = "SELECT edition FROM members_edition";
            let mut read = books.connection.prepare_cached(query)?;
            Ok(read.query_row([], |row| row.get(0))?)
        };
        self.ask_opening("edition", Weight::Cheap, read).await
    }
}

pub(super) fn keyed_by(connection: &Connection) -> Result<Option<Identity>, Fault> {
    let query =
        "SELECT print FROM secret WHERE EXISTS (SELECT 1 FROM members WHERE revoked IS NULL)";
    Ok(connection.query_row(query, [], |row| row.get(0)).optional()?)
}

fn key_by(connection: &Connection, print: Identity) -> Result<(), Fault> {
    let note = "INSERT OR REPLACE INTO secret (number, print) VALUES (1, ?)";
    connection.execute(note, [print])?;
    Ok(())
}

fn changed(connection: &Connection, name: &str, to: &MemberChange, now: Duration) -> Judged {
    match to {
        MemberChange::Added(member) => enlist(connection, member),
        MemberChange::Revoked => revoke(connection, name, now),
        MemberChange::Updated(role, own) => update(connection, name, *role, *own),
        MemberChange::Rotated(token, prefix) => rotate(connection, name, token, prefix),
    }
}

fn enlist(connection: &Connection, member: &Member) -> Judged {
    let mut insert = connection.prepare_cached(
        "INSERT INTO members
            (name, role, day_micros, month_micros, token, prefix, added, revoked)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
    )?;
    let written = insert.execute(params![
        member.name,
        member.role.name(),
        member.own.day.map(Usd::as_micros),
        member.own.month.map(Usd::as_micros),
        member.token,
        member.prefix,
        nanos(member.added),
        member.revoked.map(nanos),
    ])?;
    if written == 0 {
        return Ok(Err(MemberFault::Taken));
    }
    Ok(Ok(count_up(connection)?))
}

fn revoke(connection: &Connection, name: &str, now: Duration) -> Judged {
    let end = "UPDATE members SET revoked = coalesce(revoked, ?) WHERE name = ?";
    if connection.execute(end, params![nanos(now), name])? == 0 {
        return Ok(Err(MemberFault::Unknown));
    }
    Ok(Ok(end_logins(connection, name)?))
}

fn update(connection: &Connection, name: &str, role: Option<Role>, own: Option<Own>) -> Judged {
    if let Err(fault) = must_be_active(connection, name)? {
        return Ok(Err(fault));
    }
    if let Some(role) = role {
        let write = "UPDATE members SET role = ? WHERE name = ?";
        connection.execute(write, params![role.name(), name])?;
    }
    if let Some(Own { day, month }) = own {
        let (day, month) = (day.map(Usd::as_micros), month.map(Usd::as_micros));
        let write = "UPDATE members SET day_micros = ?, month_micros = ? WHERE name = ?";
        connection.execute(write, params![day, month, name])?;
    }
    Ok(Ok(count_up(connection)?))
}

fn rotate(connection: &Connection, name: &str, token: &Identity, prefix: &str) -> Judged {
    if let Err(fault) = must_be_active(connection, name)? {
        return Ok(Err(fault));
    }
    let write = "UPDATE members SET token = ?, prefix = ? WHERE name = ?";
    connection.execute(write, params![token, prefix, name])?;
    Ok(Ok(end_logins(connection, name)?))
}

fn must_be_active(connection: &Connection, name: &str) -> Judged {
    let ask = "SELECT revoked IS NULL FROM members WHERE name = ?";
    let is_active: Option<bool> = connection.query_row(ask, [name], |row| row.get(0)).optional()?;
    Ok(match is_active {
        Some(true) => Ok(()),
        Some(false) => Err(MemberFault::Revoked),
        None => Err(MemberFault::Unknown),
    })
}

fn end_logins(connection: &Connection, name: &str) -> Result<(), Fault> {
    connection.execute("DELETE FROM sessions WHERE member = ?", [name])?;
    count_up(connection)
}

fn log_in(connection: &Connection, session: &Session, now: Duration) -> Result<(), Fault> {
    connection.execute(&format!("DELETE FROM sessions WHERE NOT ({HOLDING})"), [nanos(now)])?;
    connection.execute(
        "INSERT OR REPLACE INTO sessions (id, member, token, until) VALUES (?, ?, ?, ?)",
        params![session.id, session.member, session.token, nanos(session.until)],
    )?;
    let most = i64::try_from(MOST_LOGINS).unwrap_or(i64::MAX);
    connection.execute(
        "DELETE FROM sessions WHERE member = ?1 AND number NOT IN
            (SELECT number FROM sessions WHERE member = ?1 ORDER BY number DESC LIMIT ?2)",
        params![session.member, most],
    )?;
    count_up(connection)
}

fn count_up(connection: &Connection) -> Result<(), Fault> {
    connection.execute("UPDATE members_edition SET edition = edition + 1", [])?;
    Ok(())
}

fn members(connection: &Connection) -> Result<Vec<Member>, Fault> {
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
            own: Own { day: amount(2)?, month: amount(3)? },
            token: row.get(4)?,
            prefix: row.get(5)?,
            added: column::moment(row, 6)?,
            revoked: revoked.map(Duration::from_nanos),
        })
    })?;
    Ok(all.collect::<rusqlite::Result<_>>()?)
}

fn sessions(connection: &Connection, now: Duration) -> Result<Vec<Session>, Fault> {
    let query =
        format!("SELECT id, member, token, until FROM sessions WHERE {HOLDING} ORDER BY number");
    let mut holding = connection.prepare_cached(&query)?;
    let holding = holding.query_map([nanos(now)], |row| {
        Ok(Session {
            id: row.get(0)?,
            member: row.get(1)?,
            token: row.get(2)?,
            until: column::moment(row, 3)?,
        })
    })?;
    Ok(holding.collect::<rusqlite::Result<_>>()?)
}
