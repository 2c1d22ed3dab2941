//! The account as the gateway reports it, and its comparison with the ledger.

pub mod alerts;
pub mod checkpoints;
pub mod reconcile;
pub mod summary;
pub mod webhooks;
