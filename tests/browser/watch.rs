//! Watches one page: whatever goes wrong in it is written down, and replies are tampered with when a test asks.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::chromium::{Wire, lock};

/// What is switched on in every session, the page's own and those of its workers and frames.
const DOMAINS: &[&str] = &["Runtime.enable", "Log.enable", "Network.enable", "Audits.enable"];
/// Chromium's audits that are faults here: policy violations, and mistakes of the page's code.
const AUDITS: &[&str] = &[
    "ContentSecurityPolicyIssue",
    "MixedContentIssue",
    "BlockedByResponseIssue",
    "CorsIssue",
    "CookieIssue",
    "GenericIssue",
    "QuirksModeIssue",
];

/// Advice for autofill, which concerns no field of ours.
const ADVICE: &[&str] = &[
    "FormEmptyIdAndNameAttributesForInputError",
    "FormInputAssignedAutocompleteValueToIdOrNameAttributeError",
];

/// What happens to a request that a test picked by its URL.
#[derive(Clone, Debug)]
pub(crate) enum Tamper {
    /// It never leaves the browser.
    Refuse,
    /// It is sent and answered, but the answer is lost on the way back.
    LoseReply,
    /// It never leaves the browser, and this comes back: a status, headers and a body.
    Answer(u16, Vec<(&'static str, &'static str)>, &'static str),
}

/// What a page did wrong so far, and what is allowed to it.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The origins that may be asked (`http://127.0.0.1:1234`).
    pub(crate) allowed: Vec<String>,
    /// Everything wrong, in words.
    pub(crate) faults: Vec<String>,
    /// Every request so far: `POST http://127.0.0.1:1234/path`.
    pub(crate) asked: Vec<String>,
    /// URL patterns (`*` matches anything) and what to do to requests that match.
    pub(crate) tampers: Vec<(String, Tamper)>,
}

/// Hears everything that happens in `session`, and in the workers and frames that it starts.
pub(crate) fn watch(wire: &Wire, session: &str, record: &Arc<Mutex<Record>>) {
    let ears = Arc::new_cyclic(|myself: &std::sync::Weak<Mutex<_>>| {
        let (myself, record) = (myself.clone(), Arc::clone(record));
        let hear = move |wire: &Wire, session: &str, method: &str, params: &Value| match method {
            "Target.attachedToTarget" => {
                let child = params["sessionId"].as_str().unwrap_or_default();
                if let Some(ears) = myself.upgrade() {
                    wire.listen(child, &ears);
                }
                switch_on(wire, child);
                wire.send(Some(child), "Runtime.runIfWaitingForDebugger", &json!({}));
            }
            "Fetch.requestPaused" => tamper(wire, session, params, &lock(&record).tampers),
            "Page.javascriptDialogOpening" => {
                wire.send(Some(session), "Page.handleJavaScriptDialog", &json!({"accept": false}));
                lock(&record).faults.push(format!("a dialog: {}", text(params, "/message")));
            }
            _ => {
                let mut record = lock(&record);
                record.asked.extend(request(method, params));
                let fault = fault(method, params, &record.allowed);
                record.faults.extend(fault);
            }
        };
        Mutex::new(Box::new(hear) as Box<dyn FnMut(&Wire, &str, &str, &Value) + Send>)
    });
    wire.listen(session, &ears);
    switch_on(wire, session);
}

fn switch_on(wire: &Wire, session: &str) {
    for domain in DOMAINS {
        wire.send(Some(session), domain, &json!({}));
    }
    let attach = json!({"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true});
    wire.send(Some(session), "Target.setAutoAttach", &attach);
    wire.send(Some(session), "Page.enable", &json!({}));
}

fn request(method: &str, params: &Value) -> Option<String> {
    let is_sent = method == "Network.requestWillBeSent";
    is_sent.then(|| format!("{} {}", text(params, "/request/method"), text(params, "/request/url")))
}

/// The fault that an event tells of, if any.
fn fault(method: &str, params: &Value, allowed: &[String]) -> Option<String> {
    match method {
        "Runtime.consoleAPICalled" if ["error", "assert"].contains(&text(params, "/type")) => {
            let words = params["args"].as_array().into_iter().flatten().map(printed);
            Some(format!("console error: {}", words.collect::<Vec<_>>().join(" ")))
        }
        "Runtime.exceptionThrown" => Some(format!(
            "uncaught: {} {}",
            text(params, "/exceptionDetails/text"),
            text(params, "/exceptionDetails/exception/description")
        )),
        "Log.entryAdded" if text(params, "/entry/level") == "error" => {
            Some(format!("log: {} {}", text(params, "/entry/text"), text(params, "/entry/url")))
        }
        "Audits.issueAdded" if AUDITS.contains(&text(params, "/issue/code")) => {
            let kind = text(params, "/issue/details/genericIssueDetails/errorType");
            (!ADVICE.contains(&kind)).then(|| format!("audit: {}", params["issue"]))
        }
        "Network.requestWillBeSent" => foreign(text(params, "/request/url"), allowed),
        "Network.webSocketCreated" => foreign(text(params, "/url"), allowed),
        "Inspector.targetCrashed" => Some("the page crashed".to_owned()),
        _ => None,
    }
}

fn foreign(url: &str, allowed: &[String]) -> Option<String> {
    let parsed = url::Url::parse(url).ok()?;
    let local = ["data", "about"].contains(&parsed.scheme());
    let known = allowed.contains(&parsed.origin().ascii_serialization());
    (!local && !known).then(|| format!("asks a foreign host: {url}"))
}

fn tamper(wire: &Wire, session: &str, params: &Value, tampers: &[(String, Tamper)]) {
    let id = &params["requestId"];
    let answered = params.get("responseStatusCode").is_some();
    let picked = tampers.iter().find(|(pattern, _)| matches(pattern, text(params, "/request/url")));
    let (method, params) = match picked.map(|(_, tamper)| tamper) {
        Some(Tamper::Refuse) => failed(id, "ConnectionRefused"),
        Some(Tamper::LoseReply) if answered => failed(id, "ConnectionReset"),
        Some(Tamper::Answer(status, headers, body)) => ("Fetch.fulfillRequest", {
            let named = |(name, value): &(&str, &str)| json!({"name": name, "value": value});
            let headers: Vec<_> = headers.iter().map(named).collect();
            let body = STANDARD.encode(body);
            json!({"requestId": id, "responseCode": status, "responseHeaders": headers, "body": body})
        }),
        Some(Tamper::LoseReply) | None => ("Fetch.continueRequest", json!({"requestId": id})),
    };
    wire.send(Some(session), method, &params);
}

fn failed(id: &Value, reason: &str) -> (&'static str, Value) {
    ("Fetch.failRequest", json!({"requestId": id, "errorReason": reason}))
}

/// Whether `url` matches `pattern`, in which `*` stands for anything.
fn matches(pattern: &str, url: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == url,
        Some((start, rest)) => url.strip_prefix(start).is_some_and(|end| {
            end.char_indices().any(|(at, _)| matches(rest, &end[at..])) || matches(rest, "")
        }),
    }
}

fn printed(argument: &Value) -> String {
    match (argument["value"].as_str(), argument["description"].as_str()) {
        (Some(text), _) | (None, Some(text)) => text.to_owned(),
        (None, None) => argument["value"].to_string(),
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
