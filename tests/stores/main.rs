//! One suite on the ledger's two engines, and what only one of them has to guarantee. A file in memory is the
//! same code as one on disk, so the disk has only tests of files.
#![cfg(test)]

mod audit;
mod audit_log;
mod budget_requests;
mod budgets;
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "tests of fleets use the rest")]
mod cluster;
mod concurrency;
mod damage;
mod dedupe;
mod dedupe_keys;
mod disk;
mod extras;
mod fixture;
mod groups;
mod identity;
mod jobs;
mod members;
mod model;
#[path = "../support/moment.rs"]
mod moment;
mod oracle;
mod outbox;
mod postgres;
mod rate_limit;
mod reports;
mod restart;
mod settlements;
mod subjects;
