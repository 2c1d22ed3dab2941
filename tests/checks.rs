//! What holds the house together: its documents, its structure, hostile bytes, and a while of mixed traffic.
//! One program, because linking takes longer than most of these tests.
#![cfg(test)]
#![expect(
    clippy::duplicate_mod,
    reason = "the fuzzer compiles the corpus's targets alone, with this module"
)]

mod architecture;
mod corpus;
mod documents;
#[path = "support/markdown.rs"]
mod markdown;
mod soak;
#[expect(dead_code, unused_imports, reason = "only some of it is needed here")]
mod support;
