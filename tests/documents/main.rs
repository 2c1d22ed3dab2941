//! Keeps the documents true: what they list is what the code has, and what they tell people to type works.
#![cfg(test)]

mod generated;
mod lists;
#[path = "../support/markdown.rs"]
mod markdown;
mod references;
mod security;
mod settings;
#[path = "../support/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the documents need some of it")]
mod support;
mod walk;
