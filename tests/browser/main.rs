//! Promises that only a real browser can check: Chromium opens the page that the real binary serves.
#![cfg(test)]

mod chromium;
mod driver;
mod element;
mod gate;
mod page;
mod purchases;
mod scenarios;
mod site;
mod tabs;
mod video_form;
mod videos;
mod watch;
