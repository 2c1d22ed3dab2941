//! The messages of the Model Context Protocol, and the arguments of its tools.
//!
//! Fields that are not listed here are ignored in messages, as the protocol demands, and rejected in
//! arguments.

mod arguments;

use std::borrow::Cow;

use serde::de::MapAccess;
use serde_json::value::RawValue;

use super::json::{self, Entry, Field, FromObject};
use super::rule::UnknownFields;
use crate::gate::problem::Problem;

pub use arguments::{Arguments, OrderArguments, order};

/// The key of the elicitation that asks the user to confirm.
pub const QUESTION: &str = "confirm";

/// One JSON-RPC message, with its faults in place of values of a wrong type.
#[derive(Debug)]
pub struct RpcMessage<'a> {
    /// A string or an integer, as it was written; `None` for a notification.
    pub id: Option<&'a RawValue>,
    pub method: Cow<'a, str>,
    pub params: Params<'a>,
}

/// The reason for rejecting a message.
#[derive(Debug)]
pub enum MessageError<'a> {
    /// The body is not one well-formed JSON object.
    NoJson(Problem),
    /// It is JSON, but neither a JSON-RPC request nor a notification.
    NoRequest(&'static str),
    /// It is a request with invalid parameters.
    WrongParams(Option<&'a RawValue>, &'static str),
}

#[derive(Debug, Default)]
pub struct Params<'a> {
    pub name: Option<Cow<'a, str>>,
    pub arguments: Option<&'a RawValue>,
    /// The revision that `initialize` asks for.
    pub protocol_version: Option<Cow<'a, str>>,
    pub request_state: Option<Cow<'a, str>>,
    /// The user's answer to [`QUESTION`]: `accept`, `decline` or `cancel`.
    pub action: Option<Cow<'a, str>>,
    /// Since 2026-07-28, each request has a version.
    pub version: Option<Cow<'a, str>>,
    /// Since 2026-07-28, each request has capabilities: whether the client supports elicitation.
    pub can_ask: Option<bool>,
    /// A string or an integer, as it was written.
    pub progress_token: Option<&'a RawValue>,
}

/// Reads one message.
///
/// # Errors
/// Reports the first fault only, because faults of a message are bugs of the client, not of its user.
pub fn message(payload: &[u8]) -> Result<RpcMessage<'_>, MessageError<'_>> {
    let mut draft = MessageDraft::default();
    json::read_object(payload, &mut draft).map_err(MessageError::NoJson)?;
    for raw in [draft.id, draft.arguments(), draft.progress_token()].into_iter().flatten() {
        json::check_raw(payload, raw).map_err(MessageError::NoJson)?;
    }
    let MessageDraft { jsonrpc, id, method, params, .. } = draft;
    if !matches!(&jsonrpc, Field::Present(version) if version == "2.0") {
        return Err(MessageError::NoRequest("expected \"jsonrpc\": \"2.0\""));
    }
    if id.is_some_and(|id| !is_id(id)) {
        return Err(MessageError::NoRequest("expected a string or an integer as id"));
    }
    let Field::Present(method) = method else {
        return Err(MessageError::NoRequest("expected a request or a notification with a method"));
    };
    let params = match params {
        Field::Absent => ParamsDraft::default(),
        Field::Present(params) => params,
        Field::WrongType(_) => {
            return Err(MessageError::WrongParams(id, "params: expected an object"));
        }
    };
    let params = params.finish().map_err(|why| MessageError::WrongParams(id, why))?;
    Ok(RpcMessage { id, method, params })
}

#[derive(Default)]
struct MessageDraft<'a> {
    jsonrpc: Field<Cow<'a, str>>,
    id: Option<&'a RawValue>,
    method: Field<Cow<'a, str>>,
    params: Field<ParamsDraft<'a>>,
    ignored: UnknownFields<'a>,
}

impl<'a> MessageDraft<'a> {
    fn arguments(&self) -> Option<&'a RawValue> {
        self.params.value()?.arguments
    }

    fn progress_token(&self) -> Option<&'a RawValue> {
        self.params.value()?.meta.value()?.progress_token
    }
}

impl<'a> FromObject<'a> for MessageDraft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "jsonrpc" => entry.read_into(&mut self.jsonrpc),
            "id" => entry.keep(&mut self.id),
            "method" => entry.read_into(&mut self.method),
            "params" => entry.read_into(&mut self.params),
            _ => entry.ignore(&mut self.ignored),
        }
    }
}

#[derive(Default)]
struct ParamsDraft<'a> {
    name: Field<Cow<'a, str>>,
    arguments: Option<&'a RawValue>,
    protocol_version: Field<Cow<'a, str>>,
    request_state: Field<Cow<'a, str>>,
    input_responses: Field<Responses<'a>>,
    meta: Field<Meta<'a>>,
    ignored: UnknownFields<'a>,
}

impl<'a> ParamsDraft<'a> {
    fn finish(self) -> Result<Params<'a>, &'static str> {
        let meta = optional(self.meta, "params._meta: expected an object")?.unwrap_or_default();
        if meta.progress_token.is_some_and(|token| !is_id(token)) {
            return Err("params._meta.progressToken: expected a string or an integer");
        }
        let responses =
            optional(self.input_responses, "params.inputResponses: expected an object")?;
        let answer = match responses {
            None => None,
            Some(responses) => {
                optional(responses.confirm, "params.inputResponses.confirm: expected an object")?
            }
        };
        let action = "params.inputResponses.confirm.action: expected a string";
        let version = "params._meta: expected text as io.modelcontextprotocol/protocolVersion";
        let capabilities =
            "params._meta: expected an object as io.modelcontextprotocol/clientCapabilities";
        Ok(Params {
            name: optional(self.name, "params.name: expected a string")?,
            arguments: self.arguments,
            protocol_version: optional(
                self.protocol_version,
                "params.protocolVersion: expected a string",
            )?,
            request_state: optional(self.request_state, "params.requestState: expected a string")?,
            action: match answer {
                None => None,
                Some(answer) => optional(answer.action, action)?,
            },
            version: optional(meta.version, version)?,
            can_ask: optional(meta.capabilities, capabilities)?.map(|one| one.can_ask()),
            progress_token: meta.progress_token,
        })
    }
}

impl<'a> FromObject<'a> for ParamsDraft<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "name" => entry.read_into(&mut self.name),
            "arguments" => entry.keep(&mut self.arguments),
            "protocolVersion" => entry.read_into(&mut self.protocol_version),
            "requestState" => entry.read_into(&mut self.request_state),
            "inputResponses" => entry.read_into(&mut self.input_responses),
            "_meta" => entry.read_into(&mut self.meta),
            _ => entry.ignore(&mut self.ignored),
        }
    }
}

#[derive(Default)]
struct Meta<'a> {
    version: Field<Cow<'a, str>>,
    capabilities: Field<Capabilities<'a>>,
    progress_token: Option<&'a RawValue>,
    ignored: UnknownFields<'a>,
}

impl<'a> FromObject<'a> for Meta<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "io.modelcontextprotocol/protocolVersion" => entry.read_into(&mut self.version),
            "io.modelcontextprotocol/clientCapabilities" => entry.read_into(&mut self.capabilities),
            "progressToken" => entry.keep(&mut self.progress_token),
            _ => entry.ignore(&mut self.ignored),
        }
    }
}

#[derive(Default)]
struct Capabilities<'a> {
    elicitation: Field<UnknownFields<'a>>,
    ignored: UnknownFields<'a>,
}

impl Capabilities<'_> {
    /// An elicitation capability without modes means forms.
    fn can_ask(&self) -> bool {
        let modes = self.elicitation.value().map(|elicitation| &elicitation.names);
        modes.is_some_and(|modes| modes.contains("form") || !modes.contains("url"))
    }
}

impl<'a> FromObject<'a> for Capabilities<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "elicitation" => entry.read_into(&mut self.elicitation),
            _ => entry.ignore(&mut self.ignored),
        }
    }
}

#[derive(Default)]
struct Responses<'a> {
    confirm: Field<Answer<'a>>,
    ignored: UnknownFields<'a>,
}

impl<'a> FromObject<'a> for Responses<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            QUESTION => entry.read_into(&mut self.confirm),
            _ => entry.ignore(&mut self.ignored),
        }
    }
}

#[derive(Default)]
struct Answer<'a> {
    action: Field<Cow<'a, str>>,
    ignored: UnknownFields<'a>,
}

impl<'a> FromObject<'a> for Answer<'a> {
    fn member<A: MapAccess<'a>>(&mut self, entry: Entry<'_, 'a, A>) -> Result<(), A::Error> {
        match entry.name() {
            "action" => entry.read_into(&mut self.action),
            _ => entry.ignore(&mut self.ignored),
        }
    }
}

fn optional<T>(field: Field<T>, expected: &'static str) -> Result<Option<T>, &'static str> {
    match field {
        Field::Absent => Ok(None),
        Field::Present(value) => Ok(Some(value)),
        Field::WrongType(_) => Err(expected),
    }
}

/// Returns whether a JSON value is a string or an integer.
fn is_id(raw: &RawValue) -> bool {
    let text = raw.get();
    text.starts_with('"') || text.parse::<i64>().is_ok()
}

#[cfg(test)]
mod tests;
