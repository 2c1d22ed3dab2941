//! The promises behind nginx, HAProxy and Caddy: each runs as docs/recipes.md sets it up, before a real gate.
#![cfg(test)]

#[path = "../gate/heads/corpus.rs"]
mod corpus;
#[path = "../documents/markdown.rs"]
#[expect(dead_code, reason = "blocks are all that is read here")]
mod markdown;
#[path = "../gate/support/mod.rs"]
#[expect(dead_code, reason = "not every part of it is needed behind a front")]
mod support;

mod front;
mod gateway;
mod hidden;
mod passing;
mod smuggling;
mod snippets;
