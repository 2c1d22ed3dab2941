//! The members and their logins.
//!
//! Invariant: every change increments the version in the same transaction, and waits for the disk.
//! A revoked token does not come back after a power failure.

use std::sync::Arc;

use super::column::{Cells, FromRow, exists, read, record, select, upsert};
use super::ledger::Ledger;
use crate::gateway::contract::terms::TERMS;
use crate::ledger::engine::{Engine, Result, Sql, ToSqlValue, params};
use crate::ledger::member::MAX_LOGINS_PER_MEMBER;
use crate::ledger::writer::Durability;
use crate::ledger::{
    Actor, Caller, Digest, LoginSession, Member, MemberChange, MemberError, SecretRecord, Store,
    Unavailable,
};

/// The columns of a member besides its terms.
const COLUMNS: [&str; 5] = ["name", "token", "prefix", "added", "revoked"];

impl FromRow for Member {
    fn from_row(cells: &mut Cells<'_>) -> Result<Self> {
        Ok(Self {
            name: cells.next()?,
            token: cells.next()?,
            prefix: cells.next()?,
            added_at: cells.next()?,
            revoked_at: cells.next()?,
            terms: cells.next()?,
        })
    }
}

record!(LoginSession { id: "id", member: "member", token: "token", expires_at: "until" });

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
        let apply = move |ledger: &Ledger| {
            ledger.db.run("SAVEPOINT members", ())?;
            for (name, change) in &changes {
                if let Err(refused) = ledger.change_member(&by, fingerprint, (name, change))? {
                    ledger.db.run("ROLLBACK TO SAVEPOINT members", ())?;
                    ledger.db.run("RELEASE SAVEPOINT members", ())?;
                    return Ok(Err((Arc::clone(name), refused)));
                }
            }
            ledger.db.run("RELEASE SAVEPOINT members", ())?;
            Ok(Ok(()))
        };
        let changed = self.run("change_members", Durability::Synced, apply).await;
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
        let all = format!("SELECT {} FROM members ORDER BY name", columns().join(", "));
        let find = move |ledger: &Ledger| ledger.db.all(&all, (), read);
        self.execute("members", Durability::Buffered, find).await
    }

    /// Returns the active members whose tokens were hashed with an earlier secret.
    pub async fn members_with_earlier_secret(&self) -> Result<Vec<Arc<str>>, Unavailable> {
        let earlier = "SELECT name FROM members, secret
            WHERE revoked IS NULL AND members.secret <> secret.print";
        let find = move |ledger: &Ledger| ledger.db.all(earlier, (), read);
        self.query("members_with_earlier_secret", find).await
    }

    /// Adds a login. Deletes those that have ended, and the member's oldest beyond a hundred.
    pub async fn log_in(&self, session: &LoginSession) -> Result<(), Unavailable> {
        let LoginSession { id, member, token, expires_at } = session.clone();
        let keep = move |ledger: &Ledger| {
            let db = &*ledger.db;
            let ended = format!("DELETE FROM logins WHERE NOT ({VALID_SESSION})");
            db.run(&ended, [ledger.now()])?;
            upsert!(db, logins (id: id) { member: member, token: token, until: expires_at })?;
            let trim = "DELETE FROM logins WHERE member = ?1 AND number NOT IN
                (SELECT number FROM logins WHERE member = ?1 ORDER BY number DESC LIMIT ?2)";
            db.run(trim, params![member, MAX_LOGINS_PER_MEMBER])?;
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
        let valid = format!("FROM logins WHERE {VALID_SESSION} ORDER BY number");
        let valid = select::<LoginSession>(&valid);
        let find = move |ledger: &Ledger| ledger.db.all(&valid, [ledger.now()], read);
        self.execute("sessions", Durability::Buffered, find).await
    }

    /// Returns the fingerprint of the secret that tokens are hashed with, if one is recorded
    /// and any member's token, or another running server, depends on it.
    pub async fn token_secret_fingerprint(&self) -> Result<Option<Digest>, Unavailable> {
        let find = |ledger: &Ledger| token_secret_fingerprint(&*ledger.db);
        self.execute("token_secret_fingerprint", Durability::Buffered, find).await
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
            upsert!(ledger.db, secret (number: 1) { print: fingerprint })?;
            Ok(SecretRecord::Accepted)
        })
        .await
    }

    /// Returns a number that changes with every change of members or logins, in any process. It
    /// is cheap to poll.
    pub async fn members_version(&self) -> Result<u64, Unavailable> {
        let find = |db: &dyn Engine| {
            let version = "SELECT version FROM members_version";
            Ok(db.first(version, (), read)?.unwrap_or_default())
        };
        if self.is_shared() {
            return self.run_report("members_version", find).await;
        }
        self.execute("members_version", Durability::Buffered, move |ledger| find(&*ledger.db)).await
    }
}

impl Ledger {
    fn change_member(
        &self,
        by: &Actor,
        fingerprint: Option<Digest>,
        (name, change): (&Arc<str>, &MemberChange),
    ) -> Result<Result<(), MemberError>> {
        let db = &*self.db;
        // That server would reject the new token, and this one those that it hashes.
        if let Some(fingerprint) = fingerprint
            && self.is_other_secret_in_use(fingerprint)?
        {
            return Ok(Err(MemberError::OtherSecret));
        }
        let find = format!("SELECT {} FROM members WHERE name = ?", columns().join(", "));
        let before: Option<Member> = db.first(&find, [name], read)?;
        let after = match change.apply(before.clone(), self.now()) {
            Ok(after) => after,
            Err(refused) => return Ok(Err(refused)),
        };
        if let Some(group) = &after.terms.group
            && before.as_ref().and_then(|before| before.terms.group.as_ref()) != Some(group)
            && !exists(db, "SELECT 1 FROM groups WHERE name = ?", [group])?
        {
            return Ok(Err(MemberError::UnknownGroup));
        }
        let caller = Caller::Member(Arc::clone(name)).name();
        self.audit_member(by, &caller, before.as_ref(), &after)?;
        write(db, &after)?;
        if before.as_ref().is_some_and(|before| before.token != after.token) || after.is_revoked() {
            db.run("DELETE FROM logins WHERE member = ?", [name])?;
        }
        // Only new tokens come with a fingerprint.
        if let Some(fingerprint) = fingerprint {
            upsert!(db, secret (number: 1) { print: fingerprint })?;
            let hashed_with = "UPDATE members SET secret = ? WHERE name = ?";
            db.run(hashed_with, params![fingerprint, name])?;
        }
        if let MemberChange::Extra(extra) = change {
            self.change_extras(by, &caller, *extra)?;
        }
        let find = "SELECT 1 FROM members WHERE role = 'admin' AND revoked IS NULL";
        let ends_admin = before.is_some_and(|it| it.is_active_admin()) && !after.is_active_admin();
        if by.is_caller() && ends_admin && !exists(db, find, ())? {
            return Ok(Err(MemberError::LastAdmin));
        }
        bump_version(db).map(Ok)
    }
}

fn columns() -> Vec<&'static str> {
    COLUMNS.into_iter().chain(TERMS.iter().map(|term| term.column)).collect()
}

fn write(db: &dyn Engine, member: &Member) -> Result<usize> {
    let Member { name, terms, token, prefix, added_at, revoked_at } = member;
    let texts: Vec<_> = TERMS.iter().map(|term| (term.value)(terms).text()).collect();
    let mut values = params![name, token, prefix, added_at, revoked_at].to_vec();
    values.extend(texts.iter().map(|text| text as &dyn ToSqlValue));
    let columns = columns();
    let marks = vec!["?"; columns.len()].join(", ");
    let sets: Vec<_> =
        columns[1..].iter().map(|column| format!("{column} = excluded.{column}")).collect();
    let upsert = format!(
        "INSERT INTO members ({}) VALUES ({marks}) ON CONFLICT (name) DO UPDATE SET {}",
        columns.join(", "),
        sets.join(", ")
    );
    db.run(&upsert, values.as_slice())
}

pub(in crate::ledger) fn token_secret_fingerprint(db: &dyn Engine) -> Result<Option<Digest>> {
    let query =
        "SELECT print FROM secret WHERE EXISTS (SELECT 1 FROM members WHERE revoked IS NULL)";
    db.first(query, (), read)
}

pub(super) fn bump_version(db: &dyn Engine) -> Result<()> {
    db.run("UPDATE members_version SET version = version + 1", ())?;
    Ok(())
}
