//! The audit log.

use super::column::{self, changed_limit, nanos, signed};
use super::handle::PostgresStore;
use super::schema::has_members;
use super::step::{Statement, statement};
use crate::store::audit_log::{
    self, ADD_GROUP, ADD_MEMBER, CHANGE_GROUP, MemberField, NewValue, RAISE_MEMBER, REMOVE_GROUP,
    REVOKE_MEMBER,
};
use crate::store::{Actor, AuditEntry, AuditQuery, Caller, GroupChange, MemberChange, Unavailable};

const READ: &str = "SELECT number, at, by, act, of, old, new FROM audit
    WHERE ($1::bigint IS NULL OR number < $1) AND at >= $2 ORDER BY number DESC LIMIT $3";

/// Writes an act, on a condition.
macro_rules! write_act {
    ($old:expr, $new:expr, $from:expr) => {
        concat!(
            "INSERT INTO audit (at, by, act, of, old, new)
            SELECT {now}, $1::text, $2::text, $3::text, ",
            $old,
            ", ",
            $new,
            $from
        )
    };
}

/// Holds unless the changes of members in this transaction were refused.
macro_rules! unless_refused {
    () => {
        " current_setting('tollgate.refusal') = ''"
    };
}

/// Writes a value of a member that a change replaces by another one.
macro_rules! write_field {
    ($old:expr) => {
        write_act!(
            $old,
            "$4::text",
            concat!(
                " FROM members WHERE name = $5 AND (",
                $old,
                ") IS DISTINCT FROM $4::text AND",
                unless_refused!()
            )
        )
    };
}

/// Formats limits as the log shows them: `5.00/day 50.00/month`.
macro_rules! budget_text {
    ($day:expr, $week:expr, $month:expr, $ever:expr) => {
        concat!(
            "nullif(concat_ws(' ', ",
            budget_text!($day, "day"),
            ", ",
            budget_text!($week, "week"),
            ", ",
            budget_text!($month, "month"),
            ", ",
            budget_text!($ever, "ever"),
            "), '')"
        )
    };
    ($micros:expr, $period:literal) => {
        concat!(
            "to_char((",
            $micros,
            ") / 1000000.0, 'FM9999999999990.009999') || '/",
            $period,
            "'"
        )
    };
}

macro_rules! budget {
    () => {
        budget_text!("day_micros", "week_micros", "month_micros", "ever_micros")
    };
}

/// The budget after a change, whose values are `$4` and `$5`.
macro_rules! changed_budget {
    () => {
        budget_text!(
            changed_limit!("1", "day_micros", "$4", "$5"),
            changed_limit!("2", "week_micros", "$4", "$5"),
            changed_limit!("3", "month_micros", "$4", "$5"),
            changed_limit!("4", "ever_micros", "$4", "$5")
        )
    };
}

/// Writes a budget that a change replaces by another one.
macro_rules! write_budget {
    ($from:expr) => {
        write_act!(
            budget!(),
            changed_budget!(),
            concat!($from, " AND ", budget!(), " IS DISTINCT FROM ", changed_budget!())
        )
    };
}

/// A change of groups that is refused changes nothing, so nothing is written.
const WRITE_ADDED_GROUP: &str =
    write_act!("NULL", "$4::text", " WHERE NOT EXISTS (SELECT 1 FROM groups WHERE name = $5)");
const WRITE_GROUP_BUDGET: &str = write_budget!(" FROM groups WHERE name = $6");
const WRITE_REMOVED_GROUP: &str = write_act!(
    budget!(),
    "NULL",
    concat!(" FROM groups WHERE name = $4 AND NOT ", has_members!("$4"))
);
const WRITE: &str = write_act!("NULL", "$4::text", concat!(" WHERE", unless_refused!()));
const WRITE_REVOKED: &str = write_act!(
    "NULL",
    "NULL",
    concat!(" FROM members WHERE name = $4 AND revoked IS NULL AND", unless_refused!())
);
const WRITE_ENDED_EXTRAS: &str = write_act!(
    "NULL",
    "NULL",
    concat!(
        " WHERE EXISTS (SELECT 1 FROM extras WHERE caller = $3 AND until > {now}) AND",
        unless_refused!()
    )
);
const WRITE_ROLE: &str = write_field!("role");
const WRITE_BUDGET: &str =
    write_budget!(concat!(" FROM members WHERE name = $6 AND", unless_refused!()));
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
        MemberChange::Extra(extra) => {
            vec![statement!(WRITE, by, RAISE_MEMBER, of, audit_log::extra_text(*extra))]
        }
        MemberChange::EndExtras => vec![statement!(WRITE_ENDED_EXTRAS, by, RAISE_MEMBER, of)],
        MemberChange::Update { .. } | MemberChange::Rotate(..) => {
            let fields = audit_log::changed_fields(change).into_iter();
            fields.map(|field| field_change((&by, &of), name, field)).collect()
        }
    }
}

fn field_change(
    (by, of): (&str, &str),
    name: &str,
    (field, new): (MemberField, NewValue),
) -> Statement {
    let sql = match field {
        MemberField::Role => WRITE_ROLE,
        MemberField::Budget => WRITE_BUDGET,
        MemberField::Group => WRITE_GROUP,
        MemberField::MayBuy => WRITE_MAY_BUY,
        MemberField::Token => WRITE_TOKEN,
    };
    let (by, act, of, name) = (by.to_owned(), field.act(), of.to_owned(), name.to_owned());
    match new {
        NewValue::Text(new) => statement!(sql, by, act, of, new, name),
        NewValue::Budget(change) => {
            let (sets, amounts) = column::limit_change(change);
            statement!(sql, by, act, of, sets, amounts, name)
        }
    }
}

/// Returns the statement that writes what a change does to a group. It runs before the change.
pub(super) fn group_change(by: &Actor, name: &str, change: GroupChange) -> Statement {
    let (by, of, name) = (by.name().to_owned(), audit_log::group(name), name.to_owned());
    match change {
        GroupChange::Add(limit) => {
            statement!(WRITE_ADDED_GROUP, by, ADD_GROUP, of, audit_log::budget_text(limit), name)
        }
        GroupChange::Update(change) => {
            let (sets, amounts) = column::limit_change(change);
            statement!(WRITE_GROUP_BUDGET, by, CHANGE_GROUP, of, sets, amounts, name)
        }
        GroupChange::Remove => statement!(WRITE_REMOVED_GROUP, by, REMOVE_GROUP, of, name),
    }
}
