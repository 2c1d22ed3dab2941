//! Decides whether budgets cover a toll, and how a purchase's end changes what counts as spent.

use super::period::Today;
use super::{Ending, Limit, Limits, OverBudget, Refused, Spent, State, Unavailable};
use crate::contract::money::Usd;

/// What every backend can count up to: SQLite's integers are signed.
const LARGEST: Usd = Usd::micros(i64::MAX as u64);

/// Nothing if every limit leaves room for the toll; else the limit that renews last.
pub(super) fn cover(
    limits: &Limits,
    total: Spent,
    caller: Spent,
    toll: Usd,
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
        let fits = add(spent, toll).is_some_and(|sum| sum <= budget);
        (!fits).then(|| OverBudget { limit, budget, left: budget.saturating_sub(spent), renews })
    });
    if let Some(last) =
        over.reduce(|last, next| if next.renews > last.renews { next } else { last })
    {
        return Err(Refused::OverBudget(last));
    }
    match counters.iter().all(|&(_, _, spent, _)| add(spent, toll).is_some()) {
        true => Ok(()),
        false => Err(Unavailable("the amount is too large to be counted".into()).into()),
    }
}

/// The sum, or `None` where no backend could count it.
pub(super) fn add(spent: Usd, amount: Usd) -> Option<Usd> {
    spent.checked_add(amount).filter(|sum| *sum <= LARGEST)
}

/// A counter after one purchase in it has changed its amount.
pub(super) fn change(counter: Usd, before: Usd, after: Usd) -> Result<Usd, Unavailable> {
    counter
        .checked_sub(before)
        .and_then(|others| add(others, after))
        .ok_or_else(|| Unavailable("the amount cannot be counted".into()))
}

/// Where an ending leads from a state; `None` where it changes nothing.
pub(super) fn end(state: State, ending: &Ending) -> Option<State> {
    let end = match ending {
        Ending::Posted { .. } => State::Posted,
        Ending::Voided => State::Voided,
        Ending::Unknown => State::Unknown,
    };
    match state {
        State::Reserved | State::Sent => Some(end),
        State::Unknown => (end != State::Unknown).then_some(end),
        State::Posted | State::Voided => None,
    }
}

/// What a purchase counts for, once it has ended so.
pub(super) fn amount(toll: Usd, ending: &Ending) -> Usd {
    match ending {
        Ending::Posted { cost, .. } => *cost,
        Ending::Voided => Usd::ZERO,
        Ending::Unknown => toll,
    }
}
