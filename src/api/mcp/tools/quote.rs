//! The tool `quote`.

use serde_json::{Value, json};

use super::{Effect, Tool, chat, create_video};
use crate::api::mcp::call::ToolCall;
use crate::api::mcp::reply::{Outcome, Refusal};
use crate::api::mcp::{schema, sell};
use crate::api::validate::mcp::Arguments;
use crate::api::validate::{self, ChatRules, Checked, Order};
use crate::gate::problem::{FieldError, INVALID_REQUEST, Problem};
use crate::gateway::contract::catalog::Service;

pub(super) const TOOL: Tool = Tool {
    name: "quote",
    title: "Get a price",
    about: "Checks an order and returns its price and its quote. Free. Pass either `chat` or \
        `video`, with the arguments of that tool. The same order has the same quote for a few \
        minutes; if it was bought already, the answer says so.",
    service: None,
    effect: Effect::Quotes,
    schema: arguments,
    run: |call| Box::pin(run(call)),
};

const CHAT: &str = "chat";
const VIDEO: &str = "video";
const AGAIN: &str = "again";

fn arguments(rules: &ChatRules, sold: &[Service]) -> Value {
    let again = "Set it only if a further copy is wanted of what was bought already.";
    let mut properties = json!({ AGAIN: { "type": "boolean", "description": again } });
    if sold.contains(&Service::Chat) {
        properties[CHAT] = chat::order(rules);
    }
    if sold.contains(&Service::Video) {
        properties[VIDEO] = create_video::order(&rules.catalog);
    }
    schema::object(properties, &[])
}

async fn run(call: ToolCall) -> Result<Outcome, Refusal> {
    let mut arguments = Arguments::read(call.arguments.as_deref(), &[CHAT, VIDEO, AGAIN])?;
    let (chat, video) = (arguments.object(CHAT), arguments.object(VIDEO));
    let again = arguments.flag(AGAIN)?;
    if chat.is_some() == video.is_some() {
        arguments.missing("expected either chat or video, with the arguments of that tool");
    }
    arguments.finish()?;
    let order = order((chat, video), &call.cx.handlers.rules)?;
    sell::quote(&call, order, again).await
}

/// Reads the order as the endpoints do. Pointers of faults begin with `/chat` or `/video`.
fn order(
    (chat, video): (Option<&str>, Option<&str>),
    rules: &ChatRules,
) -> Result<Checked<Order>, Problem> {
    if let Some(chat) = chat {
        return validate::chat(chat.as_bytes(), rules).map_err(|problem| within(CHAT, problem));
    }
    let video = validate::video(video.unwrap_or("{}").as_bytes(), &rules.catalog);
    Ok(video.map_err(|problem| within(VIDEO, problem))?.order)
}

fn within(argument: &str, problem: Problem) -> Problem {
    if problem.kind() != &INVALID_REQUEST {
        return problem;
    }
    let moved = |error: &FieldError| FieldError {
        pointer: format!("/{argument}{}", error.pointer),
        ..error.clone()
    };
    Problem::invalid(problem.errors().iter().map(moved).collect())
}
