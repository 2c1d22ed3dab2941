//! Random gateways and accounts, with what really happened to each purchase.
//!
//! Times are real seconds; `wall` is what our clock shows. The worlds obey only what reconciliation
//! assumes about the gateway.

use std::ops::Range;
use std::time::Duration;

use crate::gateway::contract::catalog::UNSTATED_CHAT;
use crate::gateway::contract::money::Usd;
use crate::ledger::{
    Checkpoint, Evidence, JobState, PurchaseId, PurchaseRecord, PurchaseState, Service, Snapshot,
};

/// The longest time until a charge shows, less one second.
pub(crate) const LAG: u64 = 299;
const DAY: u64 = 86_400;
const EPOCH: u64 = 1_000_000_000;

/// SplitMix64: fast and deterministic.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

/// A change of the gateway's counters.
#[derive(Clone, Copy, Debug)]
struct Shift {
    chats: i64,
    chat_micros: i64,
    spent_micros: i64,
    balance_micros: i64,
    /// When the count, the cost of chats, the total and the balance show it.
    shown: [u64; 4],
}

/// A purchase of ours, with what really happened to it.
#[derive(Clone, Debug)]
pub(crate) struct Bought {
    pub(crate) id: PurchaseId,
    pub(crate) service: Service,
    pub(crate) model: &'static str,
    pub(crate) price: Usd,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    /// Its state in the ledger.
    pub(crate) state: PurchaseState,
    pub(crate) is_assumed: bool,
    pub(crate) is_charged: bool,
    /// Whether the account was confirmed when it was sent.
    pub(crate) is_confirmed: bool,
    /// When all of it was refunded.
    pub(crate) refunded: Option<u64>,
    /// When its job ended, and its state from then on; before that, it is open.
    pub(crate) job: Option<(u64, JobState)>,
}

/// A gateway's account, our purchases, and our clock.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) bought: Vec<Bought>,
    shifts: Vec<Shift>,
    start: [u64; 4],
    rounding: [u64; 4],
    /// From each of these times on, how far our clock is ahead.
    steps: Vec<(u64, i64)>,
    pub(crate) has_other_spenders: bool,
    /// The amount that others spend, or that purchases cost above their prices.
    pub(crate) spent_elsewhere: i64,
    /// When our keys were not listed, and whether they belonged to another account.
    unlisted: Option<(Range<u64>, bool)>,
}

impl World {
    /// Creates up to `most` purchases and their gateway. A plain world has only charges.
    pub(crate) fn random(dice: &mut Dice, most: u64, is_plain: bool) -> Self {
        let mut world = Self {
            bought: Vec::new(),
            shifts: Vec::new(),
            start: [dice.below(99), dice.below(9_999_999), dice.below(99_999_999), 0],
            rounding: [dice.below(3), dice.below(3), dice.below(3), dice.below(3)],
            steps: vec![(0, 0)],
            has_other_spenders: false,
            spent_elsewhere: 0,
            unlisted: None,
        };
        world.start[3] = 1_000_000_000 + dice.below(99_999_999);
        let (lags, refunds) = (!is_plain && dice.one_in(2), !is_plain && dice.one_in(3));
        let (span, on_balance) = (dice.pick(&[600, 4_000, 4_000, 90_000]), dice.one_in(2));
        if !is_plain && dice.one_in(4) {
            let from = dice.below(span);
            world.unlisted = Some((from..from + dice.below(span), dice.one_in(2)));
        }
        for _ in 0..=dice.below(most) {
            world.buy(dice, span, lags, refunds, on_balance, is_plain);
        }
        world.bought.sort_by_key(|bought| bought.begun);
        if !is_plain {
            if dice.one_in(3) {
                world.has_other_spenders = true;
                for _ in 0..=dice.below(3) {
                    world.spend_elsewhere(dice, span);
                }
            }
            if dice.one_in(8) {
                let (at, micros) = (dice.below(span), dice.pick(&[3, 5, 10, 50]) * 1_000_000);
                world.shift([0, 0, 0, micros], [at; 4]);
            }
            for _ in 0..dice.below(8).saturating_sub(5) {
                world.set_clock(dice, span);
            }
        }
        world
    }

    fn shift(&mut self, micros: [i64; 4], shown: [u64; 4]) {
        let [chats, chat_micros, spent_micros, balance_micros] = micros;
        self.shifts.push(Shift { chats, chat_micros, spent_micros, balance_micros, shown });
    }

    fn buy(
        &mut self,
        dice: &mut Dice,
        span: u64,
        lags: bool,
        refunds: bool,
        on_balance: bool,
        is_plain: bool,
    ) {
        let (service, model, price) = dice.pick(&[
            (Service::Chat, "eta-5-mini", 3_000),
            (Service::Chat, "gamma-large", 6_000),
            (Service::Chat, UNSTATED_CHAT, 6_000),
            (Service::Video, "video-a-2", 3_000_000),
            (Service::Video, "video-a-2", 3_000_000),
            (Service::Video, "video-d-3.1", 5_000_000),
            (Service::Other, "/api/v1/search", 1_500_000),
        ]);
        let begun = dice.below(span);
        let takes = if dice.one_in(4) { 140 } else { 10 };
        let ended = begun + dice.below(takes);
        let (state, is_charged, is_assumed) = match dice.below(8) {
            0 => (PurchaseState::Released, false, false),
            1 | 2 => (PurchaseState::Unknown, true, false),
            3 | 4 => (PurchaseState::Unknown, false, false),
            // Assumed by us or stated by the operator, and wrong.
            5 if !is_plain => (PurchaseState::Charged, dice.one_in(2), true),
            _ => (PurchaseState::Charged, true, false),
        };
        let mut bought = Bought {
            id: PurchaseId::generate(),
            service,
            model,
            price: Usd::micros(price),
            begun,
            ended,
            state,
            is_assumed,
            is_charged,
            is_confirmed: true,
            refunded: None,
            job: None,
        };
        let mut is_elsewhere = false;
        if let Some((unlisted, is_of_others)) = &self.unlisted
            && unlisted.contains(&begun)
        {
            (bought.is_confirmed, is_elsewhere) = (false, *is_of_others);
        }
        let is_plain_job = is_plain || dice.one_in(2);
        if service == Service::Video && state == PurchaseState::Charged && !is_assumed {
            bought.job = Some(match is_plain_job {
                true => (ended, JobState::Finished),
                false => {
                    let states = [JobState::Finished, JobState::Failed, JobState::Open];
                    (ended + dice.below(600), dice.pick(&states))
                }
            });
        }
        if is_charged {
            let charged = begun + dice.below(ended - begun + 1);
            let late = ended + LAG;
            let cost = match (service, model) {
                (Service::Chat, UNSTATED_CHAT) if dice.one_in(2) => 3_000,
                (Service::Other, _) if !is_plain => i64::try_from(dice.below(2 * price)).unwrap(),
                _ => i64::try_from(price).unwrap(),
            };
            // A cost above the price looks like someone else's spending.
            let excess = cost - i64::try_from(price).unwrap();
            if excess > 0 && !is_elsewhere {
                self.has_other_spenders = true;
                self.spent_elsewhere += excess;
            }
            let shown = std::array::from_fn(|_| match lags {
                true => charged + dice.below(late - charged + 1),
                false => charged,
            });
            let is_chat = i64::from(service == Service::Chat);
            if !is_elsewhere {
                self.shift([is_chat, is_chat * cost, cost, -cost], shown);
            }
            let may_fail =
                service == Service::Video && !matches!(bought.job, Some((_, JobState::Finished)));
            if refunds && may_fail && dice.one_in(2) {
                let latest = match bought.job {
                    Some((reported, JobState::Failed)) => reported + DAY - 1,
                    _ => ended + DAY - 1,
                };
                let first = shown.into_iter().max().unwrap().max(ended);
                let soon = if dice.one_in(2) { (first + 900).min(latest) } else { latest };
                let at = first + dice.below((soon - first).max(1));
                bought.refunded = Some(at);
                let spent = if on_balance { 0 } else { -cost };
                if !is_elsewhere {
                    self.shift([0, 0, spent, cost], [at; 4]);
                }
            }
        }
        self.bought.push(bought);
    }

    /// Spends as another program with the account's keys, without refunds.
    fn spend_elsewhere(&mut self, dice: &mut Dice, span: u64) {
        let (chats, micros) = match dice.below(4) {
            0 => (1, 3_000),
            1 => (1, 6_000),
            2 => (0, dice.pick(&[3_000_000, 5_000_000])),
            _ => (0, i64::try_from(dice.below(6_000_000)).unwrap()),
        };
        let at = dice.below(span + 900);
        self.spent_elsewhere += micros;
        let shown = std::array::from_fn(|_| at + dice.below(2 * LAG));
        self.shift([chats, chats * micros, micros, -micros], shown);
    }

    /// Sets the clock back at any time, and forward only if that makes no purchase older.
    fn set_clock(&mut self, dice: &mut Dice, span: u64) {
        let at = dice.below(span + 900);
        let by = i64::from(dice.pick(&[1, 60, 400, 3_600, 7_200, 90_000]));
        let (_, is) = *self.steps.last().unwrap();
        if at < self.steps.last().unwrap().0 {
            return;
        }
        let is_quiet = self.bought.iter().all(|bought| {
            let is_over = bought.ended + LAG < at && bought.refunded.is_none();
            is_over || bought.begun >= at
        });
        match is_quiet && dice.one_in(2) {
            true => self.steps.push((at, is + by)),
            false => self.steps.push((at, is - by)),
        }
    }

    pub(crate) fn clock_was_set(&self) -> bool {
        self.steps.len() > 1
    }

    /// Returns what our clock shows.
    pub(crate) fn wall(&self, at: u64) -> Duration {
        let (_, by) = self.steps.iter().rev().find(|(from, _)| *from <= at).unwrap();
        Duration::from_secs((EPOCH + at).checked_add_signed(*by).unwrap())
    }

    /// Returns the gateway's answer to a request sent at `asked` and answered at `answered`.
    pub(crate) fn snapshot(&self, asked: u64, answered: u64) -> Snapshot {
        let sum = |counter: usize, part: fn(&Shift) -> i64| {
            let shown = self.shifts.iter().filter(|shift| shift.shown[counter] <= answered);
            let start = i64::try_from(self.start[counter]).unwrap();
            u64::try_from(start + shown.map(part).sum::<i64>()).unwrap()
        };
        let cents = |counter: usize, micros: u64| match self.rounding[counter] {
            0 => micros / 10_000,
            1 => micros.div_ceil(10_000),
            _ => (micros + 5_000) / 10_000,
        };
        Snapshot {
            at: self.wall(asked),
            chats: sum(0, |shift| shift.chats),
            chat_cents: cents(1, sum(1, |shift| shift.chat_micros)),
            spent_cents: cents(2, sum(2, |shift| shift.spent_micros)),
            balance_cents: i64::try_from(cents(3, sum(3, |shift| shift.balance_micros))).unwrap(),
        }
    }

    /// Returns the checkpoint that the store would record for a snapshot at `recorded`.
    pub(crate) fn checkpoint(&self, asked: u64, answered: u64, recorded: u64) -> Checkpoint {
        let snapshot = self.snapshot(asked, answered);
        let begun = self.bought.iter().filter(|bought| bought.begun <= recorded);
        let settles = snapshot.at.saturating_sub(Duration::from_secs(LAG + 1));
        let is_unsettled =
            |bought: &&Bought| bought.ended > recorded || self.wall(bought.ended) > settles;
        let number = begun.clone().count();
        let settled = begun.clone().position(|bought| is_unsettled(&bought)).unwrap_or(number);
        Checkpoint { snapshot, settled_through: settled as u64, last_number: number as u64 }
    }

    /// Returns the ledger's evidence at this time.
    pub(crate) fn evidence(&self, before: &Checkpoint, at: u64) -> Vec<Evidence> {
        let refundable = before.snapshot.at.saturating_sub(Duration::from_secs(DAY));
        let begun = self.bought.iter().filter(|bought| bought.begun <= at);
        let found = (1..).zip(begun).filter_map(|(number, bought)| {
            let has_ended = bought.ended <= at;
            let state = if has_ended { bought.state } else { PurchaseState::Sent };
            let job = bought.job.filter(|_| has_ended);
            let job = job.map(|(reported, state)| match reported <= at {
                true => (reported, state),
                false => (bought.ended, JobState::Open),
            });
            let since = match job {
                Some((reported, JobState::Failed)) => reported,
                _ => bought.ended,
            };
            let job = job.map(|(_, state)| state);
            let is_refundable = state == PurchaseState::Charged
                && bought.service == Service::Video
                && self.wall(since) > refundable;
            let counts =
                number > before.settled_through || state == PurchaseState::Unknown || is_refundable;
            counts.then(|| Evidence {
                purchase: PurchaseRecord {
                    id: bought.id,
                    at: self.wall(bought.begun),
                    ended_at: has_ended.then(|| self.wall(bought.ended)),
                    caller: String::new(),
                    service: bought.service,
                    model: bought.model.to_owned(),
                    price: bought.price,
                    state,
                },
                number,
                is_assumed: bought.is_assumed && has_ended,
                is_account_confirmed: bought.is_confirmed,
                job,
            })
        });
        found.collect()
    }

    pub(crate) fn is_charged(&self, id: PurchaseId) -> bool {
        self.bought.iter().any(|bought| bought.id == id && bought.is_charged)
    }

    /// Whether the gateway has our money for it at that time.
    pub(crate) fn has_paid(&self, id: PurchaseId, at: u64) -> bool {
        let bought = self.bought.iter().find(|bought| bought.id == id).unwrap();
        bought.is_charged && bought.refunded.is_none_or(|refunded| refunded > at)
    }
}
