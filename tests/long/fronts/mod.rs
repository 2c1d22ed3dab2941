//! The guarantees behind nginx, HAProxy and Caddy: each runs as `contrib/front` sets it up, before a real gate.

mod front;
mod gateway;
mod hidden;
mod proxied;
mod smuggling;
mod snippets;
