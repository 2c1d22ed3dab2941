//! What a caller may know and have of what was bought, and how our books compare with the gateway's.

pub mod admin;
pub mod billing;
pub mod books;
pub mod csv;
pub mod further;
pub mod jobs;
pub mod me;
pub mod media;
pub mod members;
pub mod reconcile;
pub mod reports;
pub mod spend;
pub mod statement;
mod transfer;
pub mod usage;
