//! What a refused caller reads: one row per kind of problem, one JSON shape (RFC 9457).
//!
//! Invariant: a row is the only place that knows a problem's status, its code and whether money may
//! have moved. Logs, metrics, `docs/reference/problems.md` and the page read it from here.

mod kinds;

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::clock::whole_seconds;

pub use kinds::*;

/// `true` on every joined or replayed reply.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// `false` tells OpenAI's SDKs not to send again, whatever the status says.
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Whether the account was charged although the caller gets no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Charged {
    /// It was refused before the gateway could charge for it.
    No,
    /// The gateway charged for it.
    Yes,
    /// The gateway was asked and its answer was lost.
    Unknown,
}

/// A kind of problem: what all refusals with this code share.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The status decides whether stock SDKs send again: they do on 408, 409, 429 and 5xx.
    pub status: StatusCode,
    /// The stable name that programs read.
    pub code: &'static str,
    /// Whether money may have moved.
    pub charged: Charged,
    /// One sentence for people.
    pub title: &'static str,
    /// When it is answered, in Markdown, for the documents.
    pub when: &'static str,
    /// What a person can do about it.
    pub advice: &'static str,
}

/// One fault of a payload: where, its stable name, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// JSON pointer (RFC 6901) into the payload; for a query, `/` and the parameter's name.
    pub pointer: String,
    pub code: &'static str,
    pub detail: String,
}

/// One refusal: its kind, and what is particular to this request.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: &'static Kind,
    /// Nothing where the title says it all.
    detail: Option<Cow<'static, str>>,
    /// Whether the detail says what to do, in the place of the kind's advice.
    is_hint: bool,
    charged: Charged,
    faults: Vec<Fault>,
    retry_after: Option<u64>,
    allow: Option<Box<HeaderValue>>,
    replayed: bool,
    about: Option<Box<str>>,
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "type")]
    uri: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    /// Absent where the request has no id.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    charged: Charged,
    /// The job that it is about, where a reader could not tell otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
}

impl Problem {
    /// A refusal that says no more than its kind.
    pub fn new(kind: &'static Kind) -> Self {
        Self {
            kind,
            detail: None,
            is_hint: false,
            charged: kind.charged,
            faults: Vec::new(),
            retry_after: None,
            allow: None,
            replayed: false,
            about: None,
        }
    }

    /// Says what is particular to this request. Never put internal error text or secrets here.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Says what to do in this case, better than the kind's advice does.
    #[must_use]
    pub fn hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { is_hint: true, ..self.detail(hint) }
    }

    /// A payload that breaks the contract: all its faults; the detail has the first, and how many more there are.
    pub fn invalid(faults: Vec<Fault>) -> Self {
        let mut problem = Self::new(&INVALID_REQUEST);
        if let Some(first) = faults.first() {
            let place = first.pointer.trim_start_matches('/').replace('/', ".");
            let place = if place.is_empty() { place } else { format!("{place}: ") };
            let more = match faults.len() - 1 {
                0 => String::new(),
                1 => "; and 1 more fault".to_owned(),
                more => format!("; and {more} more faults"),
            };
            problem.detail = Some(format!("{place}{}{more}", first.detail).into());
        }
        problem.faults = faults;
        problem
    }

    /// When to come back: whole seconds, rounded up, at least 1, because 0 invites a storm.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(whole_seconds(wait).max(1));
        self
    }

    #[must_use]
    pub fn allow(mut self, methods: &str) -> Self {
        self.allow = HeaderValue::from_str(methods).ok().map(Box::new);
        self
    }

    /// Says that an unknown outcome is known to have cost its toll.
    #[must_use]
    pub fn charged(mut self, charged: Charged) -> Self {
        self.charged = charged;
        self
    }

    /// Says that this is the answer of an earlier or running purchase, given again.
    #[must_use]
    pub fn replayed(mut self) -> Self {
        self.replayed = true;
        self
    }

    /// Names the job that it is about: one stream tells of many.
    #[must_use]
    pub fn about(mut self, job: &str) -> Self {
        self.about = Some(job.into());
        self
    }

    pub fn wait(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from_secs)
    }

    pub fn charge(&self) -> Charged {
        self.charged
    }

    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// The document. `request_id` names the request in logs; it may be empty.
    pub fn document(&self, request_id: &str) -> Bytes {
        let document = Document {
            uri: format!("/problems/{}", self.kind.code),
            title: self.kind.title,
            status: self.kind.status.as_u16(),
            code: self.kind.code,
            detail: self.detail.as_deref(),
            instance: (!request_id.is_empty()).then(|| format!("/requests/{request_id}")),
            charged: self.charged,
            request_id: self.about.as_deref(),
            errors: &self.faults,
        };
        // Strings and numbers only: this cannot fail, and an empty body would still carry the status.
        serde_json::to_vec(&document).unwrap_or_default().into()
    }

    /// The answer, as `application/problem+json`. `request_id` names the request in logs.
    pub fn into_response(self, request_id: &str) -> Response<Bytes> {
        let mut response = Response::new(self.document(request_id));
        *response.status_mut() = self.kind.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = challenge(self.kind) {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(methods) = self.allow {
            headers.insert(ALLOW, *methods);
        }
        if self.replayed {
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

/// What a 401 has to say of how to do better (RFC 6750, 3). No error code where nothing was shown.
fn challenge(kind: &Kind) -> Option<&'static str> {
    match kind.code {
        "missing_credentials" => Some("Bearer realm=\"tollgate\""),
        "invalid_credentials" => Some("Bearer realm=\"tollgate\", error=\"invalid_token\""),
        _ => None,
    }
}

#[derive(Serialize)]
struct OpenAiDocument<'a> {
    error: Told<'a>,
}

#[derive(Serialize)]
struct Told<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    family: &'static str,
    param: Option<String>,
    code: &'static str,
    charged: Charged,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
}

impl Problem {
    /// `{"error": {…}}` as OpenAI's SDKs read it, with `charged` and every fault beside their fields.
    pub fn openai_document(&self) -> Bytes {
        // SDKs show people the message alone: it says what to do, too.
        let said = self.detail.as_deref().unwrap_or(self.kind.title);
        let message = match self.faults.is_empty() && !self.is_hint {
            true => format!("{}. {}", said.trim_end_matches('.'), self.kind.advice),
            false => said.to_owned(),
        };
        let document = OpenAiDocument {
            error: Told {
                message: &message,
                family: family(self.kind.status),
                param: self.faults.first().and_then(|fault| param(&fault.pointer)),
                code: self.kind.code,
                charged: self.charged,
                errors: &self.faults,
            },
        };
        // Strings only: this cannot fail.
        serde_json::to_vec(&document).unwrap_or_default().into()
    }
}

/// Whether stock SDKs send again after this status: after it, nothing was charged, or the repeat
/// joins the call that runs.
pub fn is_sent_again(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
    ) || status.is_server_error()
}

/// OpenAI's `type` for a status.
pub fn family(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::PAYMENT_REQUIRED => "insufficient_quota",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::CONFLICT | StatusCode::FAILED_DEPENDENCY | StatusCode::REQUEST_TIMEOUT => {
            "api_error"
        }
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

/// A JSON pointer as OpenAI writes it: `/messages/0/content` is `messages[0].content`.
fn param(pointer: &str) -> Option<String> {
    let mut param = String::new();
    for part in pointer.split('/').skip(1) {
        let name = part.replace("~1", "/").replace("~0", "~");
        if !param.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            param.push_str(&format!("[{name}]"));
        } else {
            param.push_str(if param.is_empty() { "" } else { "." });
            param.push_str(&name);
        }
    }
    (!param.is_empty()).then_some(param)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_a_status_that_sdks_send_again_costs_nothing() {
        let codes: HashSet<_> = ALL.iter().map(|kind| kind.code).collect();
        assert_eq!(codes.len(), ALL.len());
        for kind in ALL {
            let status = kind.status;
            assert!(status.is_client_error() || status.is_server_error(), "{}", kind.code);
            let free = kind.charged == Charged::No;
            let may_have_cost =
                status == StatusCode::FAILED_DEPENDENCY || status == StatusCode::CONFLICT;
            assert_eq!(free, !may_have_cost, "{}", kind.code);
        }
    }

    #[test]
    fn a_wait_is_rounded_up_and_never_nothing() {
        for (wait, header) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (60_000, "60")] {
            let problem = Problem::new(&RATE_LIMITED).retry_after(Duration::from_millis(wait));
            assert_eq!(problem.into_response("x").headers()[RETRY_AFTER], header, "{wait} ms");
        }
    }

    #[test]
    fn a_pointer_is_written_as_openai_writes_it() {
        for (pointer, written) in [
            ("/model", Some("model")),
            ("/messages/0/content", Some("messages[0].content")),
            ("/messages/12/content/3/type", Some("messages[12].content[3].type")),
            ("/a~1b", Some("a/b")),
            ("", None),
        ] {
            assert_eq!(param(pointer).as_deref(), written, "{pointer}");
        }
    }

    #[test]
    fn what_may_have_cost_money_is_sent_again_only_where_it_joins_what_runs() {
        for kind in ALL {
            let again = is_sent_again(kind.status);
            let joins = kind.status == StatusCode::CONFLICT;
            assert!(!again || kind.charged == Charged::No || joins, "{}", kind.code);
        }
    }

    #[test]
    fn the_document_has_the_fields_that_sdks_read_and_ours() {
        let fault = Fault { pointer: "/n".to_owned(), code: "x", detail: "one only".to_owned() };
        let document = Problem::invalid(vec![fault]).openai_document();
        assert_eq!(
            std::str::from_utf8(&document).unwrap(),
            r#"{"error":{"message":"n: one only","type":"invalid_request_error","param":"n","code":"invalid_request","charged":"no","errors":[{"pointer":"/n","code":"x","detail":"one only"}]}}"#
        );
    }
}
