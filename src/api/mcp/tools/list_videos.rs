//! The tool `list_videos`.

use super::{Effect, Tool, facts};
use crate::api::mcp::call::ToolCall;
use crate::api::mcp::reply::{Outcome, Refusal};
use crate::api::mcp::schema;
use crate::api::reports::jobs;
use crate::api::validate::mcp::Arguments;
use crate::gateway::contract::catalog::Service;

pub(super) const TOOL: Tool = Tool {
    name: "list_videos",
    title: "List videos",
    about: "Lists your videos, the latest first, with their states. Free.",
    service: Some(Service::Video),
    effect: Effect::Reads,
    schema: |_, _| schema::nothing(),
    run: |call| Box::pin(run(call)),
};

async fn run(call: ToolCall) -> Result<Outcome, Refusal> {
    Arguments::read(call.arguments.as_deref(), &[])?.finish()?;
    let jobs = &call.cx.handlers.jobs;
    facts(jobs::list(jobs, &call.cx.call.caller, Vec::new()).await)
}
