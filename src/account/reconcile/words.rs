//! Says in words what was told of an outcome, and why.

use std::fmt;

use super::Count;
use super::Doubt;
use super::Proof;
use super::SETTLES_WITHIN;
use crate::clock::iso8601;

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "by the count: {count}"),
            Self::Spending(amount) => write!(
                f,
                "by the spending: beyond chats and what is posted here, {} was spent",
                amount.short()
            ),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counted, posted, unknown } = self;
        write!(f, "the gateway counted {counted}, {posted} posted and {unknown} unknown here")
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Older(checkpoint) => {
                write!(f, "it is older than the last checkpoint, {}", iso8601(*checkpoint))
            }
            Self::Young => write!(
                f,
                "not charged so far, and it may be yet: ask again {} minutes after it was lost",
                SETTLES_WITHIN.as_secs() / 60
            ),
            Self::WentBack => f.write_str("a counter of the gateway is lower than it was"),
            Self::Miscounted(count) if count.counted < count.posted => {
                write!(f, "the gateway counts fewer chats than were posted: {count}")
            }
            Self::Miscounted(count) => {
                write!(f, "somebody else uses the account: {count}")
            }
            Self::WhichOne { charged, of } => {
                write!(f, "{charged} of {of} alike were charged, and nothing says which")
            }
            Self::NoSum => f.write_str(
                "no choice of the unknown videos costs what was spent: somebody else uses the account",
            ),
            Self::ManySums => {
                f.write_str("more than one choice of the unknown videos costs what was spent")
            }
            Self::Uncounted => f.write_str("nothing at the gateway counts this kind of purchase"),
        }
    }
}
