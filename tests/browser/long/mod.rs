//! What `./test long` runs: Firefox, stock SDKs and a certified login service, fifty pages at once, several tabs and
//! browsers, a page that moves to another server, the gallery, and figures of speed.

mod certified;
mod fleet;
mod gallery;
mod http2;
mod main_road;
mod openai_sdk;
mod other_browsers;
mod page_performance;
mod tabs;
