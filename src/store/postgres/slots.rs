//! What was sent to the gateway, and the rate limit that it reported.

use std::time::Duration;

use super::handle::PostgresStore;
use crate::store::{AccountLimit, SlotId, Unavailable};

impl PostgresStore {
    pub(in crate::store) async fn take_slot(&self, _slot: SlotId) -> Result<(), Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn recorded_rate_limit(
        &self,
    ) -> Result<Option<AccountLimit>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn recent_replies(
        &self,
        _within: Duration,
    ) -> Result<Vec<Duration>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) fn slot_replied(&self, _slot: SlotId) {}

    pub(in crate::store) fn release_slot(&self, _slot: SlotId) {}

    pub(in crate::store) fn record_rate_limit(&self, _limit: AccountLimit) {}
}
