//! Budgets: limits and spending by scope and period.

use std::sync::Arc;
use std::time::Duration;

use super::model::named_enum;
use super::{Caller, Unavailable};
use crate::clock::Date;
use crate::gateway::contract::money::{Period, SpendLimit, Thresholds, Usd};
use crate::gateway::contract::terms::LimitChange;

/// The limits of spending per period, and from the balance. The ledger itself keeps the limits of groups,
/// and what [raises](Extra) a caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// The limits of all callers together.
    pub total: SpendLimit,
    pub caller: SpendLimit,
    pub token: SpendLimit,
    pub balance_floor: Usd,
    /// The shares of each budget that are reported: `budget.threshold` names the purchase that reaches one.
    pub thresholds: Thresholds,
}

impl Budgets {
    /// Returns the budgets of a caller: the stricter of each limit. A link is worth its own amount.
    pub fn of(self, caller: &Caller, own: SpendLimit) -> Self {
        let is_link = matches!(caller, Caller::Link(_));
        let caller = if is_link { own } else { self.caller.stricter(own) };
        Self { caller, ..self }
    }
}

/// Raises each limit of a caller until a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    pub amount: Usd,
    pub until: Duration,
}

impl Extra {
    /// Returns an extra that ends with this UTC day.
    pub fn through(amount: Usd, last_day: Date) -> Self {
        Self { amount, until: Date::from_days(last_day.days() + 1).start() }
    }

    /// Returns the last UTC day on which it is in force.
    pub fn last_day(self) -> Date {
        Date::before(self.until)
    }
}

/// The record of a scope's limits in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptLimit {
    /// The limits of a group.
    pub limit: SpendLimit,
    /// A caller's raises: the sum of those in force, until the first of them ends.
    pub extra: Option<Extra>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BudgetScope {
    Total,
    Group(String),
    Caller(String),
    Token(String),
}

impl BudgetScope {
    pub const fn kind(&self) -> ScopeKind {
        match self {
            Self::Total => ScopeKind::Total,
            Self::Group(_) => ScopeKind::Group,
            Self::Caller(_) => ScopeKind::Caller,
            Self::Token(_) => ScopeKind::Token,
        }
    }

    /// Returns the name of what it is the budget of; empty for all callers.
    pub fn name(&self) -> &str {
        match self {
            Self::Total => "",
            Self::Group(name) | Self::Caller(name) | Self::Token(name) => name,
        }
    }
}

named_enum! {
    pub enum ScopeKind {
        Total = "total",
        Group = "group",
        Caller = "caller",
        Token = "token",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// If several are exceeded, the one that renews last.
    pub scope: ScopeKind,
    pub period: Period,
    pub budget: Usd,
    pub remaining: Usd,
    /// `None` for a budget that never renews.
    pub renews_at: Option<Duration>,
}

/// The spending of a scope in the current periods: charged, held and unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeriodSpend {
    pub day: Usd,
    pub week: Usd,
    pub month: Usd,
    pub ever: Usd,
    pub day_renews_at: Duration,
    pub week_renews_at: Duration,
    pub month_renews_at: Duration,
}

impl PeriodSpend {
    pub const fn get(&self, period: Period) -> Usd {
        match period {
            Period::Day => self.day,
            Period::Week => self.week,
            Period::Month => self.month,
            Period::Ever => self.ever,
        }
    }

    /// Returns when a budget of this period renews; `None` is never.
    pub const fn renews_at(&self, period: Period) -> Option<Duration> {
        match period {
            Period::Day => Some(self.day_renews_at),
            Period::Week => Some(self.week_renews_at),
            Period::Month => Some(self.month_renews_at),
            Period::Ever => None,
        }
    }
}

/// Callers that share a budget in addition to their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: Arc<str>,
    pub budget: SpendLimit,
    /// The members that are not revoked.
    pub members: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChange {
    Add(SpendLimit),
    Update(LimitChange),
    Remove,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum GroupError {
    #[error("there is already a group with this name")]
    NameTaken,
    #[error("there is no group with this name")]
    NotFound,
    #[error("the group has members")]
    HasMembers,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl GroupChange {
    /// Returns the limits of the group after the change; `None` if it is gone.
    pub(super) fn apply(
        self,
        before: Option<SpendLimit>,
        has_members: bool,
    ) -> Result<Option<SpendLimit>, GroupError> {
        match (self, before) {
            (Self::Add(_), Some(_)) => Err(GroupError::NameTaken),
            (Self::Add(limit), None) => Ok(Some(limit)),
            (Self::Update(_) | Self::Remove, None) => Err(GroupError::NotFound),
            (Self::Update(change), Some(before)) => Ok(Some(change.apply(before))),
            (Self::Remove, Some(_)) if has_members => Err(GroupError::HasMembers),
            (Self::Remove, Some(_)) => Ok(None),
        }
    }

    /// Returns its name in the audit log.
    pub(super) const fn act(self) -> &'static str {
        match self {
            Self::Add(_) => "group.add",
            Self::Update(_) => "group.budget",
            Self::Remove => "group.remove",
        }
    }
}

/// A request for more budget. Each caller has one at most: a second one replaces the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRequest {
    /// Never used again.
    pub id: u64,
    pub caller: Arc<str>,
    pub amount: Usd,
    pub reason: Arc<str>,
    pub at: Duration,
}
