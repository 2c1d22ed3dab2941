//! The tool `get_balance`.

use super::{Effect, Tool, facts};
use crate::api::mcp::call::ToolCall;
use crate::api::mcp::reply::{Outcome, Refusal};
use crate::api::mcp::schema;
use crate::api::validate::mcp::Arguments;

pub(super) const TOOL: Tool = Tool {
    name: "get_balance",
    title: "Get what is left",
    about: "Returns what is left of your budgets and limits. Free.",
    service: None,
    effect: Effect::Reads,
    schema: |_, _| schema::nothing(),
    run: |call| Box::pin(run(call)),
};

async fn run(call: ToolCall) -> Result<Outcome, Refusal> {
    Arguments::read(call.arguments.as_deref(), &[])?.finish()?;
    let inner = &call.cx.call;
    facts(call.cx.handlers.me.report(&inner.caller, &inner.session).await)
}
