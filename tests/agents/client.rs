//! An agent that speaks any revision of the protocol.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::Answer;
use crate::support::received::ReceivedRequest;
use crate::support::{Gate, Reply, Upstream};

pub(super) const STATELESS: &str = "2026-07-28";
/// The endpoint is off by default.
pub(super) const ON: &str = "mcp.enabled = true";
/// Quotes change, and the oldest ones end, after so many seconds.
const QUOTE_SLOT: u64 = 300;

/// Starts a gate at the beginning of a slot of time, within which equal orders have equal quotes.
pub(super) fn gate(upstream: &Upstream, settings: &str) -> Gate {
    Gate::start_at(upstream, settings, || {
        let now = tollgate::clock::wall().as_secs();
        Duration::from_secs(now - now % QUOTE_SLOT)
    })
}

/// A gateway that accepts everything.
pub(super) fn upstream() -> Upstream {
    Upstream::start(accept)
}

pub(super) fn accept(received: &ReceivedRequest) -> Reply {
    match (&*received.method, &*received.target) {
        ("POST", "/api/v1/video") => Reply::video("job-1"),
        ("POST", _) => Reply::chat("hello"),
        _ => Reply::new(200, r#"{"status":"running"}"#),
    }
}

/// A request of revision 2026-07-28 without capabilities.
pub(super) fn request(method: &str, params: Value) -> Value {
    request_of(method, params, json!({}))
}

/// A request of a client that can ask its person.
pub(super) fn request_of(method: &str, mut params: Value, capabilities: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(STATELESS);
    params["_meta"]["io.modelcontextprotocol/clientInfo"] =
        json!({ "name": "agent", "version": "1" });
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params })
}

/// The headers that repeat parts of a request.
pub(super) fn headers(request: &Value) -> Vec<(&'static str, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut headers = vec![("mcp-protocol-version", STATELESS.to_owned())];
    headers.extend(text(&request["method"]).map(|method| ("mcp-method", method)));
    headers.extend(text(&request["params"]["name"]).map(|name| ("mcp-name", name)));
    headers
}

/// Sends a request with its headers and `more`.
pub(super) fn send(gate: &Gate, request: &Value, more: &[(&str, &str)]) -> Answer {
    let own = headers(request);
    let own = own.iter().map(|(name, value)| (*name, value.as_str()));
    let all: Vec<_> = own.chain(more.iter().copied()).collect();
    gate.ask("POST", "/mcp", &all, &request.to_string())
}

/// Calls a tool, and returns the result.
pub(super) fn call(gate: &Gate, tool: &str, arguments: Value) -> Value {
    let request = request("tools/call", json!({ "name": tool, "arguments": arguments }));
    result_of(&send(gate, &request, &[]))
}

/// The complete result in an answer.
pub(super) fn result_of(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let result = answer.json()["result"].clone();
    assert_eq!(result["resultType"], "complete", "{}", answer.text());
    result
}

/// The text for the model.
pub(super) fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().expect("a text")
}

/// The quote in a result.
pub(super) fn quote_in(result: &Value) -> String {
    result["structuredContent"]["quote"].as_str().expect("a quote").to_owned()
}

/// Valid arguments of `chat`.
pub(super) fn chat() -> Value {
    json!({ "model": "alpha-sonnet-4.5", "messages": [{ "role": "user", "content": "hello" }] })
}

/// Valid arguments of `create_video`.
pub(super) fn video() -> Value {
    json!({ "prompt": "a lighthouse", "model": "video-a-2", "duration": 8 })
}

/// The same arguments with a quote.
pub(super) fn with_quote(mut arguments: Value, quote: &str) -> Value {
    arguments["quote"] = json!(quote);
    arguments
}
