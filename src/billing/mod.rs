//! The account as the gateway reports it, and how the ledger compares with that.

pub mod checkpoints;
pub mod reconcile;
pub mod summary;
