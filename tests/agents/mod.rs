//! Agents at `POST /mcp`: the protocol on the wire, and what they buy there.

mod client;
mod expiry;
mod on_sale;
mod purchases;
mod simulator;
mod wire;
