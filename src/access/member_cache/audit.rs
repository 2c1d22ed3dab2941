//! Logs what commands changed in the list of members.

use std::collections::HashMap;

use tracing::info;

use super::MemberList;
use crate::ledger::Member;

pub(super) fn log_changes(old: &MemberList, new: &MemberList) {
    let (before, after) = (by_name(old), by_name(new));
    for (member, now) in &after {
        let terms = &now.terms;
        match before.get(member) {
            None => info!(member, %terms, "member added"),
            Some(was) => {
                if was.terms != *terms {
                    info!(member, %terms, "member updated");
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
