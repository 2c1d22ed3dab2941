//! Refusals as problem documents (RFC 9457). Each kind is one row of [`ALL`].

mod kinds;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::clock::ceil_seconds;

pub use kinds::*;

/// Set to `true` on joined and replayed replies.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// The id of the purchase that an answer is about. A replay has the id of the first purchase.
pub const TOLLGATE_PURCHASE: HeaderName = HeaderName::from_static("tollgate-purchase");
/// Set to `false`, keeps OpenAI's SDKs from retrying.
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Charged {
    No,
    Yes,
    Unknown,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// OpenAI's SDKs retry 408, 409, 429 and 5xx.
    pub status: StatusCode,
    pub code: &'static str,
    pub charged: Charged,
    pub title: &'static str,
    pub advice: &'static str,
}

/// One invalid field of a payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// JSON pointer (RFC 6901) into the payload; for a query, `/` and the parameter's name.
    pub pointer: String,
    pub code: &'static str,
    pub detail: String,
}

#[derive(Clone, Debug)]
#[must_use]
pub struct Problem {
    kind: &'static Kind,
    detail: Option<Cow<'static, str>>,
    /// The detail replaces the kind's advice.
    is_hint: bool,
    charged: Charged,
    errors: Vec<FieldError>,
    retry_after: Option<u64>,
    allow: Option<Cow<'static, str>>,
    replayed: bool,
    subject: Option<Box<Subject>>,
}

/// The budget that refused a purchase: whose it is, by which period it counts, and when it renews.
#[derive(Clone, Debug, Serialize)]
pub struct BudgetName {
    scope: &'static str,
    period: &'static str,
    /// `None` for a budget that never renews.
    renews_at: Option<String>,
}

/// The work that a caller has to do.
#[derive(Clone, Debug, Serialize)]
pub struct ProofChallenge {
    pub challenge: String,
    pub bits: u8,
    /// ISO 8601.
    pub expires: String,
}

/// The job, model and purchase of a problem, if known, the prefix of its type, its reason, and the login or
/// proof that it needs. Boxed, because results are moved often.
#[derive(Clone, Debug, Default)]
struct Subject {
    job: Option<Box<str>>,
    model: Option<Box<str>>,
    purchase: Option<HeaderValue>,
    budget: Option<BudgetName>,
    proof: Option<ProofChallenge>,
    prefix: Box<str>,
    /// For the log only.
    reason: Option<&'static str>,
    /// The address of the document that names the login (RFC 9728).
    resource_metadata: Option<Box<str>>,
}

#[derive(Serialize)]
struct ProblemDocument<'a> {
    #[serde(rename = "type")]
    uri: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    charged: Charged,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    budget: Option<&'a BudgetName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<&'a ProofChallenge>,
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    errors: &'a [FieldError],
}

/// Allocated once for the headers of all layers, and for the document.
const EXPECTED_HEADERS: usize = 12;
const EXPECTED_BYTES: usize = 512;

/// Another process may have taken over by then.
const DRAIN_RETRY_AFTER: Duration = Duration::from_secs(5);

impl Problem {
    /// Returns the refusal of a server that is shutting down.
    pub fn draining() -> Self {
        Self::new(&DRAINING).retry_after(DRAIN_RETRY_AFTER)
    }

    pub fn new(kind: &'static Kind) -> Self {
        Self {
            kind,
            detail: None,
            is_hint: false,
            charged: kind.charged,
            errors: Vec::new(),
            retry_after: None,
            allow: None,
            replayed: false,
            subject: None,
        }
    }

    /// Sets the text about this request. Never put internal error text or secrets here.
    pub fn detail(self, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    pub fn hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { is_hint: true, ..self.detail(hint) }
    }

    /// An invalid payload. The detail has the first error and the number of others.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = errors.first().map(|first| {
            let field = first.pointer.trim_start_matches('/').replace('/', ".");
            let field = if field.is_empty() { field } else { format!("{field}: ") };
            let more = match errors.len() - 1 {
                0 => String::new(),
                1 => "; and 1 more error".to_owned(),
                more => format!("; and {more} more errors"),
            };
            format!("{field}{}{more}", first.detail).into()
        });
        Self { detail, errors, ..Self::new(&INVALID_REQUEST) }
    }

    pub fn with_errors(self, errors: Vec<FieldError>) -> Self {
        Self { errors, ..self }
    }

    /// Sets `Retry-After`: whole seconds, rounded up, at least 1.
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(ceil_seconds(wait).max(1)), ..self }
    }

    pub fn allow(self, methods: impl Into<Cow<'static, str>>) -> Self {
        Self { allow: Some(methods.into()), ..self }
    }

    pub fn charged(self, charged: Charged) -> Self {
        Self { charged, ..self }
    }

    pub fn replayed(self) -> Self {
        Self { replayed: true, ..self }
    }

    pub fn for_job(self, job: &str) -> Self {
        self.about(|subject| subject.job = Some(job.into()))
    }

    /// Sets the model for the log.
    pub fn for_model(self, model: &str) -> Self {
        self.about(|subject| subject.model = Some(model.into()))
    }

    /// Sets the id of the purchase in the ledger.
    pub fn for_purchase(self, id: impl fmt::Display) -> Self {
        self.about(|subject| subject.purchase = HeaderValue::try_from(id.to_string()).ok())
    }

    /// Names the budget that is exceeded.
    fn for_budget(self, budget: BudgetName) -> Self {
        self.about(|subject| subject.budget = Some(budget))
    }

    /// Sets the challenge of the proof of work that is missing.
    pub fn with_proof(self, challenge: ProofChallenge) -> Self {
        self.about(|subject| subject.proof = Some(challenge))
    }

    /// Sets the path prefix of the type.
    pub fn below(self, prefix: &str) -> Self {
        if prefix.is_empty() { self } else { self.about(|subject| subject.prefix = prefix.into()) }
    }

    /// Sets a reason that only the log may tell.
    pub fn log_reason(self, reason: &'static str) -> Self {
        self.about(|subject| subject.reason = Some(reason))
    }

    /// Names the login in the challenge of a 401.
    pub fn resource_metadata(self, address: &str) -> Self {
        self.about(|subject| subject.resource_metadata = Some(address.into()))
    }

    fn about(mut self, set: impl FnOnce(&mut Subject)) -> Self {
        set(self.subject.get_or_insert_default());
        self
    }

    fn budget(&self) -> Option<&BudgetName> {
        self.subject.as_ref()?.budget.as_ref()
    }

    fn proof(&self) -> Option<&ProofChallenge> {
        self.subject.as_ref()?.proof.as_ref()
    }

    pub fn model(&self) -> Option<&str> {
        self.subject.as_ref()?.model.as_deref()
    }

    pub fn reason(&self) -> Option<&'static str> {
        self.subject.as_ref()?.reason
    }

    pub fn detail_text(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    pub fn retry_delay(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from_secs)
    }

    pub fn charge(&self) -> Charged {
        self.charged
    }

    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    pub fn to_json(&self, request_id: &str) -> Bytes {
        let prefix = self.subject.as_ref().map_or("", |subject| &*subject.prefix);
        let document = ProblemDocument {
            uri: [prefix, "/problems/", self.kind.code].concat(),
            title: self.kind.title,
            status: self.kind.status.as_u16(),
            code: self.kind.code,
            detail: self.detail.as_deref(),
            instance: (!request_id.is_empty()).then(|| ["/requests/", request_id].concat()),
            charged: self.charged,
            request_id: self.subject.as_ref().and_then(|subject| subject.job.as_deref()),
            budget: self.budget(),
            proof: self.proof(),
            errors: &self.errors,
        };
        let mut json = Vec::with_capacity(EXPECTED_BYTES);
        // Serializing strings and numbers cannot fail.
        serde_json::to_writer(&mut json, &document).ok();
        json.into()
    }

    pub fn to_openai_json(&self) -> Bytes {
        // SDKs show only the message, so it includes the advice.
        let text = self.detail.as_deref().unwrap_or(self.kind.title);
        let message = if self.errors.is_empty() && !self.is_hint {
            format!("{}. {}", text.trim_end_matches('.'), self.kind.advice)
        } else {
            text.to_owned()
        };
        let error = OpenAiError {
            message,
            error_type: openai_error_type(self.kind.status),
            param: self.errors.first().and_then(|error| param(&error.pointer)),
            code: self.kind.code,
            charged: self.charged,
            budget: self.budget(),
            proof: self.proof(),
            errors: &self.errors,
            gateway: None,
        };
        error.to_json()
    }

    pub fn into_response(self, request_id: &str) -> Response<Bytes> {
        let mut response = Response::new(self.to_json(request_id));
        *response.status_mut() = self.kind.status;
        let headers = response.headers_mut();
        headers.reserve(EXPECTED_HEADERS);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Without an error code if no credentials were sent (RFC 6750, section 3).
        let challenge = match self.kind.code {
            "missing_credentials" => Some("Bearer realm=\"tollgate\""),
            "invalid_credentials" => Some("Bearer realm=\"tollgate\", error=\"invalid_token\""),
            _ => None,
        };
        if let Some(challenge) = challenge {
            let login = self.subject.as_ref().and_then(|about| about.resource_metadata.as_deref());
            let named = login.map(|login| format!("{challenge}, resource_metadata=\"{login}\""));
            let named = named.and_then(|named| HeaderValue::try_from(named).ok());
            headers.insert(WWW_AUTHENTICATE, named.unwrap_or(HeaderValue::from_static(challenge)));
        }
        let allowed = self.allow.as_deref().and_then(|methods| methods.try_into().ok());
        headers.extend(allowed.map(|methods: HeaderValue| (ALLOW, methods)));
        if self.replayed {
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
        }
        if let Some(id) = self.subject.as_ref().and_then(|subject| subject.purchase.as_ref()) {
            headers.insert(TOLLGATE_PURCHASE, id.clone());
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The `error` object of OpenAI's API, extended with tollgate's own fields.
#[derive(Serialize)]
pub struct OpenAiError<'a> {
    pub message: String,
    #[serde(rename = "type")]
    pub error_type: &'static str,
    pub param: Option<String>,
    pub code: &'static str,
    pub charged: Charged,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub budget: Option<&'a BudgetName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<&'a ProofChallenge>,
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    pub errors: &'a [FieldError],
    /// The gateway's body, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<&'a RawValue>,
}

impl OpenAiError<'_> {
    pub fn to_json(&self) -> Bytes {
        // Serializing strings and parsed JSON cannot fail.
        serde_json::to_vec(&BTreeMap::from([("error", self)])).unwrap_or_default().into()
    }
}

/// Whether OpenAI's SDKs retry this status. It is safe: nothing was charged, or the retry joins the
/// running call.
pub fn is_retried_by_sdks(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 409 | 429 | 500..=599)
}

pub fn openai_error_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "insufficient_quota",
        403 => "permission_error",
        429 => "rate_limit_error",
        408 | 409 | 424 => "api_error",
        500..=599 => "server_error",
        _ => "invalid_request_error",
    }
}

/// Converts a JSON pointer to OpenAI's notation: `/messages/0/content` is `messages[0].content`.
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
    fn codes_are_unique_and_statuses_that_sdks_retry_are_free() {
        let codes: HashSet<_> = ALL.iter().map(|kind| kind.code).collect();
        assert_eq!(codes.len(), ALL.len());
        for kind in ALL {
            let status = kind.status;
            assert!(status.is_client_error() || status.is_server_error(), "{}", kind.code);
            let free = kind.charged == Charged::No;
            let may_have_cost =
                status == StatusCode::FAILED_DEPENDENCY || status == StatusCode::CONFLICT;
            assert!(free || may_have_cost, "{}", kind.code);
            assert!(!free || status != StatusCode::FAILED_DEPENDENCY, "{}", kind.code);
        }
    }

    #[test]
    fn retry_after_is_rounded_up_to_at_least_one_second() {
        for (wait, header) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (60_000, "60")] {
            let problem = Problem::new(&RATE_LIMITED).retry_after(Duration::from_millis(wait));
            assert_eq!(problem.into_response("x").headers()[RETRY_AFTER], header, "{wait} ms");
        }
    }

    #[test]
    fn json_pointer_is_converted_to_openai_notation() {
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
    fn problem_that_may_be_charged_is_retried_only_to_join_a_running_call() {
        for kind in ALL {
            let again = is_retried_by_sdks(kind.status);
            let joins = kind.status == StatusCode::CONFLICT;
            assert!(!again || kind.charged == Charged::No || joins, "{}", kind.code);
        }
    }

    #[test]
    fn openai_error_has_sdk_fields_and_extensions() {
        let error =
            FieldError { pointer: "/n".to_owned(), code: "x", detail: "one only".to_owned() };
        let document = Problem::invalid(vec![error]).to_openai_json();
        assert_eq!(
            std::str::from_utf8(&document).unwrap(),
            r#"{"error":{"message":"n: one only","type":"invalid_request_error","param":"n","code":"invalid_request","charged":"no","errors":[{"pointer":"/n","code":"x","detail":"one only"}]}}"#
        );
    }

    /// Stock SDKs send no key.
    #[test]
    fn advice_on_an_unknown_outcome_holds_without_a_key() {
        let document = Problem::new(&OUTCOME_UNKNOWN).to_openai_json();
        let document = std::str::from_utf8(&document).unwrap();
        assert!(document.contains("If you sent an Idempotency-Key, a retry with it"), "{document}");
    }
}
