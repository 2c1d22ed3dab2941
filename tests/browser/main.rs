//! Promises that only a real browser can check: Chromium opens the page that the real binary serves.
#![cfg(test)]

mod chatting;
mod chromium;
mod conversations;
mod driver;
mod element;
mod embedding;
mod gate;
mod looks;
mod page;
mod people;
mod purchases;
mod scenarios;
mod site;
mod start;
mod tabs;
mod usage;
mod video_form;
mod videos;
mod watch;
