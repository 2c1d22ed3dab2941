//! All kinds of problems, one row each.
//!
//! `docs/reference/problems.md` has a section for each, with its causes. After a change, run
//! `UPDATE_DOCS=1 cargo test --test checks documents::`.

use std::time::Duration;

use http::StatusCode;

use super::{BudgetName, Charged, Kind, Problem};
use crate::clock::iso8601;
use crate::gateway::contract::money::{Period, Usd};

macro_rules! kinds {
    ($($name:ident = $status:ident, $code:literal, charged: $charged:ident {
        title: $title:literal, advice: $advice:literal $(,)?
    })*) => {
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
        pub const ALL: &[Kind] = &[$($name),*];
    };
}

kinds! {
    MALFORMED_REQUEST = BAD_REQUEST, "malformed_request", charged: No {
        title: "The request head is ambiguous",
        advice: "Send one Host header, a path as the target, and no body with GET.",
    }
    MALFORMED_JSON = BAD_REQUEST, "malformed_json", charged: No {
        title: "The body is not one well-formed JSON object",
        advice: "Fix the JSON at the line and column in the detail.",
    }
    INVALID_IDEMPOTENCY_KEY = BAD_REQUEST, "invalid_idempotency_key", charged: No {
        title: "The Idempotency-Key is invalid",
        advice: "Send one Idempotency-Key of 1 to 255 visible ASCII characters, such as a UUID.",
    }
    LOGIN_EXPIRED = BAD_REQUEST, "login_expired", charged: No {
        title: "This sign-in is unknown or has expired",
        advice: "Sign in again.",
    }
    MISSING_CREDENTIALS = UNAUTHORIZED, "missing_credentials", charged: No {
        title: "This endpoint needs credentials",
        advice: "Sign in, or send Authorization: Bearer with your token.",
    }
    INVALID_CREDENTIALS = UNAUTHORIZED, "invalid_credentials", charged: No {
        title: "The credentials are invalid",
        advice: "Sign in again, or ask the operator for a new token.",
    }
    BUDGET_EXHAUSTED = PAYMENT_REQUIRED, "budget_exhausted", charged: No {
        title: "The budget does not cover this request",
        advice: "Wait until the budget renews, or ask the operator to raise it.",
    }
    INSUFFICIENT_CREDIT = PAYMENT_REQUIRED, "insufficient_credit", charged: No {
        title: "The account's prepaid balance does not cover this request",
        advice: "The operator must add credit to the gateway's account.",
    }
    ORIGIN_NOT_ALLOWED = FORBIDDEN, "origin_not_allowed", charged: No {
        title: "This origin is not allowed",
        advice: "The operator can list the origin in access.allowed_origins.",
    }
    FORBIDDEN = FORBIDDEN, "forbidden", charged: No {
        title: "You may not do this",
        advice: "Ask the operator for the role that this needs.",
    }
    MODEL_NOT_ALLOWED = FORBIDDEN, "model_not_allowed", charged: No {
        title: "You may not buy from this model",
        advice: "Use a model that errors lists, or ask the operator for this one.",
    }
    PROOF_REQUIRED = FORBIDDEN, "proof_required", charged: No {
        title: "This purchase needs a proof of work",
        advice: "Send Tollgate-Proof: <challenge>.<nonce>, as docs/guide/proof.md says. The client and the \
            widgets do it by themselves.",
    }
    UNKNOWN_ENDPOINT = NOT_FOUND, "unknown_endpoint", charged: No {
        title: "There is no such endpoint",
        advice: "Check the path against the list of endpoints in docs/reference/http.md.",
    }
    NOT_FOUND = NOT_FOUND, "not_found", charged: No {
        title: "Not found",
        advice: "Check the address.",
    }
    JOB_NOT_FOUND = NOT_FOUND, "job_not_found", charged: No {
        title: "There is no such job",
        advice: "Check the request_id: it is in the reply to the order.",
    }
    PURCHASE_NOT_FOUND = NOT_FOUND, "purchase_not_found", charged: No {
        title: "No purchase with this key is known",
        advice: "To buy it, send it with the same Idempotency-Key, without Tollgate-Replay, and with \
            X-Stainless-Retry-Count: 1.",
    }
    METHOD_NOT_ALLOWED = METHOD_NOT_ALLOWED, "method_not_allowed", charged: No {
        title: "The path does not support this method",
        advice: "Use a method that the Allow header lists.",
    }
    REQUEST_TIMEOUT = REQUEST_TIMEOUT, "request_timeout", charged: No {
        title: "The body arrived too slowly",
        advice: "Nothing was bought. Retry the request.",
    }
    STILL_RUNNING = CONFLICT, "still_running", charged: Unknown {
        title: "The first request with this key is still running",
        advice: "Retry with the same Idempotency-Key. It is not bought twice.",
    }
    ATTEMPT_SUPERSEDED = CONFLICT, "attempt_superseded", charged: No {
        title: "A later attempt with this key was answered before",
        advice: "Nothing was bought. To buy it now, send X-Stainless-Retry-Count with a higher number than before.",
    }
    LEDGER_CHANGED = PRECONDITION_FAILED, "ledger_changed", charged: No {
        title: "The request names another ledger",
        advice: "If this key was never sent before, retry with the Tollgate-Ledger of this response. Otherwise it \
            may already have been charged: check your purchases before you buy again.",
    }
    PAYLOAD_TOO_LARGE = PAYLOAD_TOO_LARGE, "payload_too_large", charged: No {
        title: "The body is too large",
        advice: "Send less. The detail gives the limit of this endpoint.",
    }
    UNSUPPORTED_MEDIA_TYPE = UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", charged: No {
        title: "This endpoint does not accept a body of this type",
        advice: "Send the Content-Type that the detail names, and no Content-Encoding.",
    }
    MISDIRECTED_REQUEST = MISDIRECTED_REQUEST, "misdirected_request", charged: No {
        title: "This server does not serve this Host",
        advice: "The operator can list the name in server.hosts.",
    }
    INVALID_REQUEST = UNPROCESSABLE_ENTITY, "invalid_request", charged: No {
        title: "The request breaks the contract",
        advice: "Fix the fields that errors lists.",
    }
    IDEMPOTENCY_KEY_REUSED = UNPROCESSABLE_ENTITY, "idempotency_key_reused", charged: No {
        title: "This Idempotency-Key was used with another payload",
        advice: "Use a new key for a new purchase.",
    }
    OUTCOME_UNKNOWN = FAILED_DEPENDENCY, "outcome_unknown", charged: Unknown {
        title: "The request was sent, and the reply was lost",
        advice: "Do not buy it again. If you sent an Idempotency-Key, a retry with it returns the outcome once it is known.",
    }
    RATE_LIMITED = TOO_MANY_REQUESTS, "rate_limited", charged: No {
        title: "Too many requests",
        advice: "Wait for the time in Retry-After.",
    }
    INTERNAL = INTERNAL_SERVER_ERROR, "internal", charged: No {
        title: "Internal error before anything was bought",
        advice: "Nothing was bought. Try again; if it happens again, report the request id to the operator.",
    }
    GATEWAY_UNREACHABLE = BAD_GATEWAY, "gateway_unreachable", charged: No {
        title: "The gateway could not be reached",
        advice: "Nothing was bought. Try again later.",
    }
    GATEWAY_KEY_REJECTED = BAD_GATEWAY, "gateway_key_rejected", charged: No {
        title: "The gateway rejected all keys",
        advice: "Nothing was bought. The operator must renew the gateway keys.",
    }
    GATEWAY_BUSY = SERVICE_UNAVAILABLE, "gateway_busy", charged: No {
        title: "The gateway's rate limit has no free slot",
        advice: "Nothing was bought. Wait for the time in Retry-After.",
    }
    OVERLOADED = SERVICE_UNAVAILABLE, "overloaded", charged: No {
        title: "The server is overloaded",
        advice: "Nothing was bought. Wait for the time in Retry-After.",
    }
    DRAINING = SERVICE_UNAVAILABLE, "draining", charged: No {
        title: "The server is shutting down",
        advice: "Nothing was bought. Try again in a moment.",
    }
    LOGIN_UNAVAILABLE = SERVICE_UNAVAILABLE, "login_unavailable", charged: No {
        title: "The login service cannot sign you in right now",
        advice: "Try again in a moment.",
    }
    LEDGER_UNAVAILABLE = SERVICE_UNAVAILABLE, "ledger_unavailable", charged: No {
        title: "Spending cannot be recorded right now",
        advice: "Nothing was bought. Try again later.",
    }
}

/// A budget that does not cover a purchase.
pub struct ShortBudget {
    /// Whose it is: `total`, `group`, `caller` or `token`.
    pub scope: &'static str,
    pub period: Period,
    pub limit: Usd,
    pub left: Usd,
    /// `None` for a budget that never renews.
    pub renews_at: Option<Duration>,
}

impl Problem {
    /// Refuses a purchase that a budget does not cover now, or never.
    pub fn budget_exhausted(price: Usd, budget: &ShortBudget) -> Self {
        let ShortBudget { scope, period, limit, left, renews_at } = *budget;
        let whose = match scope {
            "total" => "the budget of all callers",
            "group" => "your group's budget",
            "token" => "your token's budget",
            _ => "your budget",
        };
        let renews_at = renews_at.map(iso8601);
        let remains = match &renews_at {
            _ if price > limit => "never covers it".to_owned(),
            Some(time) => format!("has {} left; it renews at {time}", left.short()),
            None => format!("has {} left; it does not renew", left.short()),
        };
        let (limit, phrase) = (limit.short(), period.phrase());
        let detail = format!("this costs {}; {whose}, {limit} {phrase}, {remains}", price.short());
        let name = BudgetName { scope, period: period.name(), renews_at };
        Self::new(&BUDGET_EXHAUSTED).detail(detail).for_budget(name)
    }

    /// Refuses a purchase that the prepaid balance does not cover. Callers may not see the balance.
    pub fn insufficient_credit(price: Usd) -> Self {
        Self::new(&INSUFFICIENT_CREDIT).detail(format!(
            "this costs {}, more than the account's prepaid balance; ask the operator of this \
             service to add credit",
            price.short()
        ))
    }
}
