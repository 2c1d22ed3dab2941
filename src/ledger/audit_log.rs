//! The audit log: who changed members, groups and budgets. Each act is written in its transaction.
//!
//! Invariant: an entry has neither a token nor a hash, only the prefix that reports show, too.

use std::sync::Arc;
use std::time::Duration;

use super::{Caller, Extra, Member, MemberChange, Selection, SpendLimit, SubjectToken};
use crate::clock::Date;
use crate::contract::member::LimitChange;
use crate::contract::money::Usd;

/// Who changes something, as the audit log names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: Arc<str>,
    is_caller: bool,
}

impl Actor {
    /// Returns the user of a shell.
    pub fn command_line(user: &str, host: &str) -> Self {
        Self { name: format!("command line ({user}@{host})").into(), is_caller: false }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it came with a request, and not from a shell of the server.
    pub(super) fn is_caller(&self) -> bool {
        self.is_caller
    }
}

impl From<&Caller> for Actor {
    fn from(caller: &Caller) -> Self {
        Self { name: caller.name(), is_caller: true }
    }
}

/// One act, or one of several values that it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Later entries have higher numbers.
    pub id: u64,
    pub at: Duration,
    pub by: Arc<str>,
    /// What was done, such as `member.budget`.
    pub act: Arc<str>,
    /// Whom or what it concerns, such as `member:ann`.
    pub of: Arc<str>,
    /// `None` if there was no value.
    pub old: Option<Arc<str>>,
    pub new: Option<Arc<str>>,
}

/// Which entries to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only entries with lower numbers.
    pub before: Option<u64>,
    pub since: Duration,
    pub most: usize,
}

pub(super) const ADD_MEMBER: &str = "member.add";
pub(super) const REVOKE_MEMBER: &str = "member.revoke";
pub(super) const REVOKE_SUBJECT: &str = "subject.revoke";
/// A user made, or revoked, a token for programs.
pub(super) const ADD_TOKEN: &str = "token.add";
pub(super) const REVOKE_TOKEN: &str = "token.revoke";
/// A limit was raised for a time; without a value, all that raised it was ended.
pub(super) const RAISE_MEMBER: &str = "member.extra";
/// A purchase whose outcome was unknown was settled by hand.
pub(super) const RESOLVE_PURCHASE: &str = "purchase.resolve";
pub(super) const ADD_GROUP: &str = "group.add";
pub(super) const CHANGE_GROUP: &str = "group.budget";
pub(super) const REMOVE_GROUP: &str = "group.remove";

/// Names a group as the log does.
pub(super) fn group(name: &str) -> String {
    format!("group:{name}")
}

/// A value of a member that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberField {
    Role,
    Budget,
    Group,
    MayBuy,
    Token,
}

impl MemberField {
    const DESCRIBED: [Self; 4] = [Self::Role, Self::Budget, Self::Group, Self::MayBuy];

    /// Returns the name of the act that changes it.
    pub(super) const fn act(self) -> &'static str {
        match self {
            Self::Role => "member.role",
            Self::Budget => "member.budget",
            Self::Group => "member.group",
            Self::MayBuy => "member.may_buy",
            Self::Token => "token.rotate",
        }
    }

    /// Returns the value as the log shows it.
    pub(super) fn text(self, member: &Member) -> Option<String> {
        match self {
            Self::Role => Some(member.role.name().to_owned()),
            Self::Budget => budget_text(member.own_budget),
            Self::Group => member.group.as_deref().map(str::to_owned),
            Self::MayBuy => member.may_buy.as_ref().map(Selection::to_string),
            Self::Token => Some(member.prefix.to_string()),
        }
    }
}

/// The value that a change gives a field.
pub(super) enum NewValue {
    Text(Option<String>),
    /// The value depends on the one before.
    Budget(LimitChange),
}

/// Returns the fields that a change sets, and their new values.
pub(super) fn changed_fields(change: &MemberChange) -> Vec<(MemberField, NewValue)> {
    use NewValue::{Budget, Text};
    match change {
        MemberChange::Add(_)
        | MemberChange::Revoke
        | MemberChange::Extra(_)
        | MemberChange::EndExtras => Vec::new(),
        MemberChange::Rotate(_, prefix) => {
            vec![(MemberField::Token, Text(Some(prefix.to_string())))]
        }
        MemberChange::Update { role, budget, group, may_buy } => {
            let role = role.map(|role| (MemberField::Role, Text(Some(role.name().to_owned()))));
            let group = group.as_ref().map(|group| group.as_deref().map(str::to_owned));
            let group = group.map(|group| (MemberField::Group, Text(group)));
            let rule = may_buy.as_ref().map(|rule| rule.as_ref().map(Selection::to_string));
            let rule = rule.map(|rule| (MemberField::MayBuy, Text(rule)));
            let budget = [(MemberField::Budget, Budget(*budget))];
            role.into_iter().chain(budget).chain(group).chain(rule).collect()
        }
    }
}

/// Describes a new member, such as `role member, budget 5.00/day`.
pub(super) fn describe(member: &Member) -> String {
    let word = |field: MemberField| field.act().trim_start_matches("member.").replace('_', " ");
    let text = |field: MemberField| Some(format!("{} {}", word(field), field.text(member)?));
    MemberField::DESCRIBED.into_iter().filter_map(text).collect::<Vec<_>>().join(", ")
}

/// Describes a user's token, such as `laptop (tg_abc123), through 2026-11-30, budget 5.00/day`.
pub(super) fn describe_token(token: &SubjectToken) -> String {
    let SubjectToken { name, prefix, budget, expires_at, .. } = token;
    let budget = budget_text(*budget).map(|text| format!(", budget {text}"));
    let last_day = Date::before(*expires_at);
    format!("{name} ({prefix}), through {last_day}{}", budget.unwrap_or_default())
}

/// Formats an extra such as `2.50 through 2026-11-30`.
pub(super) fn extra_text(extra: Extra) -> String {
    format!("{} through {}", amount_text(extra.amount), extra.last_day())
}

/// Formats limits such as `5.00/day 50.00/month`; `None` without one.
pub(super) fn budget_text(limit: SpendLimit) -> Option<String> {
    let texts =
        limit.rows().map(|(period, amount)| format!("{}/{}", amount_text(amount), period.name()));
    let texts: Vec<_> = texts.collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

/// Formats an amount such as `5.00`.
pub(super) fn amount_text(amount: Usd) -> String {
    amount.short().trim_start_matches('$').to_owned()
}
