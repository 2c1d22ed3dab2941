//! The gateway's contract as data: models, prices, payloads, paths.
//!
//! Section numbers are those in `docs/explain/gateway.md`, which also lists each "Guess".

pub mod catalog;
pub mod decimal;
pub mod event;
pub mod member;
pub mod money;
pub mod selection;
pub mod terms;
pub mod video;
pub mod wire;
