//! Combines the gateway's counters with the evidence of the ledger.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::{
    CENT, ChatCount, Drift, Proof, REFUNDS_WITHIN, SETTLES_WITHIN, Undecided, Verdict, micros, usd,
};
use crate::contract::catalog::UNSTATED_CHAT;
use crate::contract::money::Usd;
use crate::store::{Checkpoint, Evidence, JobState, PurchaseId, PurchaseState, Service, Snapshot};

/// The most expensive chat of the price list, in micro-dollars: an upper bound for others' chats.
const MAX_CHAT_PRICE: i128 = 6_000;
/// The cheapest one: a lower bound for a chat without a stated price.
const MIN_CHAT_PRICE: i128 = 3_000;

/// How a purchase contributes to the counters since the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contribution {
    Never,
    Certain,
    Possible,
    /// Its price, 0, or less: it may have been charged before the checkpoint, and refunded since.
    PossibleOrRefund,
    /// 0, or less.
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
        let mut case = Self {
            before,
            now,
            evidence,
            chats: delta(now.chats, then.chats),
            chat_cents: delta(now.chat_cents, then.chat_cents),
            spent_cents: delta(now.spent_cents, then.spent_cents),
            release_blocked: None,
        };
        let unexplained = delta(now.balance_cents, then.balance_cents) + case.spent_cents;
        case.release_blocked = if case.clock_went_back(read_at) {
            Some(Undecided::ClockSetBack)
        } else if case.contradicts() {
            Some(Undecided::Contradiction)
        } else if unexplained.abs() > 1 {
            // Both figures are rounded, so a difference of one cent means nothing.
            Some(Undecided::BalanceChange(unexplained))
        } else {
            None
        };
        case
    }

    fn since(&self) -> impl Iterator<Item = &'a Evidence> {
        let number = self.before.last_number;
        self.evidence.iter().filter(move |entry| entry.number > number)
    }

    /// Returns whether our clock visibly went back since the checkpoint.
    fn clock_went_back(&self, read_at: Duration) -> bool {
        let mut latest = self.before.snapshot.at;
        let goes_back = self.since().any(|entry| {
            let at = std::mem::replace(&mut latest, entry.purchase.at);
            entry.purchase.at < at
        });
        let is_later = |entry: &Evidence| {
            entry.purchase.at > read_at
                || entry.purchase.ended_at.is_some_and(|ended| ended > read_at)
        };
        goes_back
            || self.now.at < self.before.snapshot.at
            || read_at < self.now.at
            || self.evidence.iter().any(is_later)
    }

    pub(super) fn counter_decreased(&self) -> bool {
        self.chats < 0 || self.chat_cents < 0
    }

    /// Returns whether no explanation fits the counters, whatever others spend.
    fn contradicts(&self) -> bool {
        let (count, low, high) = self.certain_chats();
        let others = (self.chats - count).max(0);
        let chats = self.chat_cents * CENT;
        let videos = self.sum(&[Contribution::Certain], Service::Video);
        self.chats < count
            || chats + CENT <= low
            || chats - CENT >= high + others * self.max_chat_price()
            || self.spent_cents * CENT + CENT <= low + videos - self.possible_refunds()
    }

    /// Returns the number of certain chats, and their lowest and highest cost.
    fn certain_chats(&self) -> (i128, i128, i128) {
        let chats = self.entries(&[Contribution::Certain], Service::Chat);
        chats.fold((0, 0, 0), |(count, low, high), entry| {
            let price = micros(entry.purchase.price);
            let least = if entry.purchase.model == UNSTATED_CHAT { MIN_CHAT_PRICE } else { price };
            (count + 1, low + least.min(price), high + price)
        })
    }

    fn max_chat_price(&self) -> i128 {
        let ours = self.evidence.iter().filter(|entry| entry.purchase.service == Service::Chat);
        ours.map(|entry| micros(entry.purchase.price)).fold(MAX_CHAT_PRICE, i128::max)
    }

    fn possible_refunds(&self) -> i128 {
        self.sum(&[Contribution::PossibleOrRefund, Contribution::Refund], Service::Video)
    }

    fn entries<'b>(
        &'b self,
        ways: &'b [Contribution],
        service: Service,
    ) -> impl Iterator<Item = &'a Evidence> + 'b {
        let counts = move |entry: &&Evidence| {
            entry.purchase.service == service && ways.contains(&self.contribution(entry))
        };
        self.evidence.iter().filter(counts)
    }

    fn sum(&self, ways: &[Contribution], service: Service) -> i128 {
        self.entries(ways, service).map(|entry| micros(entry.purchase.price)).sum()
    }

    fn contribution(&self, entry: &Evidence) -> Contribution {
        let row = &entry.purchase;
        let is_video = row.service == Service::Video;
        let is_refundable = is_video
            && match row.state {
                PurchaseState::Charged => entry.job != Some(JobState::Finished),
                PurchaseState::Unknown | PurchaseState::Held | PurchaseState::Sent => true,
                PurchaseState::Released => false,
            };
        if row.state == PurchaseState::Released {
            Contribution::Never
        } else if entry.number <= self.before.settled_through {
            let may_come = self.before.snapshot.at.saturating_sub(REFUNDS_WITHIN);
            // Charged videos are in the evidence only if they may be refunded.
            let is_late = row.state == PurchaseState::Charged
                || row.ended_at.is_none_or(|end| end > may_come);
            if is_refundable && is_late { Contribution::Refund } else { Contribution::Never }
        } else if entry.number <= self.before.last_number {
            if is_refundable { Contribution::PossibleOrRefund } else { Contribution::Possible }
        } else {
            // The cost of a `gateway.passthrough` endpoint is not known.
            let is_sure = row.state == PurchaseState::Charged
                && row.service != Service::Other
                && !is_refundable
                && !entry.is_assumed
                && entry.is_account_confirmed
                && !self.is_recent(entry);
            if is_sure { Contribution::Certain } else { Contribution::Possible }
        }
    }

    fn is_recent(&self, entry: &Evidence) -> bool {
        let age = |ended| self.now.at.saturating_sub(ended);
        entry.purchase.ended_at.is_none_or(|ended| age(ended) < SETTLES_WITHIN)
    }

    pub(super) fn chats(&self, verdict: &mut Verdict) {
        let unknown = self.unknown(Service::Chat);
        let (charged, _, _) = self.certain_chats();
        let doubtful = self.entries(&[Contribution::Possible], Service::Chat).count();
        let count = ChatCount {
            counted: u64::try_from(self.chats).unwrap_or_default(),
            charged: u64::try_from(charged).unwrap_or_default(),
            possible: doubtful as u64,
        };
        let proof = Proof::Count(count);
        // Others' chats only raise the count, so a chat that is not counted was not charged.
        match self.chats - charged {
            0 => self.release(verdict, &unknown, proof),
            rest if rest == i128::from(count.possible) => verdict.charge(&unknown, proof),
            rest => match u64::try_from(rest).ok().filter(|charged| *charged < count.possible) {
                Some(charged) => {
                    verdict.leave_undecided(
                        &unknown,
                        Undecided::Ambiguous { charged, of: count.possible },
                    );
                }
                None => verdict.leave_undecided(&unknown, Undecided::Miscounted(count)),
            },
        }
    }

    pub(super) fn videos(&self, verdict: &mut Verdict) {
        let (_, chats, _) = self.certain_chats();
        let sure = self.sum(&[Contribution::Certain], Service::Video);
        // The possible videos cost less than this. A more expensive one was not charged.
        let below = self.spent_cents * CENT + CENT - chats - sure + self.possible_refunds();
        let mut alike: BTreeMap<i128, Vec<&Evidence>> = BTreeMap::new();
        for entry in self.unknown(Service::Video) {
            alike.entry(micros(entry.purchase.price)).or_default().push(entry);
        }
        let kinds = self.possible_videos();
        let choice = self.video_combination(&kinds, sure);
        for (price, rows) in alike {
            let proof = Proof::Spending(usd(below - CENT));
            // How many of this price were charged, if nobody else uses the account.
            let kind = kinds.iter().position(|(kind, _)| *kind == price);
            let charged = choice
                .as_ref()
                .map(|chosen| kind.and_then(|kind| Some((*chosen.get(kind)?, kinds.get(kind)?.1))));
            match charged {
                Ok(Some((charged, of))) if charged == of => verdict.charge(&rows, proof),
                _ if price >= below => self.release(verdict, &rows, proof),
                Ok(Some((0, _))) => verdict.leave_undecided(&rows, Undecided::ProbablyFree),
                Ok(Some((charged, of))) => {
                    verdict.leave_undecided(&rows, Undecided::Ambiguous { charged, of })
                }
                Ok(None) => verdict.leave_undecided(&rows, Undecided::NoCombination),
                Err(doubt) => verdict.leave_undecided(&rows, *doubt),
            }
        }
    }

    fn possible_videos(&self) -> Vec<(i128, u64)> {
        let mut kinds: BTreeMap<i128, u64> = BTreeMap::new();
        for (way, times) in [
            (Contribution::Possible, 1),
            (Contribution::PossibleOrRefund, 2),
            (Contribution::Refund, 1),
        ] {
            for entry in self.entries(&[way], Service::Video) {
                *kinds.entry(micros(entry.purchase.price)).or_default() += times;
            }
        }
        kinds.into_iter().collect()
    }

    /// Returns how many of each price were charged, if nobody else uses the account and only one
    /// combination fits.
    fn video_combination(&self, kinds: &[(i128, u64)], sure: i128) -> Result<Vec<u64>, Undecided> {
        let slack = self.sum(&[Contribution::Possible], Service::Other);
        // The gateway's total for chats may or may not include recent ones.
        let chats = self.sum(&[Contribution::Possible], Service::Chat);
        let left = (self.spent_cents - self.chat_cents) * CENT - sure + self.possible_refunds();
        only_combination(kinds, left - 2 * CENT - slack - chats, left + 2 * CENT + chats)
    }

    pub(super) fn unknown(&self, service: Service) -> Vec<&'a Evidence> {
        let wanted = |entry: &&Evidence| {
            let row = &entry.purchase;
            row.state == PurchaseState::Unknown
                && row.service == service
                && entry.is_account_confirmed
        };
        self.since().filter(wanted).collect()
    }

    fn release(&self, verdict: &mut Verdict, rows: &[&Evidence], proof: Proof) {
        for entry in rows {
            match self.release_blocked {
                Some(doubt) => verdict.leave_undecided(&[entry], doubt),
                None if self.is_recent(entry) => {
                    verdict.leave_undecided(&[entry], Undecided::TooRecent)
                }
                None => verdict.settle(entry, None, proof),
            }
        }
    }

    /// Adds the remaining drift, and whether a later run may decide more.
    pub(super) fn finish(&self, verdict: Verdict) -> Verdict {
        let sum = |rows: &mut dyn Iterator<Item = Usd>| usd(rows.map(micros).sum());
        let undecided: HashSet<PurchaseId> = verdict.undecided.iter().map(|(id, _)| *id).collect();
        let booked = self.since().filter(|entry| entry.purchase.state == PurchaseState::Charged);
        let charged = verdict.settled.iter().filter_map(|settled| settled.charged);
        let is_open = |entry: &&Evidence| {
            undecided.contains(&entry.purchase.id) || entry.purchase.ended_at.is_none()
        };
        let drift = Drift {
            charged: sum(&mut booked.map(|entry| entry.purchase.price).chain(charged)),
            unknown: sum(&mut self.since().filter(is_open).map(|entry| entry.purchase.price)),
            spent: (self.spent_cents >= 0).then(|| usd(self.spent_cents * CENT)),
        };
        let can_be_told = |(_, doubt): &(PurchaseId, Undecided)| {
            !matches!(
                doubt,
                Undecided::BeforeCheckpoint(_)
                    | Undecided::Uncounted
                    | Undecided::UnconfirmedAccount
            )
        };
        let is_final = !verdict.undecided.iter().any(can_be_told)
            || !self.evidence.iter().any(|entry| self.may_become_certain(entry));
        Verdict { drift, is_final, ..verdict }
    }

    /// Returns whether the passage of time may make this one certain.
    fn may_become_certain(&self, entry: &Evidence) -> bool {
        let is_open = entry.purchase.service == Service::Video
            && entry.purchase.state == PurchaseState::Charged
            && entry.job == Some(JobState::Open)
            && self.now.at.saturating_sub(entry.purchase.at) < REFUNDS_WITHIN;
        let may_count = entry.purchase.state != PurchaseState::Released && self.is_recent(entry);
        entry.number > self.before.settled_through && (is_open || may_count)
    }
}

const MAX_TRIES: u32 = 100_000;

/// Returns the only combination (a number of each price) whose sum lies between two exclusive
/// bounds.
fn only_combination(
    kinds: &[(i128, u64)],
    above: i128,
    below: i128,
) -> Result<Vec<u64>, Undecided> {
    let mut search = Search { kinds, found: Vec::new(), tries: MAX_TRIES };
    search.extend(&mut Vec::new(), above, below);
    match (search.tries, search.found.pop()) {
        (0, _) => Err(Undecided::ManyCombinations),
        (_, None) => Err(Undecided::NoCombination),
        (_, Some(chosen)) if search.found.is_empty() => Ok(chosen),
        (_, Some(_)) => Err(Undecided::ManyCombinations),
    }
}

struct Search<'a> {
    kinds: &'a [(i128, u64)],
    found: Vec<Vec<u64>>,
    tries: u32,
}

impl Search<'_> {
    fn extend(&mut self, chosen: &mut Vec<u64>, above: i128, below: i128) {
        let Some(&(price, there)) = self.kinds.get(chosen.len()) else {
            if above < 0 && 0 < below {
                self.found.push(chosen.clone());
            }
            return;
        };
        let others = self.kinds.iter().skip(chosen.len() + 1);
        let most_of_others: i128 = others.map(|(price, there)| price * i128::from(*there)).sum();
        for number in 0..=there {
            let taken = price * i128::from(number);
            if taken >= below || self.found.len() > 1 || self.tries == 0 {
                return;
            }
            if taken + most_of_others <= above {
                continue;
            }
            self.tries -= 1;
            chosen.push(number);
            self.extend(chosen, above - taken, below - taken);
            chosen.pop();
        }
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
                only_combination(kinds, above, below),
                expected,
                "{kinds:?} in {above}..{below}"
            );
        }
    }
}
