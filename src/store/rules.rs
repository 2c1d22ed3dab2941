//! The rules of the ledger as pure functions over values: which purchase is a repeat, whether budgets
//! cover a price, and how a purchase's end changes what counts as spent. Every backend judges by them.

use std::time::Duration;

use super::{
    CreditMark, DuplicateCheck, Ending, Identity, Left, Limit, Limits, OverBudget, Refused, Spent,
    State, Unavailable,
};
use crate::clock::{self, Date};
use crate::contract::money::Usd;

/// What every backend can count up to: SQLite's integers are signed.
const MAX_AMOUNT: Usd = Usd::micros(i64::MAX as u64);

/// A balance that was learnt so long ago refuses nothing any more; it is asked for every few minutes.
const STALE: Duration = Duration::from_secs(15 * 60);

/// How many days a counted day may lie ahead of the clock and still be believed: time zones, leap
/// seconds and a clock that was set back explain no more.
const MAX_DAYS_AHEAD: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Expired,
    OtherPayload,
    Repeat,
}

pub(super) fn by_key(
    earlier: (State, Option<Duration>),
    payloads: (&Identity, &Identity),
    now: Duration,
) -> Key {
    let (state, keep_until) = earlier;
    if is_expired(state, keep_until, now) {
        Key::Expired
    } else if payloads.0 != payloads.1 {
        Key::OtherPayload
    } else {
        Key::Repeat
    }
}

/// Whether a charged purchase's reply and key are no longer kept.
pub(super) fn is_expired(state: State, keep_until: Option<Duration>, now: Duration) -> bool {
    state == State::Charged && keep_until.is_none_or(|until| until <= now)
}

/// Whether a purchase with this fingerprint repeats one that ended at `ended`, in its window: its caller
/// may not have seen the reply. One that is running is always repeated.
pub(super) fn is_repeat(
    duplicate: &DuplicateCheck,
    (state, ended, is_delivered): (State, Duration, bool),
) -> bool {
    state == State::Unknown
        || !is_delivered
        || duplicate.delivered_since.is_some_and(|since| ended >= since)
}

/// Nothing if every limit leaves room for the price; else the limit that renews last.
pub(super) fn cover(
    limits: &Limits,
    total: Spent,
    caller: Spent,
    price: Usd,
    today: Today,
) -> Result<(), Refused> {
    let (day, month) = (today.day_ends(), today.month_ends());
    let counters = [
        (Limit::TotalMonth, limits.total_month, total.month, month),
        (Limit::CallerMonth, limits.caller_month, caller.month, month),
        (Limit::TotalDay, limits.total_day, total.day, day),
        (Limit::CallerDay, limits.caller_day, caller.day, day),
    ];
    let over = counters.iter().filter_map(|&(limit, budget, spent, renews)| {
        let budget = budget?;
        let fits = add(spent, price).is_some_and(|sum| sum <= budget);
        (!fits).then(|| OverBudget { limit, budget, left: budget.saturating_sub(spent), renews })
    });
    if let Some(last) =
        over.reduce(|last, next| if next.renews > last.renews { next } else { last })
    {
        return Err(Refused::OverBudget(last));
    }
    if counters.iter().any(|&(_, _, spent, _)| add(spent, price).is_none()) {
        return Err(Unavailable("the amount is too large to be counted".into()).into());
    }
    Ok(())
}

/// The sum, or `None` if no backend could count it.
pub(super) fn add(spent: Usd, amount: Usd) -> Option<Usd> {
    spent.checked_add(amount).filter(|sum| *sum <= MAX_AMOUNT)
}

/// Where an ending leads from a state; `None` if it changes nothing.
pub(super) fn end(state: State, ending: &Ending) -> Option<State> {
    let end = match ending {
        Ending::Charged { .. } => State::Charged,
        Ending::Released => State::Released,
        Ending::Unknown => State::Unknown,
    };
    match state {
        State::Held | State::Sent => Some(end),
        State::Unknown => (end != State::Unknown).then_some(end),
        State::Charged | State::Released => None,
    }
}

pub(super) fn amount(price: Usd, ending: &Ending) -> Usd {
    match ending {
        Ending::Charged { cost, .. } => *cost,
        Ending::Released => Usd::ZERO,
        Ending::Unknown => price,
    }
}

/// What the account's balance covers.
///
/// Invariant: what is sold against a balance is never more than what it covers. A price that was held
/// while the gateway was asked counts as not yet in its answer, whichever way round it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credit {
    /// Prices of what is under way, in micro-dollars.
    pub(super) held: u64,
    /// All that was spent since the server started: it also tells moments apart.
    pub(super) spent: u64,
    pub(super) known: Option<KnownBalance>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownBalance {
    pub(super) balance: Usd,
    /// What had been spent when it was certainly in this balance.
    pub(super) since: CreditMark,
    pub(super) as_of: Duration,
}

impl Credit {
    pub(super) fn mark(&self) -> CreditMark {
        CreditMark(self.spent)
    }

    pub(super) fn left(&self) -> Option<Left> {
        let KnownBalance { balance, since, as_of } = self.known?;
        let gone = self.spent.saturating_sub(since.0).saturating_add(self.held);
        Some(Left { amount: balance.saturating_sub(Usd::micros(gone)), as_of })
    }

    /// Holds a price, unless what is left above `floor` does not cover it. A gateway that has not told its
    /// balance for long never blocks sales: it refuses by itself.
    pub(super) fn hold(&mut self, price: Usd, floor: Usd, now: Duration) -> Result<(), Refused> {
        let is_short = |left: Left| {
            let is_fresh = now.saturating_sub(left.as_of) <= STALE;
            is_fresh && price.checked_add(floor).is_none_or(|sum| left.amount < sum)
        };
        if self.left().is_some_and(is_short) {
            return Err(Refused::InsufficientCredit);
        }
        self.held = self.held.saturating_add(price.as_micros());
        Ok(())
    }

    /// A purchase that was held at `price` ended, and counts for `amount`.
    pub(super) fn settle(&mut self, price: Usd, amount: Usd) {
        self.held = self.held.saturating_sub(price.as_micros());
        self.spent = self.spent.saturating_add(amount.as_micros());
    }

    /// The gateway answered a question that was asked at `mark`. An answer that is older than what is known
    /// says nothing new.
    pub(super) fn learn(&mut self, mark: CreditMark, balance: Usd, as_of: Duration) {
        if self.known.is_none_or(|known| known.since <= mark) {
            self.known = Some(KnownBalance { balance, since: mark, as_of });
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
    /// The day at a wall-clock time, but never one before the latest day that anything counted in: a
    /// clock that jumps back opens no period that was left behind. A latest day that is not
    /// [believed](last_believed_day) is left out: it was counted under a clock that was ahead.
    pub(super) fn at(wall: Duration, latest_day: Option<u64>) -> Self {
        let latest_day = latest_day.filter(|day| *day <= last_believed_day(wall));
        Self::on(Date::at(wall).days().max(latest_day.unwrap_or(0)))
    }

    fn on(day: u64) -> Self {
        let date = Date::on(day);
        Self { day, month: date.year * 12 + date.month - 1 }
    }

    pub(super) fn day_ends(self) -> Duration {
        Date::on(self.day + 1).begins()
    }

    pub(super) fn month_ends(self) -> Duration {
        Date::on(self.day).next_month().begins()
    }
}

/// The last day that purchases can have counted in if the clock is right at `wall`.
pub(super) fn last_believed_day(wall: Duration) -> u64 {
    Date::at(wall).days().saturating_add(MAX_DAYS_AHEAD)
}

/// Logs that purchases were counted in a day that cannot have come yet.
pub(super) fn warn_of_day_ahead(day: u64, wall: Duration) {
    let ledger_day = clock::iso8601(Date::on(day).begins());
    let clock_day = clock::iso8601(Date::at(wall).begins());
    tracing::warn!(
        %ledger_day,
        %clock_day,
        "ledger day ahead of clock ignored; budgets count in the clock's day"
    );
}

#[cfg(test)]
mod tests;
