//! What every guarantee needs of servers that share a ledger: one budget, one key, one list of members, and the
//! truth about purchases of a server that died.

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
mod streams;
mod trial;
mod upgrades;
