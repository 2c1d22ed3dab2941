//! The stock SDKs, unchanged and with their default settings, against the real stack: they work, and
//! whatever the gateway does, one call of theirs is charged once at most. They send no idempotency key.
#![cfg(test)]

mod calls;
mod faults;
#[path = "../documents/markdown.rs"]
#[expect(dead_code, reason = "blocks are all that is read here")]
mod markdown;
mod program;
mod sandbox;
mod snippets;
#[expect(dead_code, reason = "shared with the gate's tests, which use all of it")]
#[path = "../gate/support/mod.rs"]
mod support;
mod typescript;
