//! Logs what commands changed in the list of members.

use std::collections::HashMap;

use tracing::info;

use super::MemberList;
use crate::store::Member;

pub(super) fn log_changes(old: &MemberList, new: &MemberList) {
    let (before, after) = (by_name(old), by_name(new));
    for (member, now) in &after {
        let role = now.role.name();
        let [day, month] = [now.own_budget.day, now.own_budget.month]
            .map(|limit| limit.map(|amount| amount.to_string()));
        match before.get(member) {
            None => info!(member, role, day, month, "member added"),
            Some(was) => {
                if (was.role, was.own_budget) != (now.role, now.own_budget) {
                    info!(member, role, day, month, "member updated");
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
