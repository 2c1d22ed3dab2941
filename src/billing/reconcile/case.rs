//! What the counters and the evidence say together.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sums::Sums;
use super::{
    CENT, Count, Doubt, Draft, Proof, REFUNDS_WITHIN, SETTLES_WITHIN, Settled, micros, usd,
};
use crate::contract::catalog::UNSTATED_CHAT;
use crate::store::{Checkpoint, Evidence, JobState, Service, Snapshot, State};

/// The dearest chat of the price list, in micro-dollars: what somebody else's chat costs at most.
const DEAREST_CHAT: i128 = 6_000;
/// The cheapest one: what a chat without a stated price costs at least.
const CHEAPEST_CHAT: i128 = 3_000;

/// How a purchase counts in what the gateway counted since the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// Not at all.
    Not,
    /// For its price.
    Surely,
    /// For its price, or not at all.
    Perhaps,
    /// For its price, not at all, or less than that: it may have been charged before, and refunded since.
    OrBack,
    /// Not at all, or less than that.
    Back,
}

/// All that a verdict turns on.
pub(super) struct Case<'a> {
    before: &'a Checkpoint,
    now: &'a Snapshot,
    pub(super) evidence: &'a [Evidence],
    chats: i128,
    chat_cents: i128,
    pub(super) spent_cents: i128,
    /// Why nothing may be released, if so.
    hold: Option<Doubt>,
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
            hold: None,
        };
        let unexplained = delta(now.balance_cents, then.balance_cents) + case.spent_cents;
        case.hold = if case.was_set_back(read_at) {
            Some(Doubt::Clock)
        } else if case.contradicts() {
            Some(Doubt::Contradiction)
        } else if unexplained.abs() > 1 {
            // Both figures are rounded: a cent more or less is nothing.
            Some(Doubt::Balance(unexplained))
        } else {
            None
        };
        case
    }

    /// The purchases that the checkpoint counts nothing of.
    pub(super) fn since(&self) -> impl Iterator<Item = &'a Evidence> {
        let number = self.before.number;
        self.evidence.iter().filter(move |entry| entry.number > number)
    }

    /// Whether our clock went back since the checkpoint, as far as that shows.
    fn was_set_back(&self, read_at: Duration) -> bool {
        let mut latest = self.before.snapshot.at;
        let goes_back = self.since().any(|entry| {
            let at = std::mem::replace(&mut latest, entry.row.at);
            entry.row.at < at
        });
        let is_later = |entry: &Evidence| {
            entry.row.at > read_at || entry.row.ended.is_some_and(|ended| ended > read_at)
        };
        goes_back
            || self.now.at < self.before.snapshot.at
            || read_at < self.now.at
            || self.evidence.iter().any(is_later)
    }

    pub(super) fn went_back(&self) -> bool {
        self.chats < 0 || self.chat_cents < 0
    }

    /// Whether no story fits the counters, whatever others spend.
    fn contradicts(&self) -> bool {
        let (count, low, high) = self.sure_chats();
        let others = (self.chats - count).max(0);
        let chats = self.chat_cents * CENT;
        let videos = self.sum(&[Counts::Surely], Service::Video);
        self.chats < count
            || chats + CENT <= low
            || chats - CENT >= high + others * self.dearest_chat()
            || self.spent_cents * CENT + CENT <= low + videos - self.refunds()
    }

    /// The chats that are surely charged: how many, and what they cost at least and at most.
    fn sure_chats(&self) -> (i128, i128, i128) {
        let chats = self.counting(&[Counts::Surely], Service::Chat);
        chats.fold((0, 0, 0), |(count, low, high), entry| {
            let price = micros(entry.row.toll);
            let least = if entry.row.model == UNSTATED_CHAT { CHEAPEST_CHAT } else { price };
            (count + 1, low + least.min(price), high + price)
        })
    }

    fn dearest_chat(&self) -> i128 {
        let ours = self.evidence.iter().filter(|entry| entry.row.service == Service::Chat);
        ours.map(|entry| micros(entry.row.toll)).fold(DEAREST_CHAT, i128::max)
    }

    /// What may have been given back of what the checkpoint counts.
    fn refunds(&self) -> i128 {
        self.sum(&[Counts::OrBack, Counts::Back], Service::Video)
    }

    fn counting<'b>(
        &'b self,
        ways: &'b [Counts],
        service: Service,
    ) -> impl Iterator<Item = &'a Evidence> + 'b {
        let counts = move |entry: &&Evidence| {
            entry.row.service == service && ways.contains(&self.counts(entry))
        };
        self.evidence.iter().filter(counts)
    }

    fn sum(&self, ways: &[Counts], service: Service) -> i128 {
        self.counting(ways, service).map(|entry| micros(entry.row.toll)).sum()
    }

    fn counts(&self, entry: &Evidence) -> Counts {
        let row = &entry.row;
        let is_video = row.service == Service::Video;
        let is_refundable = is_video
            && match row.state {
                State::Posted => entry.job != Some(JobState::Finished),
                State::Unknown | State::Reserved | State::Sent => true,
                State::Voided => false,
            };
        if row.state == State::Voided {
            Counts::Not
        } else if entry.number <= self.before.settled {
            let may_come = self.before.snapshot.at.saturating_sub(REFUNDS_WITHIN);
            // Of charged ones, the evidence has those alone that may be refunded.
            let is_late = row.state == State::Posted || row.ended.is_none_or(|end| end > may_come);
            if is_refundable && is_late { Counts::Back } else { Counts::Not }
        } else if entry.number <= self.before.number {
            if is_refundable { Counts::OrBack } else { Counts::Perhaps }
        } else {
            // Nobody knows what an endpoint of `gateway.passthrough` costs.
            let is_sure = row.state == State::Posted
                && row.service != Service::Other
                && !is_refundable
                && !entry.is_assumed
                && entry.is_recognised
                && !self.is_young(entry);
            if is_sure { Counts::Surely } else { Counts::Perhaps }
        }
    }

    fn is_young(&self, entry: &Evidence) -> bool {
        let age = |ended| self.now.at.saturating_sub(ended);
        entry.row.ended.is_none_or(|ended| age(ended) < SETTLES_WITHIN)
    }

    pub(super) fn chats(&self, verdict: &mut Draft) {
        let unknown: Vec<_> = self.unknown(Service::Chat).collect();
        let (charged, _, _) = self.sure_chats();
        let doubtful = self.counting(&[Counts::Perhaps], Service::Chat).count();
        let count = Count {
            counted: u64::try_from(self.chats).unwrap_or_default(),
            charged: u64::try_from(charged).unwrap_or_default(),
            doubtful: doubtful as u64,
        };
        let proof = Proof::Count(count);
        // Somebody else's chats only add to the count: what is not counted is nobody's.
        match self.chats - charged {
            0 => self.release(verdict, &unknown, proof),
            rest if rest == i128::from(count.doubtful) => verdict.charge(&unknown, proof),
            rest => match u64::try_from(rest).ok().filter(|charged| *charged < count.doubtful) {
                Some(charged) => {
                    verdict.doubt(&unknown, Doubt::WhichOne { charged, of: count.doubtful });
                }
                None => verdict.doubt(&unknown, Doubt::Miscounted(count)),
            },
        }
    }

    pub(super) fn videos(&self, verdict: &mut Draft) {
        let (_, chats, _) = self.sure_chats();
        let sure = self.sum(&[Counts::Surely], Service::Video);
        // More than this was not spent on all that is doubtful; what is dearer was not charged.
        let below = self.spent_cents * CENT + CENT - chats - sure + self.refunds();
        let mut alike: BTreeMap<i128, Vec<&Evidence>> = BTreeMap::new();
        for entry in self.unknown(Service::Video) {
            alike.entry(micros(entry.row.toll)).or_default().push(entry);
        }
        let stories = self.stories(sure);
        for (price, rows) in alike {
            let proof = Proof::Spending(usd(below - CENT));
            let story = stories.get(&price);
            match story {
                Some(Story::Alone { charged, of }) if charged == of => verdict.charge(&rows, proof),
                _ if price >= below => self.release(verdict, &rows, proof),
                Some(Story::Alone { charged: 0, .. }) => verdict.doubt(&rows, Doubt::Hidden),
                Some(Story::Alone { charged, of }) => {
                    verdict.doubt(&rows, Doubt::WhichOne { charged: *charged, of: *of });
                }
                Some(Story::Many) => verdict.doubt(&rows, Doubt::ManySums),
                Some(Story::None) | None => verdict.doubt(&rows, Doubt::NoSum),
            }
        }
    }

    /// By price, how many of the doubtful videos were charged if nobody else uses the account.
    fn stories(&self, sure: i128) -> BTreeMap<i128, Story> {
        let mut kinds: BTreeMap<i128, u64> = BTreeMap::new();
        for (way, times) in [(Counts::Perhaps, 1), (Counts::OrBack, 2), (Counts::Back, 1)] {
            for entry in self.counting(&[way], Service::Video) {
                *kinds.entry(micros(entry.row.toll)).or_default() += times;
            }
        }
        let choices: Vec<(i128, u64)> = kinds.into_iter().collect();
        let slack = self.sum(&[Counts::Perhaps], Service::Other);
        // What chats cost in all is the gateway's own figure, which young ones may be in or not.
        let chats = self.sum(&[Counts::Perhaps], Service::Chat);
        let left = (self.spent_cents - self.chat_cents) * CENT - sure + self.refunds();
        let sums = Sums::of(&choices, left - 2 * CENT - slack - chats, left + 2 * CENT + chats);
        let kinds = choices.iter().enumerate();
        let story = |(kind, (price, of)): (usize, &(i128, u64))| {
            let story = match &sums {
                Sums::One(chosen) => {
                    let charged = chosen.get(kind).copied().unwrap_or_default();
                    Story::Alone { charged, of: *of }
                }
                Sums::None => Story::None,
                Sums::Many => Story::Many,
            };
            (*price, story)
        };
        kinds.map(story).collect()
    }

    /// The lost purchases that these counters can tell of.
    pub(super) fn unknown(&self, service: Service) -> impl Iterator<Item = &'a Evidence> {
        let wanted = move |entry: &&Evidence| {
            let row = &entry.row;
            row.state == State::Unknown && row.service == service && entry.is_recognised
        };
        self.since().filter(wanted)
    }

    /// None of these was charged so far.
    fn release(&self, verdict: &mut Draft, rows: &[&Evidence], proof: Proof) {
        for entry in rows {
            let id = entry.row.id;
            match self.hold {
                Some(doubt) => verdict.undecided.push((id, doubt)),
                None if self.is_young(entry) => verdict.undecided.push((id, Doubt::Young)),
                None => verdict.settled.push(Settled { id, charged: None, proof }),
            }
        }
    }

    /// Whether time alone may make this one certain.
    pub(super) fn may_settle(&self, entry: &Evidence) -> bool {
        let is_open = entry.row.service == Service::Video
            && entry.row.state == State::Posted
            && entry.job == Some(JobState::Open)
            && self.now.at.saturating_sub(entry.row.at) < REFUNDS_WITHIN;
        let may_count = entry.row.state != State::Voided && self.is_young(entry);
        entry.number > self.before.settled && (is_open || may_count)
    }
}

/// What the counters say of the doubtful videos of one price.
enum Story {
    /// So many of so many were charged, and nothing else fits.
    Alone { charged: u64, of: u64 },
    /// Nothing fits.
    None,
    /// More than one thing fits.
    Many,
}
