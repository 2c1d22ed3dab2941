//! `[mcp]`: `POST /mcp`, the endpoint for agents.

use super::read::{Section, section};
use super::value::{Parsed, money};
use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::Usd;

section! {
    pub struct McpConfig {
        pub enabled: bool = flag("enabled"),
        /// The services that have tools.
        pub tools: Vec<Service> = list("tools", service, TOOLS.to_vec()),
        /// Chats from this price on need a quote.
        pub ask: Usd = text("ask", money, Usd::mills(100)),
    }
}

const TOOLS: [Service; 2] = [Service::Chat, Service::Video];

fn service(text: &str) -> Parsed<Service> {
    let known = TOOLS.into_iter().find(|service| service.name() == text);
    known.ok_or("expected \"chat\" or \"video\"".into())
}
