//! Agents at `POST /mcp`: the protocol on the wire, and what they buy there.

mod client;
mod purchases;
mod wire;
