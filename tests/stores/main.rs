//! One suite on every backend of the ledger, and what only the one on disk has to guarantee.
#![cfg(test)]

mod audit;
mod budgets;
mod claims;
mod concurrency;
mod damage;
mod desk;
mod disk;
mod endings;
mod identity;
mod jobs;
mod members;
mod model;
mod oracle;
mod reports;
mod restart;
mod window;
