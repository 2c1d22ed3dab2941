//! One suite on every backend of the ledger, and what only the one on disk has to guarantee.
#![cfg(test)]

mod audit;
mod audit_log;
mod budget_requests;
mod budgets;
mod concurrency;
mod connect;
mod damage;
mod dedupe;
mod dedupe_keys;
mod disk;
mod extras;
mod faults;
mod fixture;
mod fleet;
mod free_slots;
mod groups;
mod identity;
mod instances;
mod jobs;
mod losses;
mod members;
mod model;
mod oracle;
mod outbox;
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "tests of fleets use the rest")]
mod postgres;
mod rate_limit;
mod reports;
mod restart;
mod settlements;
mod subjects;
mod wire;
