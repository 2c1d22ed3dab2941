//! Links: callers that are worth an amount, for guests without an account.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Date;
use crate::gateway::contract::money::Usd;
use crate::gateway::contract::selection::Selection;
use crate::gateway::contract::terms::amount_text;

/// The ledger has no part of a link's token: the token is made from these fields and the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// 16 hexadecimal digits, never used again.
    pub id: Arc<str>,
    /// A line of text that says what it is for.
    pub label: Arc<str>,
    /// The sum that all of its holders can spend together.
    pub amount: Usd,
    /// `None` is `access.may_buy`.
    pub may_buy: Option<Selection>,
    /// The number of browsers that may open it; `None` is any number, and programs.
    pub uses: Option<u32>,
    /// The number of browsers that have opened it.
    pub opened: u32,
    /// The caller, or the user of a shell, that made it.
    pub by: Arc<str>,
    pub created_at: Duration,
    pub expires_at: Duration,
    pub revoked_at: Option<Duration>,
    /// Whether the ledger was restored since, and may lack purchases that were made with it.
    pub may_be_spent: bool,
}

/// Why a link buys nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    Revoked,
    Expired,
    /// The ledger was restored, and may lack purchases that were made with it.
    Restored,
}

impl LinkEnd {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Restored => "restored",
        }
    }
}

impl Link {
    /// Returns why the link has ended, if it has.
    pub fn end(&self, now: Duration) -> Option<LinkEnd> {
        if self.revoked_at.is_some() {
            Some(LinkEnd::Revoked)
        } else if self.expires_at <= now {
            Some(LinkEnd::Expired)
        } else {
            self.may_be_spent.then_some(LinkEnd::Restored)
        }
    }

    /// Describes a new link, such as `3.00 through 2026-12-24, for Trade fair, uses 1`.
    pub(super) fn describe(&self) -> String {
        let (amount, last) = (amount_text(self.amount), Date::before(self.expires_at));
        let may_buy = self.may_buy.as_ref().map(|names| format!(", may buy {names}"));
        let uses = self.uses.map(|uses| format!(", uses {uses}"));
        let (may_buy, uses) = (may_buy.unwrap_or_default(), uses.unwrap_or_default());
        format!("{amount} through {last}, for {}{may_buy}{uses}", self.label)
    }
}
