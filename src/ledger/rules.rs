//! The ledger's rules as pure functions: which purchase is a duplicate, whether the budgets cover a
//! price, and what counts as spent.

use std::ops::Range;
use std::time::Duration;

use super::{
    CreditWatermark, DuplicateCheck, OverBudget, PeriodSpend, PurchaseId, PurchaseState,
    RemainingCredit, ReserveError, ScopeKind, Settlement, Unavailable,
};
use crate::clock::Date;
use crate::gateway::contract::money::{Period, SpendLimit, Thresholds, Usd};

/// The largest amount that SQLite's signed integers can hold.
pub(super) const MAX_AMOUNT: Usd = Usd::micros(i64::MAX as u64);

/// A balance older than this refuses nothing. It is refreshed every few minutes.
const MAX_BALANCE_AGE: Duration = Duration::from_secs(15 * 60);

/// How far ahead of the clock a recorded day may lie. Time zones, leap seconds and a corrected
/// clock explain no more.
const MAX_CLOCK_SKEW_DAYS: u64 = 2;

/// How long a key outlives its reply: a clock that is ahead for a moment must not have it bought again.
pub(super) const KEY_RETENTION: Duration = Duration::from_secs(365 * 86_400);

/// Whether a charged purchase's reply is no longer kept.
pub(super) fn is_reply_expired(
    state: PurchaseState,
    keep_until: Option<Duration>,
    now: Duration,
) -> bool {
    state == PurchaseState::Charged && keep_until.is_none_or(|until| until <= now)
}

/// Whether a charged purchase gives up its key.
pub(super) fn is_key_expired(
    state: PurchaseState,
    keep_until: Option<Duration>,
    now: Duration,
) -> bool {
    is_reply_expired(state, keep_until, now.saturating_sub(KEY_RETENTION))
}

/// Returns whether a new purchase with the fingerprint of an ended one is its duplicate, because the
/// caller may not have seen the reply. One that is still running has duplicates unless they are separate.
pub(super) fn is_duplicate(
    duplicate: &DuplicateCheck,
    id: PurchaseId,
    (state, ended, is_delivered): (PurchaseState, Duration, bool),
    last_refusal: Option<Duration>,
) -> bool {
    state == PurchaseState::Unknown
        || !duplicate.separate_from.contains(&id)
            && (!is_delivered || last_refusal.is_some_and(|refused| ended >= refused))
}

/// The limits of a scope, and what it has spent in each limited period.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScopeBudget {
    pub(super) scope: ScopeKind,
    pub(super) limit: SpendLimit,
    pub(super) spent: PeriodSpend,
}

impl ScopeBudget {
    /// A scope that the purchase does not count in.
    pub(super) fn absent(scope: ScopeKind) -> Self {
        Self { scope, limit: SpendLimit::NONE, spent: PeriodSpend::default() }
    }
}

/// Fails with the exceeded budget that renews last, if any.
pub(super) fn check_budgets(scopes: &[ScopeBudget], price: Usd) -> Result<(), ReserveError> {
    let over = Period::ALL.iter().rev().flat_map(|&period| {
        scopes.iter().filter_map(move |scope| {
            let (budget, spent) = (scope.limit.get(period)?, scope.spent.get(period));
            let fits = checked_sum(spent, price).is_some_and(|sum| sum <= budget);
            let remaining = budget.saturating_sub(spent);
            let (renews_at, scope) = (scope.spent.renews_at(period), scope.scope);
            (!fits).then_some(OverBudget { scope, period, budget, remaining, renews_at })
        })
    });
    let renews = |over: &OverBudget| (over.renews_at.is_none(), over.renews_at);
    if let Some(last) =
        over.reduce(|last, next| if renews(&next) > renews(&last) { next } else { last })
    {
        return Err(ReserveError::OverBudget(last));
    }
    let is_countable = |scope: &ScopeBudget| {
        Period::ALL.iter().all(|&period| checked_sum(scope.spent.get(period), price).is_some())
    };
    if !scopes.iter().all(is_countable) {
        return Err(Unavailable("the amount is too large to be counted".into()).into());
    }
    Ok(())
}

/// A budget whose spending has reached a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crossing {
    pub(super) scope: ScopeKind,
    pub(super) period: Period,
    pub(super) percent: u8,
    pub(super) limit: Usd,
    /// With the purchase.
    pub(super) spent: Usd,
}

/// Returns the thresholds that are reached with a purchase of this price. `scopes` do not include it
/// yet. An earlier purchase may have reached them: the store reports each once.
pub(super) fn crossings(
    scopes: &[ScopeBudget],
    price: Usd,
    thresholds: Thresholds,
) -> impl Iterator<Item = Crossing> {
    let budgets = scopes.iter().flat_map(|scope| {
        scope
            .limit
            .rows()
            .map(|(period, limit)| (scope.scope, period, limit, scope.spent.get(period)))
    });
    budgets.flat_map(move |(scope, period, limit, before)| {
        thresholds.iter().filter_map(move |percent| {
            let threshold = u128::from(limit.as_micros()) * u128::from(percent);
            let reaches = |spent: Usd| u128::from(spent.as_micros()) * 100 >= threshold;
            let spent = checked_sum(before, price)?;
            reaches(spent).then_some(Crossing { scope, period, percent, limit, spent })
        })
    })
}

pub(super) fn checked_sum(spent: Usd, amount: Usd) -> Option<Usd> {
    spent.checked_add(amount).filter(|sum| *sum <= MAX_AMOUNT)
}

/// Returns the state after a settlement, and what then counts as spent, or `None` if nothing
/// changes.
pub(super) fn settle(
    state: PurchaseState,
    price: Usd,
    settlement: &Settlement,
) -> Option<(PurchaseState, Usd)> {
    let (end, spent) = match settlement {
        Settlement::Charged { cost, .. } => (PurchaseState::Charged, *cost),
        Settlement::Released => (PurchaseState::Released, Usd::ZERO),
        Settlement::Unknown => (PurchaseState::Unknown, price),
    };
    let changes = match state {
        PurchaseState::Held | PurchaseState::Sent => true,
        PurchaseState::Unknown => end != PurchaseState::Unknown,
        PurchaseState::Charged | PurchaseState::Released => false,
    };
    changes.then_some((end, spent))
}

/// The part of spending that the account's balance covers.
///
/// Invariant: sales never exceed the balance. A price that was held while the gateway was asked
/// counts as missing from its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credit {
    pub(super) held: u64,
    /// The sum spent since the server started. It also serves as the watermark.
    pub(super) spent: u64,
    pub(super) known: Option<KnownBalance>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownBalance {
    pub(super) balance: Usd,
    /// The sum spent when this balance certainly included it.
    pub(super) since: CreditWatermark,
    pub(super) as_of: Duration,
}

impl Credit {
    pub(super) fn watermark(&self) -> CreditWatermark {
        CreditWatermark(self.spent)
    }

    pub(super) fn remaining(&self) -> Option<RemainingCredit> {
        let KnownBalance { balance, since, as_of } = self.known?;
        let gone = self.spent.saturating_sub(since.0).saturating_add(self.held);
        Some(RemainingCredit { amount: balance.saturating_sub(Usd::micros(gone)), as_of })
    }

    /// Holds a price, unless the balance above `floor` does not cover it. An old balance never
    /// blocks a sale: the gateway refuses by itself.
    pub(super) fn hold(
        &mut self,
        price: Usd,
        floor: Usd,
        now: Duration,
    ) -> Result<(), ReserveError> {
        let is_short = |left: RemainingCredit| {
            let is_fresh = now.saturating_sub(left.as_of) <= MAX_BALANCE_AGE;
            is_fresh && price.checked_add(floor).is_none_or(|sum| left.amount < sum)
        };
        if self.remaining().is_some_and(is_short) {
            return Err(ReserveError::InsufficientCredit);
        }
        self.held = self.held.saturating_add(price.as_micros());
        Ok(())
    }

    pub(super) fn settle(&mut self, price: Usd, amount: Usd) {
        self.held = self.held.saturating_sub(price.as_micros());
        self.spent = self.spent.saturating_add(amount.as_micros());
    }

    /// Records a balance that was requested at `mark`, unless a newer one is known.
    pub(super) fn record_balance(
        &mut self,
        watermark: CreditWatermark,
        balance: Usd,
        as_of: Duration,
    ) {
        if self.known.is_none_or(|known| known.since <= watermark) {
            self.known = Some(KnownBalance { balance, since: watermark, as_of });
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Today {
    /// Days since 1970-01-01.
    pub(super) day: u64,
    /// Months since January of the year 0.
    pub(super) month: u64,
}

impl Today {
    /// Returns the day of a wall-clock time, but never a day before `latest_day`, so that a clock
    /// that jumps back does not reopen an earlier period. A day that is not
    /// [plausible](latest_plausible_day) is ignored.
    pub(super) fn at(wall: Duration, latest_day: Option<u64>) -> Self {
        let latest_day = latest_day.filter(|day| *day <= latest_plausible_day(wall));
        Self::on(Date::at(wall).days().max(latest_day.unwrap_or(0)))
    }

    fn on(day: u64) -> Self {
        let date = Date::from_days(day);
        Self { day, month: date.year * 12 + date.month - 1 }
    }

    /// Returns the days of the week, Monday first. 1970-01-01 was a Thursday.
    pub(super) fn week(self) -> Range<u64> {
        let next_monday = self.day + 7 - (self.day + 3) % 7;
        next_monday.saturating_sub(7)..next_monday
    }

    /// Returns what was spent today and in its periods, each of which `sum` returns.
    pub(super) fn spend<E>(
        self,
        mut sum: impl FnMut(Period) -> Result<Usd, E>,
    ) -> Result<PeriodSpend, E> {
        Ok(PeriodSpend {
            day: sum(Period::Day)?,
            week: sum(Period::Week)?,
            month: sum(Period::Month)?,
            ever: sum(Period::Ever)?,
            day_renews_at: Date::from_days(self.day + 1).start(),
            week_renews_at: Date::from_days(self.week().end).start(),
            month_renews_at: Date::from_days(self.day).next_month().start(),
        })
    }

    /// Returns the number that tells a period from the others of its kind; zero for the only one.
    pub(super) fn number(self, period: Period) -> u64 {
        match period {
            Period::Day => self.day,
            Period::Week => self.week().start,
            Period::Month => self.month,
            Period::Ever => 0,
        }
    }
}

/// Returns the last day that purchases can have counted in, if the clock is right at `wall`.
pub(super) fn latest_plausible_day(wall: Duration) -> u64 {
    Date::at(wall).days().saturating_add(MAX_CLOCK_SKEW_DAYS)
}

#[cfg(test)]
mod tests;
