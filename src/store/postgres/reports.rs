//! Queries for reports and reconciliation: purchases, checkpoints, and the account's keys.

use std::time::Duration;

use super::handle::PostgresStore;
use crate::store::{
    AccountCheck, Checkpoint, Evidence, LedgerTotals, PurchaseId, PurchaseRecord, Snapshot,
    SpendRow, Unavailable,
};

impl PostgresStore {
    pub(in crate::store) async fn purchases_since(
        &self,
        _since: Duration,
    ) -> Result<Vec<PurchaseRecord>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn unknown_purchases(
        &self,
        _most: usize,
    ) -> Result<Vec<PurchaseRecord>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn totals(&self) -> Result<LedgerTotals, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn purchase(
        &self,
        _id: PurchaseId,
    ) -> Result<Option<PurchaseRecord>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn spend(
        &self,
        _caller: Option<String>,
        _since: Duration,
        _utc_offset: i64,
        _most: usize,
    ) -> Result<Vec<SpendRow>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn record_checkpoint(
        &self,
        _snapshot: Snapshot,
    ) -> Result<(), Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn latest_checkpoint(
        &self,
    ) -> Result<Option<Checkpoint>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn latest_snapshots(
        &self,
        _most: usize,
    ) -> Result<Vec<Snapshot>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn unknown_after(&self, _number: u64) -> Result<u64, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn evidence(
        &self,
        _settled: u64,
        _refundable: Duration,
    ) -> Result<Vec<Evidence>, Unavailable> {
        Err(self.unsupported())
    }

    pub(in crate::store) async fn check_account(
        &self,
        _keys: Vec<String>,
        _how: AccountCheck,
    ) -> Result<bool, Unavailable> {
        Err(self.unsupported())
    }
}
