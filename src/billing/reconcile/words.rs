//! Says in words what was told of an outcome, and why.

use std::fmt;

use super::{Count, Doubt, Proof, SETTLES_WITHIN};
use crate::clock::iso8601;
use crate::contract::money::Usd;

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
