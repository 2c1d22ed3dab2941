//! The tools. Each has a file with its schema, the reader of its arguments and its handler, and a row in [`TOOLS`].

mod chat;
mod create_video;
mod get_balance;
mod get_video;
mod list_models;
mod list_videos;
mod quote;

use bytes::Bytes;
use serde_json::{Value, json};

use super::call::{Running, ToolCall};
use super::reply::{Done, Outcome, Refusal, raw_bytes};
use crate::api::validate::ChatRules;
use crate::gate::problem::Problem;
use crate::gate::response::Response;
use crate::gateway::contract::catalog::Service;
use crate::gateway::contract::money::Usd;

/// The tools in the order in which clients see them.
const TOOLS: &[Tool] = &[
    list_models::TOOL,
    get_balance::TOOL,
    quote::TOOL,
    chat::TOOL,
    create_video::TOOL,
    get_video::TOOL,
    list_videos::TOOL,
];

pub(super) struct Tool {
    name: &'static str,
    title: &'static str,
    /// The description for models, which the guide has, too.
    about: &'static str,
    /// The service that must be on sale for the tool to exist; `None` for tools that always exist.
    service: Option<Service>,
    effect: Effect,
    /// Returns the schema of the arguments. Some depend on the services that are sold.
    schema: fn(&ChatRules, &[Service]) -> Value,
    pub(super) run: fn(ToolCall) -> Running,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    Quotes,
    Buys { is_destructive: bool },
}

impl Tool {
    fn exists(&self, sold: &[Service]) -> bool {
        self.service.is_none_or(|service| sold.contains(&service))
    }

    /// Whether its arguments may be as large as a chat's.
    pub(super) fn takes_chats(&self) -> bool {
        self.effect == Effect::Quotes || self.takes_long()
    }

    /// Whether a call may wait for the gateway's reply to a chat.
    pub(super) fn takes_long(&self) -> bool {
        self.effect == Effect::Buys { is_destructive: false }
    }

    fn document(&self, sold: &[Service], ask: Usd, rules: &ChatRules) -> Value {
        let (is_read_only, is_destructive) = match self.effect {
            Effect::Reads | Effect::Quotes => (true, false),
            Effect::Buys { is_destructive } => (false, is_destructive),
        };
        let mut about = self.about.to_owned();
        if self.takes_long() {
            about += &format!(" From {} on, it needs a quote.", ask.short());
        }
        json!({
            "name": self.name,
            "title": self.title,
            "description": about,
            "inputSchema": (self.schema)(rules, sold),
            "annotations": {
                "title": self.title,
                "readOnlyHint": is_read_only,
                "destructiveHint": is_destructive,
                "idempotentHint": true,
                "openWorldHint": !is_read_only,
            },
        })
    }
}

pub(super) fn list(sold: &[Service], ask: Usd, rules: &ChatRules) -> Value {
    let tools = TOOLS.iter().filter(|tool| tool.exists(sold));
    tools.map(|tool| tool.document(sold, ask, rules)).collect()
}

pub(super) fn find(sold: &[Service], name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name && tool.exists(sold))
}

/// Returns the name and the description of each tool.
pub(super) fn descriptions() -> impl Iterator<Item = (&'static str, &'static str)> {
    TOOLS.iter().map(|tool| (tool.name, tool.about))
}

/// Returns the JSON document of another endpoint.
fn facts(response: Result<Response, Problem>) -> Result<Outcome, Refusal> {
    let body: Bytes = response?.body().whole().unwrap_or_default();
    Ok(Outcome::Done(Done::facts(raw_bytes(&body))))
}

#[cfg(test)]
mod tests;
