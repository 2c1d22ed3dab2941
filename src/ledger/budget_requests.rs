//! Requests of callers for more budget, and what admins answer.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::money::Usd;

/// Each caller has one open request at most: a second one replaces the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRequest {
    /// Never used again.
    pub id: u64,
    pub caller: Arc<str>,
    pub amount: Usd,
    pub reason: Arc<str>,
    pub at: Duration,
}

pub(super) const GRANT: &str = "request.grant";
pub(super) const DECLINE: &str = "request.decline";
