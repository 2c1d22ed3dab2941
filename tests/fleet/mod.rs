//! What every guarantee needs of servers that share a ledger: one budget, one key, one list of members, and the
//! truth about purchases of a server that died.
//!
//! `FLEET=long`, which `./test long` sets, tries all variants of each fault.

mod agents;
mod clocks;
mod commands;
mod copy;
mod crashes;
mod fairness;
mod faults;
mod issuers;
mod logins;
mod losses;
mod moves;
mod outages;
mod pauses;
mod relay;
mod restores;
mod shared;
mod streams;
mod trial;
mod upgrades;
