//! Decides what became of purchases whose outcome is unknown, by what the gateway counted since the
//! last checkpoint.
//!
//! Chats are told by the gateway's count, as no balance in cents shows $0.003. Videos, which have no
//! counter, are told by what was spent beyond chats. Whatever more than one story explains stays
//! unknown, and so spent.
//!
//! Guesses: the counters cover the account's whole life, a charge shows in them at once, and one that
//! has not come within [`SETTLES_WITHIN`] never comes.

mod sums;
mod words;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::contract::money::Usd;
use crate::store::Checkpoint;
use crate::store::PurchaseId;
use crate::store::Row;
use crate::store::Service;
use crate::store::State;
use sums::Sums;

/// How long after it ended here a purchase may still be charged: from when we stopped waiting on, as a call
/// can wait longer than this. Guess: the contract names no deadline; giving a toll back frees its key, so
/// it had better be long.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(300);

/// Two differences of amounts that are rounded to cents, in any way, are off by less than this.
const ROUNDING: i128 = 20_000;
const CENT: i128 = 10_000;

/// What can be said of every unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What is known now.
    pub settled: Vec<Settled>,
    /// What is not, and why.
    pub undecided: Vec<(PurchaseId, Doubt)>,
    /// How far the books are apart after that.
    pub drift: Drift,
    /// Whether asking again later, from the same checkpoint on, can tell nothing more.
    pub is_final: bool,
}

/// An outcome that was unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Whose.
    pub id: PurchaseId,
    /// What it cost; nothing where it was not charged.
    pub charged: Option<Usd>,
    /// How that is known.
    pub proof: Proof,
}

/// How an outcome became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The gateway counted so many chats; so many are posted here, so many were unknown.
    Count(Count),
    /// Beyond chats and what is posted here, so much was spent.
    Spending(Usd),
}

/// Chats since the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// By the gateway.
    pub counted: u64,
    /// Posted here.
    pub posted: u64,
    /// Unknown here.
    pub unknown: u64,
}

/// Why an outcome stays unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It lies before the checkpoint (wall-clock time since the Unix epoch).
    Older(Duration),
    /// The gateway did not charge for it, but still may.
    Young,
    /// A counter of the gateway is lower than it was.
    WentBack,
    /// The gateway's count is none that our purchases could make.
    Miscounted(Count),
    /// So many of so many alike were charged: nothing says which.
    WhichOne {
        /// How many were charged.
        charged: u64,
        /// Of how many.
        of: u64,
    },
    /// No choice of the unknown videos costs what was spent.
    NoSum,
    /// More than one does.
    ManySums,
    /// Nothing at the gateway counts this kind of purchase.
    Uncounted,
}

/// Our books and the gateway's since the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// What is posted here, with what has been settled now.
    pub posted: Usd,
    /// What is still unknown here.
    pub unknown: Usd,
    /// What the gateway says was spent, to the cent; `None` where its counter went back.
    pub spent: Option<Usd>,
}

/// What the two books say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// They agree, to the cent.
    None,
    /// What is unknown here may explain it.
    Unknown,
    /// The gateway took this much more than is booked here.
    More(Usd),
    /// It took this much less.
    Less(Usd),
}

/// Compares two moments of the gateway's books with the ledger's purchases: all since the first, and of the
/// earlier ones those whose outcome is unknown. At both moments nothing was under way.
pub fn decide(before: &Checkpoint, now: &Checkpoint, rows: &[Row]) -> Verdict {
    let (older, since): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.at < before.at);
    let mut verdict = Draft::default();
    verdict.doubt(&unknown(&older, None), |_| Doubt::Older(before.at));
    match Delta::between(before, now) {
        None => verdict.doubt(&unknown(&since, None), |_| Doubt::WentBack),
        Some(delta) => judge(&mut verdict, &since, delta, now.at),
    }
    verdict.finish(before, now, &since)
}

/// What the gateway counted between two moments.
#[derive(Clone, Copy)]
struct Delta {
    chats: u64,
    chat_cents: u64,
    spent_cents: u64,
}

impl Delta {
    fn between(before: &Checkpoint, now: &Checkpoint) -> Option<Self> {
        Some(Self {
            chats: now.chats.checked_sub(before.chats)?,
            chat_cents: now.chat_cents.checked_sub(before.chat_cents)?,
            spent_cents: now.spent_cents.checked_sub(before.spent_cents)?,
        })
    }
}

fn judge(verdict: &mut Draft, since: &[&Row], delta: Delta, now: Duration) {
    let chats = unknown(since, Some(Service::Chat));
    let count = Count {
        counted: delta.chats,
        posted: posted(since, Service::Chat).count() as u64,
        unknown: chats.len() as u64,
    };
    let Some(charged) =
        count.counted.checked_sub(count.posted).filter(|charged| *charged <= count.unknown)
    else {
        verdict.lags = count.counted < count.posted;
        return verdict.doubt(&unknown(since, None), |_| Doubt::Miscounted(count));
    };
    verdict.all_or_none(&chats, charged, Proof::Count(count), now);
    verdict.doubt(&unknown(since, Some(Service::Other)), |_| Doubt::Uncounted);

    let mut alike: BTreeMap<Usd, Vec<&Row>> = BTreeMap::new();
    for video in unknown(since, Some(Service::Video)) {
        alike.entry(video.toll).or_default().push(video);
    }
    let choices: Vec<(i128, u64)> =
        alike.iter().map(|(toll, rows)| (micros(*toll), rows.len() as u64)).collect();
    let (left, slack) = left_for_videos(since, delta);
    match Sums::of(&choices, left - ROUNDING - slack, left + ROUNDING) {
        Sums::One(chosen) => {
            let spent =
                chosen.iter().zip(&choices).map(|(chosen, (toll, _))| i128::from(*chosen) * toll);
            let proof = Proof::Spending(usd(spent.sum()));
            for ((_, rows), charged) in alike.iter().zip(chosen) {
                verdict.all_or_none(rows, charged, proof, now);
            }
        }
        Sums::None => alike.values().for_each(|rows| verdict.doubt(rows, |_| Doubt::NoSum)),
        Sums::Many => alike.values().for_each(|rows| verdict.doubt(rows, |_| Doubt::ManySums)),
    }
}

/// What unknown videos may have cost, in micro-dollars, give or take the rounding of cents; and how
/// much less it may be for what nothing counts.
fn left_for_videos(since: &[&Row], delta: Delta) -> (i128, i128) {
    let sum = |rows: &mut dyn Iterator<Item = &Row>| rows.map(|row| micros(row.toll)).sum::<i128>();
    let beyond_chats = (i128::from(delta.spent_cents) - i128::from(delta.chat_cents)) * CENT;
    let videos = sum(&mut posted(since, Service::Video));
    let others = sum(&mut posted(since, Service::Other));
    let slack = sum(&mut unknown(since, Some(Service::Other)).into_iter());
    (beyond_chats - videos - others, slack)
}

/// A verdict in the making.
#[derive(Default)]
struct Draft {
    settled: Vec<Settled>,
    undecided: Vec<(PurchaseId, Doubt)>,
    lags: bool,
}

impl Draft {
    fn doubt(&mut self, rows: &[&Row], why: impl Fn(&Row) -> Doubt) {
        self.undecided.extend(rows.iter().map(|row| (row.id, why(row))));
    }

    /// `charged` of these rows were; of all or of none it is known which.
    fn all_or_none(&mut self, rows: &[&Row], charged: u64, proof: Proof, now: Duration) {
        let of = rows.len() as u64;
        for row in rows {
            let settled = |charged| Settled { id: row.id, charged, proof };
            match charged {
                all if all == of => self.settled.push(settled(Some(row.toll))),
                0 if is_young(row, now) => self.undecided.push((row.id, Doubt::Young)),
                0 => self.settled.push(settled(None)),
                _ => self.undecided.push((row.id, Doubt::WhichOne { charged, of })),
            }
        }
    }

    fn finish(self, before: &Checkpoint, now: &Checkpoint, since: &[&Row]) -> Verdict {
        let sum = |rows: &mut dyn Iterator<Item = Usd>| usd(rows.map(micros).sum());
        let undecided: HashSet<PurchaseId> = self.undecided.iter().map(|(id, _)| *id).collect();
        let is_undecided = |row: &&&Row| undecided.contains(&row.id);
        let booked = since.iter().filter(|row| row.state == State::Posted).map(|row| row.toll);
        let charged = self.settled.iter().filter_map(|settled| settled.charged);
        let spent = now.spent_cents.checked_sub(before.spent_cents);
        let drift = Drift {
            posted: sum(&mut booked.chain(charged)),
            unknown: sum(&mut since.iter().filter(is_undecided).map(|row| row.toll)),
            spent: spent.map(|cents| usd(i128::from(cents) * CENT)),
        };
        // What is young may be charged yet, and books that lag may yet catch up.
        let may_change = |row: &&&Row| is_young(row, now.at) && (self.lags || is_undecided(row));
        let is_final = !since.iter().any(|row| may_change(&row));
        Verdict { settled: self.settled, undecided: self.undecided, drift, is_final }
    }
}

impl Drift {
    /// What the two books say together; `None` where the gateway's counter went back.
    pub fn difference(&self) -> Option<Difference> {
        let (spent, posted) = (micros(self.spent?), micros(self.posted));
        let most = posted + micros(self.unknown);
        Some(match spent {
            _ if (spent - posted).abs() < CENT => Difference::None,
            _ if spent >= most + CENT => Difference::More(usd(spent - most)),
            _ if spent < posted => Difference::Less(usd(posted - spent)),
            _ => Difference::Unknown,
        })
    }
}

fn is_young(row: &Row, now: Duration) -> bool {
    row.ended.is_none_or(|ended| now.saturating_sub(ended) < SETTLES_WITHIN)
}

fn unknown<'a>(rows: &[&'a Row], service: Option<Service>) -> Vec<&'a Row> {
    let wanted = |row: &&&Row| {
        row.state == State::Unknown && service.is_none_or(|service| row.service == service)
    };
    rows.iter().filter(wanted).copied().collect()
}

fn posted<'a>(rows: &[&'a Row], service: Service) -> impl Iterator<Item = &'a Row> {
    rows.iter().copied().filter(move |row| row.state == State::Posted && row.service == service)
}

fn micros(amount: Usd) -> i128 {
    i128::from(amount.as_micros())
}

/// An amount that was summed up; never negative, and at most what can be written.
fn usd(micros: i128) -> Usd {
    Usd::micros(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
