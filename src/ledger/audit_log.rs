//! The audit log: who changed members, groups and budgets. Each act is written in its transaction.
//!
//! Invariant: an entry has neither a token nor a hash, only the prefix that reports show, too.

use std::sync::Arc;
use std::time::Duration;

use super::{Caller, Extra, Member, SubjectToken};
use crate::clock::Date;
use crate::gateway::contract::terms::{TERMS, amount_text, budget_text};

/// The person or program that makes a change, as the audit log names it.
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
    /// The action, such as `member.budget`.
    pub act: Arc<str>,
    /// The subject of the action, such as `member:ann`.
    pub of: Arc<str>,
    /// `None` if there was no value.
    pub old: Option<Arc<str>>,
    pub new: Option<Arc<str>>,
}

/// The entries to read.
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
pub(super) const CREATE_LINK: &str = "link.create";
pub(super) const REVOKE_LINK: &str = "link.revoke";
/// A limit was raised for a time; without a value, all that raised it was ended.
pub(super) const RAISE_MEMBER: &str = "member.extra";
/// A purchase whose outcome was unknown was settled by hand.
pub(super) const RESOLVE_PURCHASE: &str = "purchase.resolve";
pub(super) const GRANT: &str = "request.grant";
pub(super) const DECLINE: &str = "request.decline";

/// Returns the values of a member that can change, each with the act that changes it.
pub(super) fn fields(member: &Member) -> impl Iterator<Item = (String, Option<String>)> {
    let terms = TERMS
        .iter()
        .map(|term| (format!("member.{}", term.name), (term.value)(&member.terms).shown()));
    terms.chain([("token.rotate".to_owned(), Some(member.prefix.to_string()))])
}

/// Describes a user's token, such as `laptop (tg_abc123), through 2026-11-30, budget 5.00/day`.
pub(super) fn describe_token(token: &SubjectToken) -> String {
    let SubjectToken { name, prefix, budget, expires_at, .. } = token;
    let budget =
        if budget.is_none() { String::new() } else { format!(", budget {}", budget_text(*budget)) };
    format!("{name} ({prefix}), through {}{budget}", Date::before(*expires_at))
}

/// Formats an extra such as `2.50 through 2026-11-30`.
pub(super) fn extra_text(extra: Extra) -> String {
    format!("{} through {}", amount_text(extra.amount), extra.last_day())
}
