//! What runs a whole tollgate, over real sockets: its guarantees, and the people and programs that rely on them.
//! One binary, as linking takes longer than most of the tests.
#![cfg(test)]

mod agents;
mod commands;
mod embedding;
mod guarantees;
mod long;
#[path = "support/markdown.rs"]
#[expect(dead_code, reason = "blocks are all that is read here")]
mod markdown;
mod schema;
mod support;
