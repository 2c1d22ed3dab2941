//! Guarantees that only a real browser can check: Chromium opens the page that the real binary serves.
#![cfg(test)]

mod chatting;
mod chromium;
mod clips;
mod conversations;
mod driver;
mod element;
mod elsewhere;
mod embedding;
mod gate;
mod kept;
mod ledgers;
mod looks;
#[path = "../support/markdown.rs"]
#[expect(dead_code, reason = "blocks are all that is read here")]
mod markdown;
mod openai_sdk;
mod page;
mod pasted;
mod people;
mod purchases;
mod scenarios;
mod shared;
mod shop;
mod site;
mod start;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "the page needs some of it")]
mod support;
mod tabs;
mod usage;
mod video_form;
mod videos;
mod watch;
