//! What holds the house together: its documents, its structure, hostile bytes, and a while of mixed traffic.
//! One program, because linking takes longer than most of these tests.
#![cfg(test)]

mod architecture;
mod corpus;
mod documents;
#[path = "support/markdown.rs"]
mod markdown;
mod soak;
#[expect(dead_code, unused_imports, reason = "only some of it is needed here")]
mod support;
