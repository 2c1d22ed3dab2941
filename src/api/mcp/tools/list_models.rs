//! The tool `list_models`.

use super::{Effect, Tool};
use crate::api::mcp::call::ToolCall;
use crate::api::mcp::reply::{Done, Outcome, Refusal, raw_bytes};
use crate::api::mcp::schema;
use crate::api::validate::mcp::Arguments;

pub(super) const TOOL: Tool = Tool {
    name: "list_models",
    title: "List models",
    about: "Lists the chat and video models with their prices and rules. Free.",
    service: None,
    effect: Effect::Reads,
    schema: |_, _| schema::nothing(),
    run: |call| Box::pin(run(call)),
};

async fn run(call: ToolCall) -> Result<Outcome, Refusal> {
    Arguments::read(call.arguments.as_deref(), &[])?.finish()?;
    let models = call.cx.mcp()?.models.document(call.cx.may_buy(), None);
    Ok(Outcome::Done(Done::facts(raw_bytes(&models))))
}
