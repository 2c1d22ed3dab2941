//! What `member`, `usage`, `reconcile` and `check --online` print and change, by the real binary before a sandbox.

mod account;
mod desk;
mod member;
mod online;
mod purchase;
mod reconcile;
mod recorder;
mod usage;
mod window;
