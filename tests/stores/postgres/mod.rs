//! What only the ledger in PostgreSQL has to guarantee: its connections, its instances, and their slots.

mod connect;
mod copy;
mod faults;
pub(crate) mod fleet;
mod free_slots;
mod instances;
mod losses;
mod one_ledger;
mod timed;
mod wire;
