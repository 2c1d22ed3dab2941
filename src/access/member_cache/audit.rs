//! Logs what commands changed in the list of members.

use std::collections::HashMap;

use tracing::info;

use super::MemberList;
use crate::ledger::{Member, Period, Selection};

pub(super) fn log_changes(old: &MemberList, new: &MemberList) {
    let (before, after) = (by_name(old), by_name(new));
    for (member, now) in &after {
        let role = now.role.name();
        let [day, week, month, ever] =
            Period::ALL.map(|period| now.own_budget.get(period).map(|amount| amount.to_string()));
        let may_buy = now.may_buy.as_ref().map(Selection::to_string);
        let group = now.group.as_deref();
        let terms = |member: &Member| {
            (member.role, member.own_budget, member.group.clone(), member.may_buy.clone())
        };
        match before.get(member) {
            None => info!(member, role, group, day, week, month, ever, may_buy, "member added"),
            Some(was) => {
                if terms(was) != terms(now) {
                    info!(member, role, group, day, week, month, ever, may_buy, "member updated");
                }
                if was.token != now.token {
                    info!(member, "member token rotated");
                }
            }
        }
    }
    for member in before.keys().filter(|name| !after.contains_key(*name)) {
        info!(member, "member revoked");
    }
}

fn by_name(list: &MemberList) -> HashMap<&str, &Member> {
    list.tokens.values().map(|entry| (&*entry.member.name, &entry.member)).collect()
}
