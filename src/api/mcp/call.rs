//! One call of a tool.

use std::pin::Pin;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::reply::{Outcome, Refusal};
use crate::api::HandlerContext;

pub(super) type Running = Pin<Box<dyn Future<Output = Result<Outcome, Refusal>> + Send>>;

/// A tool's call, with its strings unchecked.
pub(super) struct ToolCall {
    pub(super) cx: Arc<HandlerContext>,
    pub(super) arguments: Option<Box<RawValue>>,
    /// The state that the client echoes with the user's answer.
    pub(super) state: Option<String>,
    pub(super) action: Option<String>,
    /// Whether the client supports elicitation.
    pub(super) can_ask: bool,
}
