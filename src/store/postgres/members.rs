//! The members and their logins.
//!
//! Invariant: every change locks the version's row first, and increments it in the same transaction.

use std::sync::Arc;

use tokio_postgres::Row;

use super::audit_log;
use super::column::{self, Read, changed_limits, nanos, signed};
use super::handle::PostgresStore;
use super::step::{Need, Statement, Step, StepRows, statement};
use crate::contract::money::Usd;
use crate::contract::selection::Selection;
use crate::store::member::MAX_LOGINS_PER_MEMBER;
use crate::store::{
    Actor, Caller, Digest, LoginSession, Member, MemberChange, MemberError, Role, SecretRecord,
    Unavailable,
};

pub(super) const LOCK: &str = "SELECT 1 FROM members_version FOR UPDATE";
/// Judges all changes before any is applied, each as if those before it were. New tokens are refused while
/// a server uses another secret (`$7`): it would reject them, and the others those that it hashes.
///
/// The transaction remembers the first refusal, so that the statements after it change nothing.
const JUDGE: &str = "
WITH changes AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::boolean[], $5::text[], $6::boolean[])
    AS c(nth, name, kind, revokes, of_group, keeps_admin)
), judged AS (
  SELECT nth, CASE
      WHEN EXISTS (SELECT 1 FROM instances WHERE kind = 'server' AND secret <> $7::bytea
        AND ended IS NULL AND until >= {clock}) THEN 'secret'
      WHEN kind = 'add' AND is_known THEN 'taken'
      WHEN kind <> 'add' AND NOT is_known THEN 'missing'
      WHEN kind = 'change' AND is_revoked THEN 'revoked'
      WHEN of_group IS NOT NULL AND NOT EXISTS (SELECT 1 FROM groups WHERE groups.name = of_group) THEN 'group'
      WHEN keeps_admin AND is_admin
        AND NOT EXISTS (SELECT 1 FROM members AS m WHERE role = 'admin' AND revoked IS NULL AND m.name <> known.name) THEN 'last'
    END AS refusal
  FROM (
    SELECT c.nth, c.name, c.kind, c.of_group, c.keeps_admin,
      members.role = 'admin' AND members.revoked IS NULL AS is_admin,
      members.name IS NOT NULL OR EXISTS (
        SELECT 1 FROM changes AS e WHERE e.nth < c.nth AND e.name = c.name AND e.kind = 'add'
      ) AS is_known,
      members.revoked IS NOT NULL OR EXISTS (
        SELECT 1 FROM changes AS e WHERE e.nth < c.nth AND e.name = c.name AND e.revokes
      ) AS is_revoked
    FROM changes AS c LEFT JOIN members ON members.name = c.name
  ) known
), first AS (
  SELECT nth, refusal FROM judged WHERE refusal IS NOT NULL ORDER BY nth LIMIT 1
)
SELECT first.nth, first.refusal,
  set_config('tollgate.refusal', coalesce(first.refusal, ''), true)
FROM (VALUES (1)) AS one LEFT JOIN first ON true";

/// Appends the condition under which a change is applied.
macro_rules! unless_refused {
    ($sql:expr) => {
        concat!($sql, " current_setting('tollgate.refusal') = ''")
    };
}

const ADD: &str = unless_refused!(
    "INSERT INTO members (name, role, day_micros, week_micros, month_micros, ever_micros, token,
        prefix, added, revoked, may_buy, group_name)
    SELECT $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bytea, $8::text,
        $9::bigint, $10::bigint, $11::text, $12::text
    WHERE"
);
const REVOKE: &str =
    unless_refused!("UPDATE members SET revoked = coalesce(revoked, {now}) WHERE name = $1 AND");
const SET_ROLE: &str = unless_refused!("UPDATE members SET role = $2 WHERE name = $1 AND");
const SET_BUDGET: &str = unless_refused!(concat!(
    "UPDATE members SET ",
    changed_limits!("$2", "$3"),
    " WHERE name = $1 AND"
));
const SET_MAY_BUY: &str = unless_refused!("UPDATE members SET may_buy = $2 WHERE name = $1 AND");
const SET_GROUP: &str = unless_refused!("UPDATE members SET group_name = $2 WHERE name = $1 AND");
const ROTATE: &str =
    unless_refused!("UPDATE members SET token = $2, prefix = $3 WHERE name = $1 AND");
const ADD_EXTRA: &str = unless_refused!(
    "INSERT INTO extras (caller, micros, until, at)
    SELECT $1::text, $2::bigint, $3::bigint, {now} WHERE"
);
const END_EXTRAS: &str =
    unless_refused!("UPDATE extras SET until = {now} WHERE caller = $1 AND until > {now} AND");
const END_LOGINS: &str = unless_refused!("DELETE FROM logins WHERE member = $1 AND");
const SET_SECRET: &str = unless_refused!("UPDATE store SET secret = $1 WHERE");
const SET_MEMBER_SECRET: &str =
    unless_refused!("UPDATE members SET secret = $1 WHERE name = ANY($2::text[]) AND");
const COUNT_CHANGES: &str =
    unless_refused!("UPDATE members_version SET version = version + $1::bigint WHERE");
const COUNT_CHANGE: &str = "UPDATE members_version SET version = version + 1";

/// A login that raced with the end of its token is not valid.
macro_rules! valid_login {
    () => {
        "until > {now} AND EXISTS (SELECT 1 FROM members WHERE members.name = logins.member
            AND members.token = logins.token AND members.revoked IS NULL)"
    };
}

const DELETE_INVALID: &str = concat!("DELETE FROM logins WHERE NOT (", valid_login!(), ")");
const LOGINS: &str = concat!(
    "SELECT id, member, token, until FROM logins WHERE ",
    valid_login!(),
    " ORDER BY number"
);
const DELETE_LOGIN: &str = "DELETE FROM logins WHERE id = $1";
const INSERT_LOGIN: &str = "INSERT INTO logins (id, member, token, until) VALUES ($1, $2, $3, $4)";
const TRIM_LOGINS: &str = "DELETE FROM logins WHERE member = $1 AND number NOT IN
    (SELECT number FROM logins WHERE member = $1 ORDER BY number DESC LIMIT $2)";
const MEMBERS: &str =
    "SELECT name, role, day_micros, week_micros, month_micros, ever_micros, token, prefix,
        added, revoked, may_buy, group_name
    FROM members ORDER BY name";
const WITH_EARLIER_SECRET: &str = "SELECT members.name FROM members, store
    WHERE revoked IS NULL AND members.secret <> store.secret ORDER BY members.name";
/// What depends on the recorded secret. A server does if it uses a secret other than `$other`.
macro_rules! secret_use {
    ($other:literal) => {
        concat!(
            "SELECT secret,
            EXISTS (SELECT 1 FROM members WHERE revoked IS NULL) AS has_members,
            EXISTS (SELECT 1 FROM instances WHERE kind = 'server' AND id <> $1::bigint
                AND secret <> ",
            $other,
            " AND ended IS NULL AND until >= {clock}) AS has_servers
        FROM store"
        )
    };
}

const FINGERPRINT: &str = concat!(
    "SELECT secret FROM (",
    secret_use!("''"),
    ") AS used WHERE secret IS NOT NULL AND (has_members OR has_servers)"
);
const LOCK_STORE: &str = "SELECT 1 FROM store FOR UPDATE";
/// Runs under the lock of the row, so that of two servers that start at once the second sees the
/// first one's secret.
const RECORD_SECRET: &str = concat!(
    "WITH used AS MATERIALIZED (",
    secret_use!("$2::bytea"),
    "), verdict AS MATERIALIZED (
  SELECT has_members,
    secret IS NULL OR secret = $2::bytea OR NOT (has_members OR has_servers) AS is_accepted
  FROM used
), recorded AS (
  UPDATE store SET secret = $2::bytea FROM verdict WHERE is_accepted
), noted AS (
  UPDATE instances SET secret = $2::bytea FROM verdict WHERE is_accepted AND id = $1::bigint
)
SELECT is_accepted, has_members FROM verdict"
);

impl PostgresStore {
    pub(in crate::store) async fn change_members(
        &self,
        by: &Actor,
        fingerprint: Option<Digest>,
        changes: Vec<(Arc<str>, MemberChange)>,
    ) -> Result<Result<(), (Arc<str>, MemberError)>, Unavailable> {
        // No server records its secret before this one is recorded.
        let mut statements = vec![statement!(LOCK_STORE), statement!(LOCK)];
        statements.push(judgement(by, &changes, fingerprint));
        for (name, change) in &changes {
            statements.extend(audit_log::member_change(by, name, change));
            statements.extend(application(name, change));
        }
        if let Some(fingerprint) = fingerprint {
            // Only new tokens come with a fingerprint.
            let names: Vec<_> = changes.iter().map(|(name, _)| name.to_string()).collect();
            statements.push(statement!(SET_SECRET, fingerprint.to_vec()));
            statements.push(statement!(SET_MEMBER_SECRET, fingerprint.to_vec(), names));
        }
        statements.push(statement!(COUNT_CHANGES, signed(changes.len())));
        let rows = self.run(&self.lanes().marks, Step::new(Need::Plain, statements)).await?;
        let row = rows.get(2).and_then(|rows| rows.first());
        let row = row.ok_or_else(|| Unavailable("the database sent no verdict".into()))?;
        let Some(nth) = column::count_or_none(row, 0)? else { return Ok(Ok(())) };
        let error = match column::get::<&str>(row, 1)? {
            "taken" => MemberError::NameTaken,
            "missing" => MemberError::NotFound,
            "group" => MemberError::UnknownGroup,
            "last" => MemberError::LastAdmin,
            "secret" => MemberError::OtherSecret,
            _ => MemberError::Revoked,
        };
        let refused = usize::try_from(nth).ok().and_then(|nth| changes.into_iter().nth(nth));
        let (name, _) = refused.ok_or_else(|| Unavailable("the verdict names no change".into()))?;
        Ok(Err((name, error)))
    }

    pub(in crate::store) async fn members(&self) -> Result<Vec<Member>, Unavailable> {
        self.query(&self.lanes().reads, statement!(MEMBERS), member).await
    }

    pub(in crate::store) async fn members_with_earlier_secret(
        &self,
    ) -> Result<Vec<Arc<str>>, Unavailable> {
        let find = statement!(WITH_EARLIER_SECRET);
        self.query(&self.lanes().reads, find, |row| column::text(row, 0)).await
    }

    pub(in crate::store) async fn log_in(&self, session: &LoginSession) -> Result<(), Unavailable> {
        let LoginSession { id, member, token, expires_at } = session;
        let member = member.to_string();
        let most = signed(MAX_LOGINS_PER_MEMBER);
        self.change_logins(vec![
            statement!(DELETE_INVALID),
            statement!(DELETE_LOGIN, id.to_vec()),
            statement!(
                INSERT_LOGIN,
                id.to_vec(),
                member.clone(),
                token.to_vec(),
                nanos(*expires_at)
            ),
            statement!(TRIM_LOGINS, member, most),
        ])
        .await
        .map(drop)
    }

    pub(in crate::store) async fn log_out(&self, id: Digest) -> Result<(), Unavailable> {
        self.change_logins(vec![statement!(DELETE_LOGIN, id.to_vec())]).await.map(drop)
    }

    /// Returns the rows of each change.
    pub(super) async fn change_logins(
        &self,
        changes: Vec<Statement>,
    ) -> Result<StepRows, Unavailable> {
        let mut statements = vec![statement!(LOCK)];
        statements.extend(changes);
        statements.push(statement!(COUNT_CHANGE));
        let mut rows = self.run(&self.lanes().marks, Step::new(Need::Plain, statements)).await?;
        Ok(rows.split_off(1))
    }

    pub(in crate::store) async fn sessions(&self) -> Result<Vec<LoginSession>, Unavailable> {
        self.query(&self.lanes().reads, statement!(LOGINS), |row| {
            Ok(LoginSession {
                id: column::digest(row, 0)?,
                member: column::text(row, 1)?,
                token: column::digest(row, 2)?,
                expires_at: column::moment(row, 3)?,
            })
        })
        .await
    }

    pub(in crate::store) async fn token_secret_fingerprint(
        &self,
    ) -> Result<Option<Digest>, Unavailable> {
        let read = |row: &Row| column::digest(row, 0);
        let find = statement!(FINGERPRINT, self.shared().number());
        self.query_one(&self.lanes().reads, find, read).await
    }

    pub(in crate::store) async fn record_secret(
        &self,
        fingerprint: Digest,
    ) -> Result<SecretRecord, Unavailable> {
        let record = statement!(RECORD_SECRET, self.shared().number(), fingerprint.to_vec());
        let step = Step::new(Need::Plain, vec![statement!(LOCK_STORE), record]);
        let rows = self.run(&self.lanes().marks, step).await?;
        let row = rows.get(1).and_then(|rows| rows.first());
        let row = row.ok_or_else(|| Unavailable("the database sent no verdict".into()))?;
        Ok(match (column::get(row, 0)?, column::get(row, 1)?) {
            (true, _) => SecretRecord::Accepted,
            (false, true) => SecretRecord::OtherOfMembers,
            (false, false) => SecretRecord::OtherOfServers,
        })
    }

    /// Waits for no earlier step: every change is in the database when its caller goes on.
    pub(in crate::store) async fn members_version(&self) -> Result<u64, Unavailable> {
        let read = Step::plain(statement!("SELECT version FROM members_version"));
        let rows = self.run(&self.lanes().reads, read).await?;
        let version = rows.iter().flatten().next().map(|row| column::count(row, 0)).transpose()?;
        Ok(version.unwrap_or_default())
    }
}

fn judgement(
    by: &Actor,
    changes: &[(Arc<str>, MemberChange)],
    fingerprint: Option<Digest>,
) -> Statement {
    let kind = |change: &MemberChange| match change {
        MemberChange::Add(_) => "add",
        MemberChange::Revoke => "revoke",
        MemberChange::Update { .. }
        | MemberChange::Rotate(..)
        | MemberChange::Extra(_)
        | MemberChange::EndExtras => "change",
    };
    let revokes = |change: &MemberChange| match change {
        MemberChange::Add(member) => member.revoked_at.is_some(),
        MemberChange::Revoke => true,
        MemberChange::Update { .. }
        | MemberChange::Rotate(..)
        | MemberChange::Extra(_)
        | MemberChange::EndExtras => false,
    };
    statement!(
        JUDGE,
        (0..).take(changes.len()).collect::<Vec<i64>>(),
        changes.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>(),
        changes.iter().map(|(_, change)| kind(change)).collect::<Vec<_>>(),
        changes.iter().map(|(_, change)| revokes(change)).collect::<Vec<_>>(),
        changes
            .iter()
            .map(|(_, change)| change.group().map(|name| name.to_string()))
            .collect::<Vec<_>>(),
        changes.iter().map(|(_, change)| by.is_caller() && change.ends_admin()).collect::<Vec<_>>(),
        fingerprint.map(|fingerprint| fingerprint.to_vec()),
    )
}

/// Returns the statements that make a change, unless one was refused.
fn application(name: &str, change: &MemberChange) -> Vec<Statement> {
    let amount = |amount: Option<Usd>| amount.map(|amount| signed(amount.as_micros()));
    match change {
        MemberChange::Add(member) => vec![statement!(
            ADD,
            member.name.to_string(),
            member.role.name(),
            amount(member.own_budget.day),
            amount(member.own_budget.week),
            amount(member.own_budget.month),
            amount(member.own_budget.ever),
            member.token.to_vec(),
            member.prefix.to_string(),
            nanos(member.added_at),
            member.revoked_at.map(nanos),
            member.may_buy.as_ref().map(Selection::to_string),
            member.group.as_deref().map(str::to_owned),
        )],
        MemberChange::Revoke => {
            vec![statement!(REVOKE, name.to_owned()), statement!(END_LOGINS, name.to_owned())]
        }
        MemberChange::Update { role, budget, group, may_buy } => {
            let role = role.map(|role| statement!(SET_ROLE, name.to_owned(), role.name()));
            let (sets, amounts) = column::limit_change(*budget);
            let own = [statement!(SET_BUDGET, name.to_owned(), sets, amounts)];
            let may_buy = may_buy.as_ref().map(|rule| {
                let names = rule.as_ref().map(Selection::to_string);
                statement!(SET_MAY_BUY, name.to_owned(), names)
            });
            let group = group.as_ref().map(|group| {
                statement!(SET_GROUP, name.to_owned(), group.as_deref().map(str::to_owned))
            });
            role.into_iter().chain(own).chain(group).chain(may_buy).collect()
        }
        MemberChange::Rotate(token, prefix) => vec![
            statement!(ROTATE, name.to_owned(), token.to_vec(), prefix.to_string()),
            statement!(END_LOGINS, name.to_owned()),
        ],
        MemberChange::Extra(extra) => {
            let micros = signed(extra.amount.as_micros());
            vec![statement!(ADD_EXTRA, caller(name), micros, nanos(extra.until))]
        }
        MemberChange::EndExtras => vec![statement!(END_EXTRAS, caller(name))],
    }
}

/// Returns the name of the member as a caller.
fn caller(name: &str) -> String {
    Caller::Member(name.into()).to_string()
}

fn member(row: &Row) -> Read<Member> {
    Ok(Member {
        name: column::text(row, 0)?,
        role: column::named(row, 1, &Role::ALL, Role::name)?,
        own_budget: column::limit(row, 2)?,
        group: column::get::<Option<&str>>(row, 11)?.map(Arc::from),
        token: column::digest(row, 6)?,
        prefix: column::text(row, 7)?,
        added_at: column::moment(row, 8)?,
        revoked_at: column::moment_or_none(row, 9)?,
        may_buy: column::get::<Option<&str>>(row, 10)?.map(Selection::parse),
    })
}
