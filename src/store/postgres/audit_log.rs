//! The audit log.

use super::column::{self, nanos, signed};
use super::handle::PostgresStore;
use super::step::{Statement, statement};
use crate::store::audit_log::{self, ADD_MEMBER, MemberField, REVOKE_MEMBER};
use crate::store::{Actor, AuditEntry, AuditQuery, Caller, MemberChange, Unavailable};

const READ: &str = "SELECT number, at, by, act, of, old, new FROM audit
    WHERE ($1::bigint IS NULL OR number < $1) AND at >= $2 ORDER BY number DESC LIMIT $3";

/// Writes an act, unless the changes of its transaction were refused.
macro_rules! write_act {
    ($old:expr, $new:literal, $from:expr) => {
        concat!(
            "INSERT INTO audit (at, by, act, of, old, new)
            SELECT {now}, $1::text, $2::text, $3::text, ",
            $old,
            ", ",
            $new,
            $from,
            " current_setting('tollgate.refusal') = ''"
        )
    };
}

/// Writes a value of a member that a change replaces by another one.
macro_rules! write_field {
    ($old:expr) => {
        write_act!(
            $old,
            "$4::text",
            concat!(" FROM members WHERE name = $5 AND (", $old, ") IS DISTINCT FROM $4::text AND")
        )
    };
}

/// Formats an amount as the log shows it: `5.00/day`.
macro_rules! amount {
    ($period:literal) => {
        concat!(
            "to_char(",
            $period,
            "_micros / 1000000.0, 'FM9999999999990.009999') || '/",
            $period,
            "'"
        )
    };
}

macro_rules! budget {
    () => {
        concat!(
            "nullif(concat_ws(' ', ",
            amount!("day"),
            ", ",
            amount!("week"),
            ", ",
            amount!("month"),
            ", ",
            amount!("ever"),
            "), '')"
        )
    };
}

const WRITE: &str = write_act!("NULL", "$4::text", " WHERE");
const WRITE_REVOKED: &str =
    write_act!("NULL", "NULL", " FROM members WHERE name = $4 AND revoked IS NULL AND");
const WRITE_ROLE: &str = write_field!("role");
const WRITE_BUDGET: &str = write_field!(budget!());
const WRITE_GROUP: &str = write_field!("group_name");
const WRITE_MAY_BUY: &str = write_field!("may_buy");
const WRITE_TOKEN: &str = write_field!("prefix");

impl PostgresStore {
    pub(in crate::store) async fn audit_log(
        &self,
        AuditQuery { before, since, most }: AuditQuery,
    ) -> Result<Vec<AuditEntry>, Unavailable> {
        let read = statement!(READ, before.map(signed), nanos(since), signed(most));
        self.query(&self.lanes().reports, read, |row| {
            Ok(AuditEntry {
                id: column::count(row, 0)?,
                at: column::moment(row, 1)?,
                by: column::text(row, 2)?,
                act: column::text(row, 3)?,
                of: column::text(row, 4)?,
                old: column::text_or_none(row, 5)?,
                new: column::text_or_none(row, 6)?,
            })
        })
        .await
    }
}

/// Returns the statements that write what a change does to a member. They run before it is applied.
pub(super) fn member_change(by: &Actor, name: &str, change: &MemberChange) -> Vec<Statement> {
    let of = Caller::Member(name.into()).to_string();
    let by = by.name().to_owned();
    match change {
        MemberChange::Add(member) => {
            vec![statement!(WRITE, by, ADD_MEMBER, of, audit_log::describe(member))]
        }
        MemberChange::Revoke => {
            vec![statement!(WRITE_REVOKED, by, REVOKE_MEMBER, of, name.to_owned())]
        }
        MemberChange::Update { .. } | MemberChange::Rotate(..) => {
            let fields = audit_log::changed_fields(change).into_iter();
            let write = |(field, new): (MemberField, Option<String>)| {
                let sql = match field {
                    MemberField::Role => WRITE_ROLE,
                    MemberField::Budget => WRITE_BUDGET,
                    MemberField::Group => WRITE_GROUP,
                    MemberField::MayBuy => WRITE_MAY_BUY,
                    MemberField::Token => WRITE_TOKEN,
                };
                statement!(sql, by.clone(), field.act(), of.clone(), new, name.to_owned())
            };
            fields.map(write).collect()
        }
    }
}
