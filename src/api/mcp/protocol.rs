//! The protocol's revisions and errors. Requests are independent of each other in all of them.
//!
//! Since 2026-07-28, each request has its version and capabilities, and headers that repeat parts of
//! its body. Older clients begin with `initialize` and are served without a session.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::api::validate::mcp::{MessageError, RpcMessage};
use crate::gate::response::{self, Response};

const STATELESS: &str = "2026-07-28";
/// The revisions with `initialize`, the preferred one first.
const WITH_INITIALIZE: [&str; 2] = ["2025-11-25", "2025-06-18"];
pub(super) const VERSIONS: [&str; 3] = [STATELESS, WITH_INITIALIZE[0], WITH_INITIALIZE[1]];

const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revision {
    Stateless,
    WithInitialize,
}

#[derive(Debug)]
pub(super) struct RpcError {
    status: StatusCode,
    code: i32,
    message: Cow<'static, str>,
    data: Option<Value>,
}

impl RpcError {
    fn new(status: StatusCode, code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into(), data: None }
    }

    pub(super) fn invalid_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32_600, message)
    }

    pub(super) fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32_602, message)
    }

    /// Older clients treat an HTTP error as a failure of the whole server, so they get a 200.
    pub(super) fn for_revision(self, revision: Revision) -> Self {
        match revision {
            Revision::Stateless => self,
            Revision::WithInitialize => Self { status: StatusCode::OK, ..self },
        }
    }

    pub(super) fn method_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, -32_601, "Method not found")
    }

    fn header_mismatch(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, -32_020, message)
    }

    fn unsupported_version(requested: &str) -> Self {
        let data = json!({ "supported": VERSIONS, "requested": requested });
        let message = "Unsupported protocol version";
        Self { data: Some(data), ..Self::new(StatusCode::BAD_REQUEST, -32_022, message) }
    }

    pub(super) fn of_message<'a>(error: MessageError<'a>) -> (Option<&'a RawValue>, Self) {
        match error {
            MessageError::NoJson(problem) => {
                let detail = problem.detail_text().unwrap_or_default().to_owned();
                (None, Self::new(StatusCode::BAD_REQUEST, -32_700, detail))
            }
            MessageError::NoRequest(why) => (None, Self::invalid_request(why)),
            MessageError::WrongParams(id, why) => (id, Self::invalid_params(why)),
        }
    }

    /// Returns the error response; `id` is `None` if the request's id could not be read.
    pub(super) fn response(&self, id: Option<&RawValue>) -> Response {
        #[derive(Serialize)]
        struct Failure<'a> {
            jsonrpc: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<&'a RawValue>,
            error: ErrorBody<'a>,
        }
        #[derive(Serialize)]
        struct ErrorBody<'a> {
            code: i32,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<&'a Value>,
        }
        let error = ErrorBody { code: self.code, message: &self.message, data: self.data.as_ref() };
        response::json(self.status, &Failure { jsonrpc: "2.0", id, error })
    }
}

/// Determines the revision of a request, and rejects headers that contradict its body.
pub(super) fn revision(
    headers: &HeaderMap,
    message: &RpcMessage<'_>,
) -> Result<Revision, RpcError> {
    let header = single(headers, &VERSION_HEADER)?;
    let (Some(version), false) = (&message.params.version, message.method == "initialize") else {
        return match header {
            // Clients before 2025-06-18 send none.
            None => Ok(Revision::WithInitialize),
            Some(version) if WITH_INITIALIZE.contains(&version) => Ok(Revision::WithInitialize),
            Some(STATELESS) if message.method != "initialize" => Err(RpcError::invalid_params(
                "params._meta: expected io.modelcontextprotocol/protocolVersion",
            )),
            Some(_) if message.method == "initialize" => Ok(Revision::WithInitialize),
            Some(version) => Err(RpcError::unsupported_version(version)),
        };
    };
    check_header("MCP-Protocol-Version", header, version)?;
    if WITH_INITIALIZE.contains(&&**version) {
        return Ok(Revision::WithInitialize);
    }
    if version != STATELESS {
        return Err(RpcError::unsupported_version(version));
    }
    check_header("Mcp-Method", single(headers, &METHOD_HEADER)?, &message.method)?;
    if message.method == "tools/call"
        && let Some(name) = &message.params.name
    {
        let header = single(headers, &NAME_HEADER)?.map(decode).transpose()?;
        check_header("Mcp-Name", header.as_deref(), name)?;
    }
    if message.params.can_ask.is_none() {
        return Err(RpcError::invalid_params(
            "params._meta: expected io.modelcontextprotocol/clientCapabilities",
        ));
    }
    Ok(Revision::Stateless)
}

/// Returns the revision that `initialize` agrees on.
pub(super) fn agreed(requested: Option<&str>) -> &'static str {
    let known = WITH_INITIALIZE.iter().find(|known| Some(**known) == requested);
    known.copied().unwrap_or(WITH_INITIALIZE[0])
}

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let (first, more) = (values.next(), values.next());
    let text = first.map(|value| value.to_str()).transpose();
    match (text, more) {
        (Ok(text), None) => Ok(text),
        _ => Err(RpcError::header_mismatch(format!("{name}: expected one line of ASCII"))),
    }
}

fn check_header(name: &str, header: Option<&str>, body: &str) -> Result<(), RpcError> {
    match header {
        Some(value) if value == body => Ok(()),
        Some(_) => Err(RpcError::header_mismatch(format!("{name} differs from the body"))),
        None => Err(RpcError::header_mismatch(format!("the header {name} is missing"))),
    }
}

/// Decodes a header value that is encoded because it is not plain ASCII.
fn decode(value: &str) -> Result<Cow<'_, str>, RpcError> {
    let encoded = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let Some(encoded) = encoded else { return Ok(value.into()) };
    let text = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let malformed = || RpcError::header_mismatch("Mcp-Name: expected base64 of UTF-8".to_owned());
    text.map(Cow::Owned).ok_or_else(malformed)
}

/// Returns the JSON of a response with a result.
pub(super) fn result_json(revision: Revision, id: &RawValue, result: &impl Serialize) -> Bytes {
    #[derive(Serialize)]
    struct Success<'a, T> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        result: Framed<'a, T>,
    }
    #[derive(Serialize)]
    struct Framed<'a, T> {
        #[serde(flatten)]
        result: &'a T,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<Value>,
    }
    let meta = json!({ "io.modelcontextprotocol/serverInfo": server_info() });
    let meta = (revision == Revision::Stateless).then_some(meta);
    let success = Success { jsonrpc: "2.0", id, result: Framed { result, meta } };
    // Serializing plain data cannot fail.
    serde_json::to_vec(&success).unwrap_or_default().into()
}

pub(super) fn server_info() -> Value {
    json!({ "name": "tollgate", "version": env!("CARGO_PKG_VERSION") })
}

/// Returns the member `resultType` of newer revisions.
pub(super) fn result_type(revision: Revision, name: &'static str) -> Option<&'static str> {
    (revision == Revision::Stateless).then_some(name)
}
