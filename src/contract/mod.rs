//! The gateway's contract as data: models and their prices, payloads, paths. Pure; no async, no
//! sockets, no clock.
//!
//! Section numbers in this module's docs are those of the gateway's contract, as retold in
//! `docs/explain/gateway.md`. Whatever the contract does not show has a name here (a variant, a constant
//! with "guess" in its doc) and a line in `docs/explain/gateway.md`.

pub mod catalog;
pub mod money;
pub mod video;
pub mod wire;
