//! What a refused caller reads: one row per kind of problem, one JSON shape (RFC 9457).
//!
//! Invariant: a row is the only place that knows a problem's status, its code and whether money may
//! have moved. Logs, metrics, `docs/problems.md` and the page read it from here.

mod openai;

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

pub use openai::{family, is_sent_again};

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
    /// What a person can do about it.
    pub advice: &'static str,
}

macro_rules! kinds {
    ($($name:ident $status:ident $code:literal $charged:ident $title:literal $advice:literal;)*) => {
        $(
            #[doc = $title]
            pub const $name: Kind = Kind {
                status: StatusCode::$status,
                code: $code,
                charged: Charged::$charged,
                title: $title,
                advice: $advice,
            };
        )*
        /// Every kind, by code.
        pub const ALL: &[Kind] = &[$($name),*];
    };
}

#[rustfmt::skip]
kinds! {
    MALFORMED_REQUEST       BAD_REQUEST            "malformed_request"       No      "The request's head cannot be read safely" "Send one Host header, an origin-form path, and no body with GET.";
    MALFORMED_JSON          BAD_REQUEST            "malformed_json"          No      "The body is not one well-formed JSON object" "Mend the JSON at the line and column that the detail names.";
    INVALID_IDEMPOTENCY_KEY BAD_REQUEST            "invalid_idempotency_key" No      "The Idempotency-Key cannot be used" "Send one Idempotency-Key of 1 to 255 visible ASCII characters, such as a UUID.";
    MISSING_CREDENTIALS     UNAUTHORIZED           "missing_credentials"     No      "This endpoint is for known callers" "Sign in, or send Authorization: Bearer with your token.";
    INVALID_CREDENTIALS     UNAUTHORIZED           "invalid_credentials"     No      "The token is not valid" "Sign in again, or ask who runs this service for a new token.";
    BUDGET_EXHAUSTED        PAYMENT_REQUIRED       "budget_exhausted"        No      "The budget does not cover this request" "Wait until the budget renews, or ask who runs this service to raise it.";
    INSUFFICIENT_CREDIT     PAYMENT_REQUIRED       "insufficient_credit"     No      "The account's prepaid balance does not cover this request" "Who runs this service has to add credit to the gateway's account.";
    ORIGIN_NOT_ALLOWED      FORBIDDEN              "origin_not_allowed"      No      "This web origin may not call here" "Who runs this service can list the origin in access.allowed_origins.";
    FORBIDDEN               FORBIDDEN              "forbidden"               No      "You may not do this" "Ask who runs this service for the role that this needs.";
    UNKNOWN_ENDPOINT        NOT_FOUND              "unknown_endpoint"        No      "There is no such endpoint" "See the README for the endpoints on offer.";
    NOT_FOUND               NOT_FOUND              "not_found"               No      "What was asked for is not here" "Check the address.";
    JOB_NOT_FOUND           NOT_FOUND              "job_not_found"           No      "There is no such job among yours" "Check the request_id: it is the one that the order was answered with.";
    METHOD_NOT_ALLOWED      METHOD_NOT_ALLOWED     "method_not_allowed"      No      "This path does not take that method" "Use a method that the Allow header lists.";
    REQUEST_TIMEOUT         REQUEST_TIMEOUT        "request_timeout"         No      "The body came too slowly" "Nothing was bought. Send it again.";
    STILL_RUNNING           CONFLICT               "still_running"           Unknown "The first of these calls has not ended" "Ask again with the same Idempotency-Key; it is not bought twice.";
    LEDGER_CHANGED          PRECONDITION_FAILED    "ledger_changed"          No      "This is another ledger than the request names" "If this key was never sent before, send it with the name in this answer's Tollgate-Ledger. Otherwise it may be charged already: look at your purchases before you buy again.";
    PAYLOAD_TOO_LARGE       PAYLOAD_TOO_LARGE      "payload_too_large"       No      "The body is too large" "Send less: the detail says how much this endpoint takes.";
    UNSUPPORTED_MEDIA_TYPE  UNSUPPORTED_MEDIA_TYPE "unsupported_media_type"  No      "Only application/json is taken" "Send Content-Type: application/json and no Content-Encoding.";
    MISDIRECTED_REQUEST     MISDIRECTED_REQUEST    "misdirected_request"     No      "This server does not answer for that Host" "Who runs this service can list the name in server.hosts.";
    INVALID_REQUEST         UNPROCESSABLE_ENTITY   "invalid_request"         No      "The request breaks the contract" "Mend the fields that errors lists.";
    IDEMPOTENCY_KEY_REUSED  UNPROCESSABLE_ENTITY   "idempotency_key_reused"  No      "This Idempotency-Key was used with another payload" "Use a new key for a new purchase.";
    OUTCOME_UNKNOWN         FAILED_DEPENDENCY      "outcome_unknown"         Unknown "It was sent, and the reply was lost" "Do not buy it anew. The same Idempotency-Key gives the true answer once it is known.";
    RATE_LIMITED            TOO_MANY_REQUESTS      "rate_limited"            No      "Too many requests" "Wait as long as Retry-After says.";
    INTERNAL                INTERNAL_SERVER_ERROR  "internal"                No      "Something broke before anything was bought" "Nothing was bought. Try again; if it stays, tell who runs this service the request id.";
    GATEWAY_UNREACHABLE     BAD_GATEWAY            "gateway_unreachable"     No      "The gateway could not be reached" "Nothing was bought. Try again in a while.";
    GATEWAY_KEY_REJECTED    BAD_GATEWAY            "gateway_key_rejected"    No      "The gateway takes none of our keys" "Nothing was bought. Who runs this service has to renew its gateway keys.";
    WINDOW_EXHAUSTED        SERVICE_UNAVAILABLE    "window_exhausted"        No      "The gateway's rate limit leaves no room right now" "Nothing was bought. Wait as long as Retry-After says.";
    OVERLOADED              SERVICE_UNAVAILABLE    "overloaded"              No      "Too much is going on here right now" "Nothing was bought. Wait as long as Retry-After says.";
    DRAINING                SERVICE_UNAVAILABLE    "draining"                No      "The server is shutting down" "Nothing was bought. Try again in a moment.";
    LEDGER_UNAVAILABLE      SERVICE_UNAVAILABLE    "ledger_unavailable"      No      "Spending cannot be recorded right now" "Nothing was bought. Try again in a while.";
}

/// One fault of a payload: where, its stable name, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// JSON pointer (RFC 6901) into the payload; for a query, `/` and the parameter's name.
    pub pointer: String,
    /// The fault's stable name.
    pub code: &'static str,
    /// What was expected, in words.
    pub detail: String,
}

/// One refusal: its kind, and what is particular to this request.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: &'static Kind,
    detail: Cow<'static, str>,
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
    detail: &'a str,
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
            detail: Cow::Borrowed(kind.title),
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
        self.detail = detail.into();
        self
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
            problem.detail = format!("{place}{}{more}", first.detail).into();
        }
        problem.faults = faults;
        problem
    }

    /// When to come back: whole seconds, rounded up, at least 1, because 0 invites a storm.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        let whole = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        self.retry_after = Some(whole.max(1));
        self
    }

    /// The methods that the path takes, for a 405.
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

    /// When to come back, where it says so.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from_secs)
    }

    /// Whether money moved.
    pub fn charge(&self) -> Charged {
        self.charged
    }

    /// The row that this refusal belongs to.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The faults of the payload, where it had any.
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
            detail: &self.detail,
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
}
