//! Combines the gateway's counters with the evidence of the ledger.

use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::time::Duration;

use super::{
    CENT, ChatCount, Drift, Proof, REFUNDS_WITHIN, SETTLES_WITHIN, Undecided, Verdict, micros, usd,
};
use crate::gateway::contract::catalog::UNSTATED_CHAT;
use crate::gateway::contract::money::SignedUsd;
use crate::ledger::{Checkpoint, Evidence, JobState, PurchaseId, PurchaseState, Service, Snapshot};

/// The most expensive chat of the price list, in micro-dollars: an upper bound for others' chats.
const MAX_CHAT_PRICE: i128 = 6_000;
/// The cheapest one: a lower bound for a chat without a stated price.
const MIN_CHAT_PRICE: i128 = 3_000;

/// The amount that a purchase may have added to the gateway's counters since the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contribution {
    Nothing,
    /// Its price, as far as that is stated.
    Price,
    /// Zero or its price.
    Possible,
    /// Zero, its price, or a refund of it: it may have been charged before the checkpoint.
    PossibleOrRefund,
    /// Zero, or a refund of its price.
    Refund,
}

pub(super) struct Case<'a> {
    before: &'a Checkpoint,
    now: &'a Snapshot,
    evidence: &'a [Evidence],
    chats: i128,
    chat_cents: i128,
    spent_cents: i128,
    /// Why nothing may be released, if so.
    release_blocked: Option<Undecided>,
}

impl<'a> Case<'a> {
    pub(super) fn new(
        before: &'a Checkpoint,
        now: &'a Snapshot,
        evidence: &'a [Evidence],
        read_at: Duration,
    ) -> Self {
        let then = &before.snapshot;
        let delta = |now: u64, then: u64| i128::from(now) - i128::from(then);
        let (chats, chat_cents) =
            (delta(now.chats, then.chats), delta(now.chat_cents, then.chat_cents));
        let spent_cents = delta(now.spent_cents, then.spent_cents);
        let release_blocked = None;
        let mut case =
            Self { before, now, evidence, chats, chat_cents, spent_cents, release_blocked };
        let balance_change = i128::from(now.balance_cents) - i128::from(then.balance_cents);
        let unexplained = balance_change + spent_cents;
        if case.clock_went_back(read_at) {
            case.release_blocked = Some(Undecided::ClockSetBack);
        } else if case.contradicts() {
            case.release_blocked = Some(Undecided::Contradiction);
        } else if unexplained.abs() > 1 {
            // Both figures are rounded, so a difference of one cent means nothing.
            case.release_blocked = Some(Undecided::BalanceChange(unexplained));
        }
        case
    }

    fn since_checkpoint(&self) -> impl Iterator<Item = &'a Evidence> {
        let number = self.before.last_number;
        self.evidence.iter().filter(move |entry| entry.number > number)
    }

    /// Returns whether our clock visibly went back since the checkpoint.
    fn clock_went_back(&self, read_at: Duration) -> bool {
        let checkpoint = self.before.snapshot.at;
        let starts = self.since_checkpoint().map(|entry| entry.purchase.at);
        let is_future = |Evidence { purchase, .. }: &Evidence| {
            purchase.ended_at.max(Some(purchase.at)) > Some(read_at)
        };
        ![checkpoint, self.now.at, read_at].is_sorted()
            || !iter::once(checkpoint).chain(starts).is_sorted()
            || self.evidence.iter().any(is_future)
    }

    pub(super) fn counter_decreased(&self) -> bool {
        self.chats < 0 || self.chat_cents < 0
    }

    /// Returns whether no explanation fits the counters, whatever others spend.
    fn contradicts(&self) -> bool {
        let (count, low, high) = self.certain_chats();
        let max_price = self.max_chat_price();
        let others = (self.chats - count).max(0);
        let chats = self.chat_cents * CENT;
        let videos = self.sum(&[Contribution::Price], Service::Video);
        self.chats < count
            || chats + CENT <= low
            || chats - CENT >= high + others * max_price
            || self.spent_cents * CENT + CENT <= low + videos - self.possible_refunds()
    }

    /// Returns the number of certain chats, and their lowest and highest cost.
    fn certain_chats(&self) -> (i128, i128, i128) {
        let chats = self.entries(&[Contribution::Price], Service::Chat);
        chats.fold((0, 0, 0), |(count, low, high), entry| {
            (count + 1, low + min_cost(entry), high + micros(entry.purchase.price))
        })
    }

    fn max_chat_price(&self) -> i128 {
        let ours = self.evidence.iter().filter(|entry| entry.purchase.service == Service::Chat);
        ours.map(|entry| micros(entry.purchase.price)).fold(MAX_CHAT_PRICE, i128::max)
    }

    fn possible_refunds(&self) -> i128 {
        self.sum(&[Contribution::PossibleOrRefund, Contribution::Refund], Service::Video)
    }

    fn entries(
        &self,
        contributions: &[Contribution],
        service: Service,
    ) -> impl Iterator<Item = &'a Evidence> {
        self.evidence.iter().filter(move |entry| {
            entry.purchase.service == service && contributions.contains(&self.contribution(entry))
        })
    }

    fn sum(&self, contributions: &[Contribution], service: Service) -> i128 {
        self.entries(contributions, service).map(|entry| micros(entry.purchase.price)).sum()
    }

    fn contribution(&self, entry: &Evidence) -> Contribution {
        let purchase = &entry.purchase;
        let is_charged = purchase.state == PurchaseState::Charged;
        // Until then, the gateway may still take back that the video is finished.
        let is_lasting = is_charged
            && entry.job == Some(JobState::Finished)
            && self.has_lasted(entry, REFUNDS_WITHIN);
        let is_refundable = purchase.service == Service::Video && !is_lasting;
        if purchase.state == PurchaseState::Released {
            Contribution::Nothing
        } else if entry.number <= self.before.settled_through {
            let refunds_since = self.before.snapshot.at.saturating_sub(REFUNDS_WITHIN);
            // Charged videos are in the evidence only if they may be refunded.
            let is_late = is_charged || purchase.ended_at.is_none_or(|end| end > refunds_since);
            if is_refundable && is_late { Contribution::Refund } else { Contribution::Nothing }
        } else if entry.number <= self.before.last_number {
            if is_refundable { Contribution::PossibleOrRefund } else { Contribution::Possible }
        } else {
            // The cost of a `gateway.passthrough` endpoint is not known.
            let is_certain = is_charged
                && purchase.service != Service::Other
                && !is_refundable
                && !entry.is_assumed
                && entry.is_account_confirmed
                && !self.is_recent(entry);
            if is_certain { Contribution::Price } else { Contribution::Possible }
        }
    }

    fn is_recent(&self, entry: &Evidence) -> bool {
        !self.has_lasted(entry, SETTLES_WITHIN)
    }

    /// Returns whether the purchase ended at least so long ago.
    fn has_lasted(&self, entry: &Evidence, time: Duration) -> bool {
        let age = |ended| self.now.at.saturating_sub(ended);
        entry.purchase.ended_at.is_some_and(|ended| age(ended) >= time)
    }

    pub(super) fn decide_chats(&self, verdict: &mut Verdict) {
        let unknown = self.unknown(Service::Chat);
        let (certain, _, _) = self.certain_chats();
        let possible = self.entries(&[Contribution::Possible], Service::Chat).count() as u64;
        let count = ChatCount {
            counted: u64::try_from(self.chats).unwrap_or_default(),
            charged: u64::try_from(certain).unwrap_or_default(),
            possible,
        };
        let proof = Proof::Count(count);
        // Others' chats only raise the count, so a chat that is not counted was not charged.
        let undecided = match u64::try_from(self.chats - certain) {
            Ok(0) => return self.release(verdict, &unknown, proof),
            Ok(charged) if charged == possible => return verdict.charge(&unknown, proof),
            Ok(charged) if charged < possible => Undecided::Ambiguous { charged, of: possible },
            _ => Undecided::Miscounted(count),
        };
        verdict.leave_undecided(&unknown, undecided);
    }

    pub(super) fn decide_videos(&self, verdict: &mut Verdict) {
        let (_, chats, _) = self.certain_chats();
        let certain = self.sum(&[Contribution::Price], Service::Video);
        // The possible videos cost less than this. A more expensive one was not charged.
        let limit = self.spent_cents * CENT + CENT - chats - certain + self.possible_refunds();
        let proof = Proof::Spending(usd(limit - CENT));
        let mut by_price: BTreeMap<i128, Vec<&Evidence>> = BTreeMap::new();
        for entry in self.unknown(Service::Video) {
            by_price.entry(micros(entry.purchase.price)).or_default().push(entry);
        }
        let combination = self.video_combination(certain);
        for (price, entries) in by_price {
            let of_price = combination.as_ref().map_err(|why| *why).and_then(|combination| {
                combination.get(&price).copied().ok_or(Undecided::NoCombination)
            });
            let undecided = match of_price {
                Ok((charged, of)) if charged == of => {
                    verdict.charge(&entries, proof);
                    continue;
                }
                _ if price >= limit => {
                    self.release(verdict, &entries, proof);
                    continue;
                }
                Ok((0, _)) => Undecided::ProbablyFree,
                Ok((charged, of)) => Undecided::Ambiguous { charged, of },
                Err(why) => why,
            };
            verdict.leave_undecided(&entries, undecided);
        }
    }

    /// Returns how many of the possible videos of each price were charged, if nobody else uses the
    /// account and only one combination fits.
    fn video_combination(&self, certain: i128) -> Result<BTreeMap<i128, (u64, u64)>, Undecided> {
        let mut possible: BTreeMap<i128, u64> = BTreeMap::new();
        for (contribution, times) in [
            (Contribution::Possible, 1),
            (Contribution::PossibleOrRefund, 2),
            (Contribution::Refund, 1),
        ] {
            for entry in self.entries(&[contribution], Service::Video) {
                *possible.entry(micros(entry.purchase.price)).or_default() += times;
            }
        }
        let possible: Vec<_> = possible.into_iter().collect();
        let others = self.sum(&[Contribution::Possible], Service::Other);
        // The gateway's total for chats may or may not include recent ones.
        let chats = self.sum(&[Contribution::Possible], Service::Chat);
        let left = (self.spent_cents - self.chat_cents) * CENT - certain + self.possible_refunds();
        let bounds = (left - 2 * CENT - others - chats, left + 2 * CENT + chats);
        let charged = only_combination(&possible, bounds)?;
        let counts = possible.into_iter().zip(charged);
        Ok(counts.map(|((price, of), charged)| (price, (charged, of))).collect())
    }

    pub(super) fn unknown(&self, service: Service) -> Vec<&'a Evidence> {
        let is_wanted = |entry: &&Evidence| {
            entry.purchase.state == PurchaseState::Unknown
                && entry.purchase.service == service
                && entry.is_account_confirmed
        };
        self.since_checkpoint().filter(is_wanted).collect()
    }

    fn release(&self, verdict: &mut Verdict, entries: &[&Evidence], proof: Proof) {
        for entry in entries {
            let too_recent = || self.is_recent(entry).then_some(Undecided::TooRecent);
            match self.release_blocked.or_else(too_recent) {
                Some(why) => verdict.leave_undecided(&[entry], why),
                None => verdict.settle(entry, None, proof),
            }
        }
    }

    /// Adds the drift, and when a later run may decide more.
    pub(super) fn finish(&self, verdict: Verdict) -> Verdict {
        let drift = self.drift(&verdict);
        let open: HashMap<PurchaseId, Undecided> =
            verdict.undecided.iter().filter(|(_, why)| !why.is_final()).copied().collect();
        // A video that is only too recent does not wait until others can no longer be refunded.
        let waits_for_refunds = self.evidence.iter().any(|Evidence { purchase, .. }| {
            purchase.service == Service::Video
                && open.get(&purchase.id).is_some_and(|why| *why != Undecided::TooRecent)
        });
        let certain = |entry| self.certain_after(entry, waits_for_refunds);
        let times = self.evidence.iter().filter_map(certain);
        let retry_after = times.filter(|_| !open.is_empty()).max();
        Verdict { drift, retry_after, ..verdict }
    }

    /// Compares the gateway's total with the least and the most that the purchases may have added
    /// to it. Each of the two snapshots is rounded by less than a cent.
    fn drift(&self, verdict: &Verdict) -> Drift {
        let decided: HashMap<PurchaseId, bool> =
            verdict.settled.iter().map(|entry| (entry.id, entry.charged.is_some())).collect();
        let (mut charged, mut unknown, mut least) = (0, 0, 0);
        for entry in self.evidence {
            let (purchase, price) = (&entry.purchase, micros(entry.purchase.price));
            let decided = decided.get(&purchase.id).copied();
            let contribution = match decided {
                Some(false) => Contribution::Nothing,
                Some(true) | None => self.contribution(entry),
            };
            least += match contribution {
                Contribution::Price => min_cost(entry),
                Contribution::Nothing | Contribution::Possible => 0,
                Contribution::PossibleOrRefund | Contribution::Refund => -price,
            };
            if !matches!(contribution, Contribution::Nothing | Contribution::Refund) {
                let is_charged = purchase.state == PurchaseState::Charged || decided.is_some();
                let began_since = entry.number > self.before.last_number;
                *(if is_charged && began_since { &mut charged } else { &mut unknown }) += price;
            }
        }
        let spent = self.spent_cents * CENT;
        let unexplained = match spent - charged - unknown {
            // The checkpoint may count a purchase as settled that ended later.
            _ if self.release_blocked == Some(Undecided::ClockSetBack) => None,
            more if more >= CENT => Some(more),
            _ if spent > least - CENT => Some(0),
            _ => (spent >= 0).then_some(spent - least),
        };
        Drift {
            charged: usd(charged),
            unknown: usd(unknown),
            spent: SignedUsd::micros(spent),
            unexplained: unexplained.map(SignedUsd::micros),
        }
    }

    /// Returns when this one may be certain, if the passage of time may make it so.
    fn certain_after(&self, entry: &Evidence, waits_for_refunds: bool) -> Option<Duration> {
        let Evidence { purchase, .. } = entry;
        let may_finish = matches!(entry.job, Some(JobState::Open | JobState::Finished));
        let time = if may_finish && waits_for_refunds { REFUNDS_WITHIN } else { SETTLES_WITHIN };
        let may_change = entry.number > self.before.settled_through
            && purchase.state != PurchaseState::Released
            && !self.has_lasted(entry, time);
        may_change.then(|| purchase.ended_at.unwrap_or(self.now.at).saturating_add(time))
    }
}

/// Returns the least that a charged purchase cost.
fn min_cost(Evidence { purchase, .. }: &Evidence) -> i128 {
    let price = micros(purchase.price);
    if purchase.model == UNSTATED_CHAT { price.min(MIN_CHAT_PRICE) } else { price }
}

const MAX_TRIES: u32 = 100_000;

/// Returns the only combination (a number of each price) whose sum lies between two exclusive
/// bounds.
fn only_combination(prices: &[(i128, u64)], bounds: (i128, i128)) -> Result<Vec<u64>, Undecided> {
    let (mut found, mut tries) = (Vec::new(), MAX_TRIES);
    search(prices, bounds, &mut Vec::new(), &mut found, &mut tries);
    match &mut found[..] {
        _ if tries == 0 => Err(Undecided::ManyCombinations),
        [] => Err(Undecided::NoCombination),
        [only] => Ok(std::mem::take(only)),
        _ => Err(Undecided::ManyCombinations),
    }
}

/// Tries each number of the first price, and continues with the other prices.
fn search(
    prices: &[(i128, u64)],
    (above, below): (i128, i128),
    chosen: &mut Vec<u64>,
    found: &mut Vec<Vec<u64>>,
    tries: &mut u32,
) {
    let Some((&(price, available), others)) = prices.split_first() else {
        if above < 0 && 0 < below {
            found.push(chosen.clone());
        }
        return;
    };
    let max_of_others: i128 = others.iter().map(|(price, count)| price * i128::from(*count)).sum();
    for number in 0..=available {
        let sum = price * i128::from(number);
        if sum >= below || found.len() > 1 || *tries == 0 {
            return;
        }
        if sum + max_of_others <= above {
            continue;
        }
        *tries -= 1;
        chosen.push(number);
        search(others, (above - sum, below - sum), chosen, found, tries);
        chosen.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_unique_combination_is_returned() {
        for (kinds, above, below, expected) in [
            (&[][..], -1, 1, Ok(vec![])),
            (&[], 0, 2, Err(Undecided::NoCombination)),
            (&[(3, 2), (5, 2)], 7, 9, Ok(vec![1, 1])),
            (&[(3, 2), (5, 2)], -1, 1, Ok(vec![0, 0])),
            (&[(3, 2), (5, 2)], 15, 17, Ok(vec![2, 2])),
            (&[(3, 2), (5, 2)], 3, 5, Err(Undecided::NoCombination)),
            (&[(3, 2), (5, 2)], 2, 6, Err(Undecided::ManyCombinations)),
            (&[(3, 5), (5, 3)], 14, 16, Err(Undecided::ManyCombinations)),
            (&[(0, 2)], -1, 1, Err(Undecided::ManyCombinations)),
            (&[(3, 2)], -9, -7, Err(Undecided::NoCombination)),
            (&[(3, 2_000_000)], 2_999_999, 3_000_001, Ok(vec![1_000_000])),
            // Too many to be tried.
            (&[(2, 1_000), (2, 1_000), (2, 1_000)], 3_000, 3_002, Err(Undecided::ManyCombinations)),
        ] {
            assert_eq!(
                only_combination(kinds, (above, below)),
                expected,
                "{kinds:?} in {above}..{below}"
            );
        }
    }
}
