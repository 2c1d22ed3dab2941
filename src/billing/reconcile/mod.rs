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

use std::fmt;
use std::time::Duration;

use crate::clock::iso8601;
use crate::contract::money::Usd;
pub use crate::store::SETTLES_WITHIN;
use crate::store::{Checkpoint, Evidence, PurchaseId, PurchaseState, Service, Snapshot};
use case::Case;

/// How long after its failure, or after its order where no failure was heard of, a video may still be
/// refunded. Guess: the contract says nothing of refunds.
pub const REFUNDS_WITHIN: Duration = Duration::from_secs(86_400);

const CENT: i128 = 10_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub settled: Vec<Decision>,
    pub undecided: Vec<(PurchaseId, Undecided)>,
    /// How far the books are apart after that.
    pub drift: Drift,
    /// Whether asking again later, from the same checkpoint on, can tell nothing more.
    pub is_final: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub id: PurchaseId,
    /// What it cost; nothing where it was not charged.
    pub charged: Option<Usd>,
    pub proof: Proof,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    Count(ChatCount),
    /// Beyond what is surely charged here, at most so much was spent.
    Spending(Usd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatCount {
    pub counted: u64,
    /// Surely charged here.
    pub charged: u64,
    /// Charged here, or not: unknown, under way, or too young to be counted.
    pub possible: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    #[error("it began before the last checkpoint, {}", iso8601(*.0))]
    BeforeCheckpoint(Duration),
    #[error(
        "not charged so far, and it may be yet: ask again {} minutes after it was lost",
        SETTLES_WITHIN.as_secs() / 60
    )]
    TooRecent,
    #[error("a counter of the gateway is lower than it was")]
    CounterDecreased,
    /// The gateway's count is none that our purchases could make.
    #[error("{why}: {0}", why = .0.why())]
    Miscounted(ChatCount),
    #[error("{charged} of {of} alike were charged, and nothing says which")]
    Ambiguous { charged: u64, of: u64 },
    #[error(
        "no choice of the doubtful videos costs what was spent: somebody else uses the account"
    )]
    NoCombination,
    #[error("more than one choice of the doubtful videos costs what was spent")]
    ManyCombinations,
    #[error("not charged, unless somebody else uses the account or a failed video was refunded")]
    ProbablyFree,
    #[error("nothing at the gateway counts this kind of purchase")]
    Uncounted,
    #[error(
        "sent before the gateway listed its account's keys, so it may be on another account: find out \
         from the gateway, then end it with tollgate purchase resolve"
    )]
    UnconfirmedAccount,
    #[error(
        "not charged as it seems, but the gateway's counters contradict each other or the ledger"
    )]
    Contradiction,
    /// The balance rose (or fell) by so many cents that the spending does not explain.
    #[error(
        "not charged as it seems, but the balance {} by {} that was not spent (credit bought, a refund): \
         nothing is released",
        if *.0 > 0 { "rose" } else { "fell" },
        usd(.0.abs() * CENT).short()
    )]
    BalanceChange(i128),
    #[error("not charged as it seems, but this machine's clock was set back: nothing is released")]
    ClockSetBack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    pub charged: Usd,
    /// Unknown or under way here.
    pub unknown: Usd,
    /// What the gateway says was spent, to the cent; `None` where its counter went back.
    pub spent: Option<Usd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    None,
    /// What is unknown here may explain it.
    Unknown,
    /// The gateway took this much more than is booked here.
    More(Usd),
    Less(Usd),
}

/// `evidence` was read from the ledger at `read_at` (since the Unix epoch), after the gateway had answered.
pub fn decide(
    before: &Checkpoint,
    now: &Snapshot,
    evidence: &[Evidence],
    read_at: Duration,
) -> Verdict {
    let case = Case::new(before, now, evidence, read_at);
    let mut verdict = Verdict::default();
    for entry in evidence.iter().filter(|entry| entry.purchase.state == PurchaseState::Unknown) {
        if !entry.is_account_confirmed {
            verdict.leave_undecided(&[entry], Undecided::UnconfirmedAccount);
        } else if entry.number <= before.last_number {
            verdict.leave_undecided(&[entry], Undecided::BeforeCheckpoint(before.snapshot.at));
        }
    }
    if case.counter_decreased() {
        for service in [Service::Chat, Service::Video, Service::Other] {
            verdict.leave_undecided(&case.unknown(service), Undecided::CounterDecreased);
        }
    } else {
        case.chats(&mut verdict);
        case.videos(&mut verdict);
        verdict.leave_undecided(&case.unknown(Service::Other), Undecided::Uncounted);
    }
    case.finish(verdict)
}

impl Verdict {
    fn leave_undecided(&mut self, rows: &[&Evidence], why: Undecided) {
        self.undecided.extend(rows.iter().map(|entry| (entry.purchase.id, why)));
    }

    fn settle(
        &mut self,
        Evidence { purchase: row, .. }: &Evidence,
        charged: Option<Usd>,
        proof: Proof,
    ) {
        self.settled.push(Decision { id: row.id, charged, proof });
    }

    fn charge(&mut self, rows: &[&Evidence], proof: Proof) {
        rows.iter().for_each(|entry| self.settle(entry, Some(entry.purchase.price), proof));
    }
}

impl Drift {
    /// What the two books say together; `None` where the gateway's counter went back.
    pub fn difference(&self) -> Option<Difference> {
        let (spent, charged) = (micros(self.spent?), micros(self.charged));
        let most = charged + micros(self.unknown);
        Some(match spent {
            _ if (spent - charged).abs() < CENT => Difference::None,
            _ if spent >= most + CENT => Difference::More(usd(spent - most)),
            _ if spent < charged => Difference::Less(usd(charged - spent)),
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

impl fmt::Display for ChatCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counted, charged, possible: doubtful } = self;
        write!(f, "the gateway counted {counted}, {charged} charged and {doubtful} doubtful here")
    }
}

impl ChatCount {
    fn why(&self) -> &'static str {
        if self.counted < self.charged {
            "the gateway counts fewer chats than were charged"
        } else {
            "somebody else uses the account"
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
