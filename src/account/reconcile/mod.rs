//! Decides which unknown purchases were charged, from what the gateway counted since the last
//! checkpoint.
//!
//! A charge that is not certain counts as 0 or as its price. An unknown purchase is released if no
//! explanation of the counters charges it, and charged if every explanation does.
//!
//! Releasing frees the purchase's key, so it must be right even if others use the account. It
//! assumes (docs/explain/gateway.md lists each):
//!
//! - A charge shows in the counters within [`SETTLES_WITHIN`] of the purchase's end here.
//! - The count of chats never falls. The total falls only by refunds of our failed videos.
//! - A reply that fits the contract was charged. A video that has an address a day after its order
//!   was not refunded.
//! - Our clock was not set forward between the end of the purchase and now.
//!
//! A purchase that was sent while the account was not confirmed is never settled here.
//!
//! Charging leaves the money spent and the key taken, so it may also assume that nobody else uses
//! the account. Such a purchase stays uncertain, and never justifies a release.

mod case;

use std::time::Duration;

use crate::clock::iso8601;
use crate::gateway::contract::money::{SignedUsd, Usd};
pub use crate::ledger::SETTLES_WITHIN;
use crate::ledger::{
    Checkpoint, Evidence, PurchaseId, PurchaseRecord, PurchaseState, Service, Snapshot,
};
use case::Case;

/// How long after its failure a video may be refunded; without a failure, after its order.
///
/// This is an assumption: the contract does not mention refunds.
pub const REFUNDS_WITHIN: Duration = Duration::from_secs(86_400);

const CENT: i128 = 10_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub settled: Vec<Decision>,
    pub undecided: Vec<(PurchaseId, Undecided)>,
    pub drift: Drift,
    /// When a later run with the same checkpoint may decide more (since the Unix epoch), if ever.
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub id: PurchaseId,
    pub service: Service,
    pub charged: Option<Usd>,
    pub proof: Proof,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Proof {
    #[error("by the count: {0}")]
    Count(ChatCount),
    #[error("by the spending: at most {} beyond certain charges", .0.short())]
    Spending(Usd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gateway counted {counted}; {charged} certain and {possible} possible here")]
pub struct ChatCount {
    pub counted: u64,
    pub charged: u64,
    /// Charged or not: unknown, running, or too recent to be counted.
    pub possible: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    #[error("it began before the last checkpoint ({})", iso8601(*.0))]
    BeforeCheckpoint(Duration),
    #[error(
        "not charged yet; reconcile again {} minutes after it was lost",
        SETTLES_WITHIN.as_secs() / 60
    )]
    TooRecent,
    #[error("a counter of the gateway decreased: waiting does not help")]
    CounterDecreased,
    /// No combination of our purchases makes the gateway's count.
    #[error(
        "{why}: {0}",
        why = if .0.counted < .0.charged {
            "the gateway counted fewer chats than were charged"
        } else {
            "someone else uses the account"
        }
    )]
    Miscounted(ChatCount),
    /// Purchases of one service may differ in model and price.
    #[error("{charged} of {of} purchases were charged; the gateway's counters do not show which")]
    Ambiguous { charged: u64, of: u64 },
    #[error(
        "no combination of the unknown videos explains the spending: someone else uses the account"
    )]
    NoCombination,
    #[error("more than one combination of the unknown videos explains the spending")]
    ManyCombinations,
    #[error("not charged, unless someone else uses the account or a failed video was refunded")]
    ProbablyFree,
    #[error("the gateway does not count this kind of purchase")]
    Uncounted,
    #[error(
        "sent before the gateway listed its account's keys, so it may be on another account: ask the \
         gateway, then run tollgate purchase resolve"
    )]
    UnconfirmedAccount,
    #[error("the gateway's counters contradict each other or the ledger: nothing is released")]
    Contradiction,
    /// The balance changed by this many cents more than the spending explains.
    #[error(
        "the balance {} by {} that was not spent (credit bought, a refund): nothing is released",
        if *.0 > 0 { "rose" } else { "fell" },
        usd(.0.abs() * CENT).short()
    )]
    BalanceChange(i128),
    #[error("this machine's clock was set back: nothing is released")]
    ClockSetBack,
}

/// How the gateway's total since the checkpoint compares with the ledger's purchases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// The sums of purchases that began after the checkpoint.
    pub charged: Usd,
    /// Prices of purchases that are unknown or in flight, or were in flight at the checkpoint: the
    /// gateway's total since then may or may not include them.
    pub unknown: Usd,
    /// The gateway's charges less its refunds, to the cent.
    pub spent: SignedUsd,
    /// The gateway's charges beyond anything that the purchases explain; below zero if it charged
    /// less. `None` if its total decreased by more than refunds explain, or our clock was set back.
    pub unexplained: Option<SignedUsd>,
}

/// Compares two snapshots. `evidence` was read at `read_at` (since the Unix epoch), after the
/// gateway had answered.
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
        case.decide_chats(&mut verdict);
        case.decide_videos(&mut verdict);
        verdict.leave_undecided(&case.unknown(Service::Other), Undecided::Uncounted);
    }
    case.finish(verdict)
}

impl Verdict {
    /// Returns whether no later run with the same checkpoint can decide more. A new checkpoint
    /// would forfeit what is undecided otherwise.
    pub fn is_final(&self) -> bool {
        self.undecided.iter().all(|(_, why)| why.is_final())
    }

    fn leave_undecided(&mut self, entries: &[&Evidence], why: Undecided) {
        self.undecided.extend(entries.iter().map(|entry| (entry.purchase.id, why)));
    }

    fn settle(&mut self, entry: &Evidence, charged: Option<Usd>, proof: Proof) {
        let PurchaseRecord { id, service, .. } = entry.purchase;
        self.settled.push(Decision { id, service, charged, proof });
    }

    fn charge(&mut self, entries: &[&Evidence], proof: Proof) {
        entries.iter().for_each(|entry| self.settle(entry, Some(entry.purchase.price), proof));
    }
}

impl Undecided {
    /// Returns whether no later run with the same checkpoint can decide it.
    fn is_final(self) -> bool {
        matches!(self, Self::BeforeCheckpoint(_) | Self::Uncounted | Self::UnconfirmedAccount)
    }
}

impl Drift {
    /// Returns what the gateway charged and the ledger lacks; `None` if that cannot be told.
    pub fn missing(&self) -> Option<Usd> {
        self.unexplained.map(SignedUsd::or_zero)
    }

    /// Compares the gateway's spending with the ledger's, in words.
    pub fn describe(&self) -> String {
        let Some(unexplained) = self.unexplained else {
            return "unknown: this machine's clock was set back, or the gateway's total fell by more than \
                    refunds explain"
                .to_owned();
        };
        let by = unexplained.abs().short();
        let difference = i128::from(self.spent.as_micros()) - micros(self.charged);
        let size = usd(difference.abs()).short();
        match unexplained.as_micros() {
            1.. => format!("the gateway charged {by} more than the ledger"),
            ..0 => format!("the gateway charged {by} less than the ledger"),
            0 if difference >= CENT => {
                format!("none, if {size} of what is unknown or was in flight was charged")
            }
            0 if difference <= -CENT => {
                format!("none, if {size} was refunded or is not counted yet")
            }
            0 => "none, to the cent".to_owned(),
        }
    }
}

fn micros(amount: Usd) -> i128 {
    i128::from(amount.as_micros())
}

/// Returns a sum as an amount, clamped to what can be written.
fn usd(micros: i128) -> Usd {
    Usd::micros(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
pub(super) mod tests;
