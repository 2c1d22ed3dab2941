//! The members and their logins.
//!
//! Invariant: every change increments the version in the same transaction, and waits for the disk.
//! A revoked token does not come back after a power failure.

use std::sync::Arc;
use std::time::Duration;

use super::audit_log;
use super::column::{self, nanos};
use super::ledger::Ledger;
use super::limits;
use crate::contract::money::Usd;
use crate::contract::selection::Selection;
use crate::ledger::engine::{Engine, Result, Row, Sql, params};
use crate::ledger::member::MAX_LOGINS_PER_MEMBER;
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, Caller, Digest, LoginSession, Member, MemberChange, MemberError, Period, Role,
    SecretRecord, SpendLimit, Store, Unavailable,
};

/// A refusal leaves nothing to roll back.
type ChangeResult = Result<Result<(), MemberError>>;

/// Selects what [`member`] reads.
const MEMBERS: &str =
    "SELECT name, role, day_micros, week_micros, month_micros, ever_micros, token,
    prefix, added, revoked, may_buy, group_name FROM members";

/// A login that raced with the end of its token is not valid.
const VALID_SESSION: &str =
    "until > ?1 AND EXISTS (SELECT 1 FROM members WHERE members.name = logins.member
    AND members.token = logins.token AND members.revoked IS NULL)";

impl Store {
    /// Applies all changes, or none if one is refused, and returns whose it was. The audit log says
    /// who made them. With new tokens, the fingerprint of the secret that they are hashed with is
    /// recorded.
    pub async fn change_members(
        &self,
        by: &Actor,
        fingerprint: Option<Digest>,
        changes: Vec<(Arc<str>, MemberChange)>,
    ) -> Result<(), (Arc<str>, MemberError)> {
        let first = changes.first().map(|(name, _)| Arc::clone(name)).unwrap_or_default();
        let by = by.clone();
        let step = move |ledger: &Ledger| {
            let db = &*ledger.db;
            // That server would reject the new tokens, and this one those that it hashes.
            if let (Some(fingerprint), Some((name, _))) = (fingerprint, changes.first())
                && ledger.is_other_secret_in_use(fingerprint)?
            {
                return Ok(Err((Arc::clone(name), MemberError::OtherSecret)));
            }
            db.run("SAVEPOINT members", ())?;
            for (name, change) in &changes {
                let now = ledger.now();
                let before = db.first(&format!("{MEMBERS} WHERE name = ?"), [name], member)?;
                let needs_other_admin = by.is_caller()
                    && change.ends_admin()
                    && before.as_ref().is_some_and(Member::is_active_admin);
                let (by, before) = ((&by, now), (&**name, before.as_ref()));
                audit_log::write_member_change(db, by, before, change)?;
                let mut applied = apply_change(db, before, change, now)?;
                if applied.is_ok() && needs_other_admin && !has_admin(db)? {
                    applied = Err(MemberError::LastAdmin);
                }
                if let Err(error) = applied {
                    db.run("ROLLBACK TO SAVEPOINT members", ())?;
                    db.run("RELEASE SAVEPOINT members", ())?;
                    return Ok(Err((Arc::clone(name), error)));
                }
            }
            if let Some(fingerprint) = fingerprint {
                set_token_secret_fingerprint(db, fingerprint)?;
                // Only new tokens come with a fingerprint.
                for (name, _) in &changes {
                    let write = "UPDATE members SET secret = ? WHERE name = ?";
                    db.run(write, params![fingerprint, name])?;
                }
            }
            db.run("RELEASE SAVEPOINT members", ())?;
            ledger.forget_limits();
            Ok(Ok(()))
        };
        let changed = self.run("change_members", Durability::Synced, step).await;
        changed.map_err(|why| (first, why.into()))?
    }

    pub async fn change_member(
        &self,
        by: &Actor,
        name: Arc<str>,
        change: MemberChange,
    ) -> Result<(), MemberError> {
        let changed = self.change_members(by, None, vec![(name, change)]).await;
        changed.map_err(|(_, error)| error)
    }

    pub async fn members(&self) -> Result<Vec<Member>, Unavailable> {
        self.execute("members", Durability::Buffered, move |ledger| {
            ledger.db.all(&format!("{MEMBERS} ORDER BY name"), (), member)
        })
        .await
    }

    /// Returns the active members whose tokens were hashed with an earlier secret.
    pub async fn members_with_earlier_secret(&self) -> Result<Vec<Arc<str>>, Unavailable> {
        let earlier = "SELECT name FROM members, secret
            WHERE revoked IS NULL AND members.secret <> secret.print";
        self.query("members_with_earlier_secret", move |ledger| {
            ledger.db.all(earlier, (), |row| row.get(0))
        })
        .await
    }

    /// Adds a login. Deletes those that have ended, and the member's oldest beyond a hundred.
    pub async fn log_in(&self, session: &LoginSession) -> Result<(), Unavailable> {
        let session = session.clone();
        let keep = move |ledger: &Ledger| {
            let (db, now) = (&*ledger.db, nanos(ledger.now()));
            let LoginSession { id, member, token, expires_at } = &session;
            db.run(&format!("DELETE FROM logins WHERE NOT ({VALID_SESSION})"), [now])?;
            db.run(
                "INSERT INTO logins (id, member, token, until) VALUES (?, ?, ?, ?)
                    ON CONFLICT (id) DO UPDATE SET member = excluded.member,
                        token = excluded.token, until = excluded.until",
                params![id, member, token, nanos(*expires_at)],
            )?;
            db.run(
                "DELETE FROM logins WHERE member = ?1 AND number NOT IN
                    (SELECT number FROM logins WHERE member = ?1 ORDER BY number DESC LIMIT ?2)",
                params![member, column::signed(MAX_LOGINS_PER_MEMBER)],
            )?;
            bump_version(db)
        };
        self.run("log_in", Durability::Synced, keep).await
    }

    pub async fn log_out(&self, id: Digest) -> Result<(), Unavailable> {
        let end = move |ledger: &Ledger| {
            ledger.db.run("DELETE FROM logins WHERE id = ?", [id])?;
            bump_version(&*ledger.db)
        };
        self.run("log_out", Durability::Synced, end).await
    }

    pub async fn sessions(&self) -> Result<Vec<LoginSession>, Unavailable> {
        let valid = format!(
            "SELECT id, member, token, until FROM logins WHERE {VALID_SESSION} ORDER BY number"
        );
        self.execute("sessions", Durability::Buffered, move |ledger| {
            ledger.db.all(&valid, [nanos(ledger.now())], |row| {
                Ok(LoginSession {
                    id: row.get(0)?,
                    member: row.get(1)?,
                    token: row.get(2)?,
                    expires_at: column::moment(row, 3)?,
                })
            })
        })
        .await
    }

    /// Returns the fingerprint of the secret that tokens are hashed with, if one is recorded
    /// and any member's token, or another running server, depends on it.
    pub async fn token_secret_fingerprint(&self) -> Result<Option<Digest>, Unavailable> {
        self.execute("token_secret_fingerprint", Durability::Buffered, |ledger| {
            token_secret_fingerprint(&*ledger.db)
        })
        .await
    }

    /// Records the fingerprint of a server's secret, unless something depends on another one.
    pub async fn record_secret(&self, fingerprint: Digest) -> Result<SecretRecord, Unavailable> {
        self.execute("record_secret", Durability::Synced, move |ledger| {
            let recorded = token_secret_fingerprint(&*ledger.db)?;
            if recorded.is_some_and(|recorded| recorded != fingerprint) {
                return Ok(SecretRecord::OtherOfMembers);
            }
            if ledger.is_other_secret_in_use(fingerprint)? {
                return Ok(SecretRecord::OtherOfServers);
            }
            ledger.note_secret(fingerprint)?;
            set_token_secret_fingerprint(&*ledger.db, fingerprint)?;
            Ok(SecretRecord::Accepted)
        })
        .await
    }

    /// Returns a number that changes with every change of members or logins, in any process. It
    /// is cheap to poll.
    pub async fn members_version(&self) -> Result<u64, Unavailable> {
        let find = |db: &dyn Engine| {
            let version = "SELECT version FROM members_version";
            Ok(db.first(version, (), |row| row.get(0))?.unwrap_or_default())
        };
        if self.is_shared() {
            return self.run_report("members_version", find).await;
        }
        self.execute("members_version", Durability::Buffered, move |ledger| find(&*ledger.db)).await
    }
}

fn has_admin(db: &dyn Engine) -> Result<bool> {
    let find = "SELECT 1 FROM members WHERE role = 'admin' AND revoked IS NULL";
    Ok(db.first(find, (), |_| Ok(()))?.is_some())
}

pub(in crate::ledger) fn token_secret_fingerprint(db: &dyn Engine) -> Result<Option<Digest>> {
    let query =
        "SELECT print FROM secret WHERE EXISTS (SELECT 1 FROM members WHERE revoked IS NULL)";
    db.first(query, (), |row| row.get(0))
}

fn set_token_secret_fingerprint(db: &dyn Engine, fingerprint: Digest) -> Result<()> {
    let write = "INSERT INTO secret (number, print) VALUES (1, ?)
        ON CONFLICT (number) DO UPDATE SET print = excluded.print";
    db.run(write, [fingerprint])?;
    Ok(())
}

fn apply_change(
    db: &dyn Engine,
    (name, before): (&str, Option<&Member>),
    change: &MemberChange,
    now: Duration,
) -> ChangeResult {
    if !matches!(change, MemberChange::Add(_) | MemberChange::Revoke) {
        match before.map(|member| member.revoked_at) {
            Some(None) => {}
            Some(Some(_)) => return Ok(Err(MemberError::Revoked)),
            None => return Ok(Err(MemberError::NotFound)),
        }
    }
    match change {
        MemberChange::Add(member) => {
            if !add(db, member)? {
                return Ok(Err(MemberError::NameTaken));
            }
        }
        MemberChange::Revoke => {
            let end = "UPDATE members SET revoked = coalesce(revoked, ?) WHERE name = ?";
            if db.run(end, params![nanos(now), name])? == 0 {
                return Ok(Err(MemberError::NotFound));
            }
            end_sessions(db, name)?;
        }
        MemberChange::Update { role, budget, group, may_buy } => {
            let old = before.map(|member| member.own_budget).unwrap_or_default();
            let new = Some(budget.apply(old)).filter(|new| *new != old);
            update(db, name, (*role, new), may_buy.as_ref())?;
            if let Some(group) = group {
                let write = "UPDATE members SET group_name = ? WHERE name = ?";
                db.run(write, params![group, name])?;
            }
        }
        MemberChange::Rotate(token, prefix) => {
            let write = "UPDATE members SET token = ?, prefix = ? WHERE name = ?";
            db.run(write, params![token, prefix, name])?;
            end_sessions(db, name)?;
        }
        MemberChange::Extra(extra) => {
            limits::add_extra(db, &caller(name), *extra, now)?;
        }
        MemberChange::EndExtras => {
            limits::end_extras(db, &caller(name), now)?;
        }
    }
    if let Some(group) = change.group() {
        let ask = "SELECT 1 FROM groups WHERE name = ?";
        if db.first(ask, [&**group], |_| Ok(()))?.is_none() {
            return Ok(Err(MemberError::UnknownGroup));
        }
    }
    Ok(Ok(bump_version(db)?))
}

/// Returns the name of the member as a caller.
fn caller(name: &str) -> String {
    Caller::Member(name.into()).to_string()
}

/// Returns whether the name was free.
fn add(db: &dyn Engine, member: &Member) -> Result<bool> {
    let insert = "INSERT INTO members
        (name, role, day_micros, week_micros, month_micros, ever_micros, token, prefix, added,
            revoked, may_buy, group_name)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING";
    let values = params![
        member.name,
        member.role.name(),
        member.own_budget.day.map(Usd::as_micros),
        member.own_budget.week.map(Usd::as_micros),
        member.own_budget.month.map(Usd::as_micros),
        member.own_budget.ever.map(Usd::as_micros),
        member.token,
        member.prefix,
        nanos(member.added_at),
        member.revoked_at.map(nanos),
        member.may_buy.as_ref().map(Selection::to_string),
        member.group,
    ];
    Ok(db.run(insert, values)? > 0)
}

fn update(
    db: &dyn Engine,
    name: &str,
    (role, own_budget): (Option<Role>, Option<SpendLimit>),
    may_buy: Option<&Option<Selection>>,
) -> Result<()> {
    if let Some(role) = role {
        let write = "UPDATE members SET role = ? WHERE name = ?";
        db.run(write, params![role.name(), name])?;
    }
    if let Some(limit) = own_budget {
        let [day, week, month, ever] =
            Period::ALL.map(|period| limit.get(period).map(Usd::as_micros));
        let write = "UPDATE members
            SET day_micros = ?, week_micros = ?, month_micros = ?, ever_micros = ? WHERE name = ?";
        db.run(write, params![day, week, month, ever, name])?;
    }
    if let Some(may_buy) = may_buy {
        let names = may_buy.as_ref().map(Selection::to_string);
        let write = "UPDATE members SET may_buy = ? WHERE name = ?";
        db.run(write, params![names, name])?;
    }
    Ok(())
}

fn end_sessions(db: &dyn Engine, member: &str) -> Result<usize> {
    db.run("DELETE FROM logins WHERE member = ?", [member])
}

pub(super) fn bump_version(db: &dyn Engine) -> Result<()> {
    db.run("UPDATE members_version SET version = version + 1", ())?;
    Ok(())
}

fn member(row: &Row<'_>) -> Result<Member> {
    Ok(Member {
        name: row.get(0)?,
        role: column::named(row, 1, &Role::ALL, Role::name)?,
        own_budget: limits::limit(row, 2)?,
        group: row.get(11)?,
        token: row.get(6)?,
        prefix: row.get(7)?,
        added_at: column::moment(row, 8)?,
        revoked_at: column::moment_or_none(row, 9)?,
        may_buy: row.get::<Option<String>>(10)?.map(|names| Selection::parse(&names)),
    })
}
