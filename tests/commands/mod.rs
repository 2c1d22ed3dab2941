//! What `member`, `usage`, `reconcile` and `check --online` print and change, by the real binary before a sandbox.

mod account;
mod audit;
mod backup;
mod check;
pub(crate) mod fixture;
mod group;
mod link;
pub(crate) mod lists;
mod member;
mod online;
mod purchase;
mod rate_limit;
mod reconcile;
mod recorder;
mod restore;
mod usage;
