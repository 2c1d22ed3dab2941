//! What `member`, `usage`, `reconcile` and `check --online` print and change, by the real binary before a sandbox.
#![cfg(test)]

mod desk;
mod member;
mod online;
mod reconcile;
mod recorder;
mod usage;
mod window;
