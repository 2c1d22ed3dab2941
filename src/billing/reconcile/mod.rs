//! Decides what became of purchases whose outcome is unknown, from what the gateway counted since the
//! last checkpoint.
//!
//! A charge that is not certain counts as 0 or as its price. An unknown purchase is released only if no
//! story that fits the counters has it charged, and charged only if every story does.
//!
//! A release frees the purchase's key, so it holds even if others spend on the account. It assumes
//! (docs/explain/gateway.md lists each):
//! - a charge shows in the counters within [`SETTLES_WITHIN`] of the purchase's end here;
//! - the count of chats never falls, and the total spent falls by refunds of our own failed videos only;
//! - a reply that was read was charged, a finished video is not refunded;
//! - our clock was not set forward between the end of the purchase and now.
//!
//! What was sent while nobody knew whose account the gateway's keys are of may be on another account. Such a
//! purchase is never settled here, and counts as 0 or as its price whatever its reply said.
//!
//! "Charged" leaves the money spent and the key taken, so it may assume more: that nobody else uses the
//! account. What it infers is doubtful from then on, and never makes room for a release.

mod case;

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::clock::iso8601;
use crate::contract::money::Usd;
pub use crate::store::SETTLES_WITHIN;
use crate::store::{Checkpoint, Evidence, PurchaseId, Service, Snapshot, State};
use case::Case;

/// How long after its failure, or after its order where no failure was heard of, a video may still be
/// refunded. Guess: the contract says nothing of refunds.
pub const REFUNDS_WITHIN: Duration = Duration::from_secs(86_400);

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
    /// By the gateway's count of chats.
    Count(Count),
    /// Beyond what is surely charged here, at most so much was spent.
    Spending(Usd),
}

/// Chats since the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// By the gateway.
    pub counted: u64,
    /// Surely charged here.
    pub charged: u64,
    /// Charged here, or not: unknown, under way, or too young to be counted.
    pub doubtful: u64,
}

/// Why an outcome stays unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It began before the checkpoint (wall-clock time since the Unix epoch).
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
    /// No choice of the doubtful videos costs what was spent.
    NoSum,
    /// More than one does.
    ManySums,
    /// It was not charged, unless somebody else uses the account or a video was refunded.
    Hidden,
    /// Nothing at the gateway counts this kind of purchase.
    Uncounted,
    /// It may have been sent to another account, whose counters nobody knows.
    Unrecognised,
    /// The gateway's counters contradict each other, or what is surely charged here.
    Contradiction,
    /// The balance rose (or fell) by so many cents that the spending does not explain.
    Balance(i128),
    /// The clock was set back.
    Clock,
}

/// Our books and the gateway's since the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// What is charged here, with what has been settled now.
    pub posted: Usd,
    /// What may have been charged besides: still unknown or under way here.
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

/// Compares the gateway's books of a checkpoint and of now with the evidence of the ledger, which was
/// read after the gateway had answered, at `read_at` (wall-clock time since the Unix epoch).
pub fn decide(
    before: &Checkpoint,
    now: &Snapshot,
    evidence: &[Evidence],
    read_at: Duration,
) -> Verdict {
    let case = Case::new(before, now, evidence, read_at);
    let mut verdict = Draft::default();
    let lost = |entry: &&Evidence| entry.row.state == State::Unknown;
    let (told, untold): (Vec<_>, Vec<_>) =
        evidence.iter().filter(lost).partition(|entry| entry.is_recognised);
    verdict.doubt(&untold, Doubt::Unrecognised);
    for entry in told.iter().filter(|entry| entry.number <= before.number) {
        verdict.undecided.push((entry.row.id, Doubt::Older(before.snapshot.at)));
    }
    if case.went_back() {
        for service in [Service::Chat, Service::Video, Service::Other] {
            verdict.doubt(&case.unknown(service).collect::<Vec<_>>(), Doubt::WentBack);
        }
        return verdict.finish(&case);
    }
    case.chats(&mut verdict);
    case.videos(&mut verdict);
    verdict.doubt(&case.unknown(Service::Other).collect::<Vec<_>>(), Doubt::Uncounted);
    verdict.finish(&case)
}

/// A verdict in the making.
#[derive(Default)]
struct Draft {
    settled: Vec<Settled>,
    undecided: Vec<(PurchaseId, Doubt)>,
}

impl Draft {
    fn doubt(&mut self, rows: &[&Evidence], why: Doubt) {
        self.undecided.extend(rows.iter().map(|entry| (entry.row.id, why)));
    }

    fn charge(&mut self, rows: &[&Evidence], proof: Proof) {
        self.settled.extend(rows.iter().map(|entry| {
            let row = &entry.row;
            Settled { id: row.id, charged: Some(row.toll), proof }
        }));
    }

    fn finish(self, case: &Case<'_>) -> Verdict {
        let sum = |rows: &mut dyn Iterator<Item = Usd>| usd(rows.map(micros).sum());
        let undecided: HashSet<PurchaseId> = self.undecided.iter().map(|(id, _)| *id).collect();
        let booked = case.since().filter(|entry| entry.row.state == State::Posted);
        let charged = self.settled.iter().filter_map(|settled| settled.charged);
        let is_open =
            |entry: &&Evidence| undecided.contains(&entry.row.id) || entry.row.ended.is_none();
        let drift = Drift {
            posted: sum(&mut booked.map(|entry| entry.row.toll).chain(charged)),
            unknown: sum(&mut case.since().filter(is_open).map(|entry| entry.row.toll)),
            spent: (case.spent_cents >= 0).then(|| usd(case.spent_cents * CENT)),
        };
        let can_be_told = |(_, doubt): &(PurchaseId, Doubt)| {
            !matches!(doubt, Doubt::Older(_) | Doubt::Uncounted | Doubt::Unrecognised)
        };
        let is_final = !self.undecided.iter().any(can_be_told)
            || !case.evidence.iter().any(|entry| case.may_settle(entry));
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

fn micros(amount: Usd) -> i128 {
    i128::from(amount.as_micros())
}

/// An amount that was summed up; never negative, and at most what can be written.
fn usd(micros: i128) -> Usd {
    Usd::micros(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "by the count: {count}"),
            Self::Spending(amount) => write!(
                f,
                "by the spending: beyond what is surely charged here, {} was spent at most",
                amount.short()
            ),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counted, charged, doubtful } = self;
        write!(f, "the gateway counted {counted}, {charged} charged and {doubtful} doubtful here")
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Older(checkpoint) => {
                write!(f, "it began before the last checkpoint, {}", iso8601(*checkpoint))
            }
            Self::Young => write!(
                f,
                "not charged so far, and it may be yet: ask again {} minutes after it was lost",
                SETTLES_WITHIN.as_secs() / 60
            ),
            Self::WentBack => f.write_str("a counter of the gateway is lower than it was"),
            Self::Miscounted(count) if count.counted < count.charged => {
                write!(f, "the gateway counts fewer chats than were charged: {count}")
            }
            Self::Miscounted(count) => {
                write!(f, "somebody else uses the account: {count}")
            }
            Self::WhichOne { charged, of } => {
                write!(f, "{charged} of {of} alike were charged, and nothing says which")
            }
            Self::NoSum => f.write_str(
                "no choice of the doubtful videos costs what was spent: somebody else uses the account",
            ),
            Self::ManySums => {
                f.write_str("more than one choice of the doubtful videos costs what was spent")
            }
            Self::Hidden => f.write_str(
                "not charged, unless somebody else uses the account or a failed video was refunded",
            ),
            Self::Contradiction => f.write_str(
                "not charged as it seems, but the gateway's counters contradict each other or the ledger",
            ),
            Self::Balance(cents) => {
                let way = if *cents > 0 { "rose" } else { "fell" };
                let by = Usd::cents(u64::try_from(cents.unsigned_abs()).unwrap_or(u64::MAX));
                write!(
                    f,
                    "not charged as it seems, but the balance {way} by {} that was not spent (credit \
                     bought, a refund): nothing is released",
                    by.unwrap_or(Usd::micros(u64::MAX)).short()
                )
            }
            Self::Clock => f.write_str(
                "not charged as it seems, but this machine's clock was set back: nothing is released",
            ),
            Self::Unrecognised => f.write_str(
                "sent before the gateway listed its account's keys, so it may be on another account: find out \
                 from the gateway, then end it with tollgate purchase resolve",
            ),
            Self::Uncounted => f.write_str("nothing at the gateway counts this kind of purchase"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
