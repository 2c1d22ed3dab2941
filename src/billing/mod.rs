//! The account as the gateway reports it, and how the ledger compares with that.

pub mod books;
pub mod reconcile;
pub mod statement;
pub mod summary;
