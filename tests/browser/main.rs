//! Guarantees that only a real browser can check: Chromium opens the page that the real binary serves.
#![cfg(test)]

mod appearance;
#[path = "../support/blink.rs"]
mod blink;
mod chat;
mod chromium;
mod clips;
mod conversations;
mod documented_snippets;
mod driver;
mod element;
mod embedding;
mod firefox;
mod gate;
mod held_gateway;
mod kept_purchases;
mod kept_videos;
mod keyboard;
mod languages;
mod ledgers;
mod login;
mod long;
#[path = "../support/markdown.rs"]
#[expect(dead_code, reason = "blocks are all that is read here")]
mod markdown;
mod on_sale;
mod page;
mod page_load;
mod people;
mod pictures;
mod prefix;
mod proof;
mod purchases;
mod receipts;
mod refusals;
#[path = "../long/fleet/relay.rs"]
#[expect(dead_code, reason = "the page is moved, and nothing is stopped")]
mod relay;
mod removal;
mod scenarios;
mod shared_storage;
mod shell;
mod shop;
mod sign_in;
mod site;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "the page needs some of it")]
mod support;
mod usage;
mod video_form;
mod videos;
mod watch;
