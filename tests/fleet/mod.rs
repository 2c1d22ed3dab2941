//! What every guarantee needs of servers that share a ledger: one budget, one key, one list of members, and the
//! truth about purchases of a server that died.

mod agents;
mod commands;
mod copy;
mod faults;
mod shared;
