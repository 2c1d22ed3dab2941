//! All kinds of problems, one row each. `docs/reference/problems.md` is generated from them: run
//! `UPDATE_DOCS=1 cargo test --test documents` after a change.

use http::StatusCode;

use super::{Charged, Kind};

macro_rules! kinds {
    ($($name:ident = $status:ident, $code:literal, charged: $charged:ident {
        title: $title:literal, when: $when:literal, advice: $advice:literal $(,)?
    })*) => {
        $(
            #[doc = $title]
            pub const $name: Kind = Kind {
                status: StatusCode::$status,
                code: $code,
                charged: Charged::$charged,
                title: $title,
                when: $when,
                advice: $advice,
            };
        )*
        pub const ALL: &[Kind] = &[$($name),*];
    };
}

kinds! {
    MALFORMED_REQUEST = BAD_REQUEST, "malformed_request", charged: No {
        title: "The request's head cannot be read safely",
        when: "The request could be read in two ways: no `Host` header or several, a target that is not a path, \
            a transfer coding other than `chunked`, or a `GET` with a body. Or the body ended early.",
        advice: "Send one Host header, a path as the target, and no body with GET.",
    }
    MALFORMED_JSON = BAD_REQUEST, "malformed_json", charged: No {
        title: "The body is not one well-formed JSON object",
        when: "The body is not exactly one JSON object: it is not UTF-8, repeats a key, is nested too deeply, or \
            has bytes after the object. `detail` gives the line and the column.",
        advice: "Fix the JSON at the line and column in the detail.",
    }
    INVALID_IDEMPOTENCY_KEY = BAD_REQUEST, "invalid_idempotency_key", charged: No {
        title: "The Idempotency-Key cannot be used",
        when: "The header `Idempotency-Key` is repeated, empty, longer than 255 characters, or contains a character \
            that is not visible ASCII. Quotes around the key are not counted.",
        advice: "Send one Idempotency-Key of 1 to 255 visible ASCII characters, such as a UUID.",
    }
    MISSING_CREDENTIALS = UNAUTHORIZED, "missing_credentials", charged: No {
        title: "This endpoint needs credentials",
        when: "`access.mode` is `members` or `jwt`, and the request has neither a bearer token nor (with \
            `members`) a session cookie.",
        advice: "Sign in, or send Authorization: Bearer with your token.",
    }
    INVALID_CREDENTIALS = UNAUTHORIZED, "invalid_credentials", charged: No {
        title: "The credentials are not valid",
        when: "The credentials are misspelt, expired, revoked, repeated, for another `access.mode`, or of \
            another scheme than `Bearer`. The response does not say which. Credentials that expire while a \
            purchase waits for the rate limit count too: nothing was sent. A wrong token beside a valid cookie \
            is refused.",
        advice: "Sign in again, or ask the operator for a new token.",
    }
    BUDGET_EXHAUSTED = PAYMENT_REQUIRED, "budget_exhausted", charged: No {
        title: "The budget does not cover this request",
        when: "The price exceeds what is left of `budget.total`, `budget.caller` or the caller's own budget for \
            the UTC day or month. `detail` says which budget, what is left and when it renews. Purchases in \
            flight and unknown outcomes count as spent.",
        advice: "Wait until the budget renews, or ask the operator to raise it.",
    }
    INSUFFICIENT_CREDIT = PAYMENT_REQUIRED, "insufficient_credit", charged: No {
        title: "The account's prepaid balance does not cover this request",
        when: "The account's last known balance, less what was held or spent since, does not cover the price \
            plus `gateway.balance_floor`. Nothing was sent. `detail` gives the price but not the balance, which \
            not every caller may see. If no balance is known, purchases go ahead. A 402 of the gateway is passed \
            on instead.",
        advice: "The operator must add credit to the gateway's account.",
    }
    ORIGIN_NOT_ALLOWED = FORBIDDEN, "origin_not_allowed", charged: No {
        title: "This web origin may not call here",
        when: "A page of another origin sent a request that could spend money, or read something below `/api/`, \
            `/bff/` or `/v1/` without a listed `Origin`. `Sec-Fetch-Site` and `Origin` decide. Or a browser \
            navigated to an endpoint of `gateway.passthrough`.",
        advice: "The operator can list the origin in access.allowed_origins.",
    }
    FORBIDDEN = FORBIDDEN, "forbidden", charged: No {
        title: "You may not do this",
        when: "- `GET /bff/usage` in open mode, if callers on other machines are possible (an address beyond \
            loopback, `server.hosts` or `server.trusted_proxies`): an IP address does not identify a user.\n- \
            `GET /bff/admin/…` without the role `admin`, which no caller has in open mode.\n- A request that \
            changes something, with the session cookie but without `X-Tollgate: 1`.\n- A sign-in over plain http \
            beyond loopback.\n- `GET /billing` on the admin listener, from another machine.",
        advice: "Ask the operator for the role that this needs.",
    }
    UNKNOWN_ENDPOINT = NOT_FOUND, "unknown_endpoint", charged: No {
        title: "There is no such endpoint",
        when: "The path is below `/api/`, `/bff/` or `/v1/` and is not an endpoint. The gateway is not asked.",
        advice: "Check the path against the list of endpoints in docs/reference/http.md.",
    }
    NOT_FOUND = NOT_FOUND, "not_found", charged: No {
        title: "Not found",
        when: "The page or `page.dir` has no such file, there is no such problem code, or `access.mode` is not \
            `members` and the request is a sign-in. For a video: it is not finished, or its address is not in \
            `page.media_origins` (the job's status has the address). Browsers that follow a link get a small \
            HTML page instead.",
        advice: "Check the address.",
    }
    JOB_NOT_FOUND = NOT_FOUND, "job_not_found", charged: No {
        title: "There is no such job",
        when: "The job was not ordered here, belongs to another caller, or was forgotten (`store.url = \
            \"memory\"` forgets all jobs at a restart). The gateway is not asked.",
        advice: "Check the request_id: it is in the answer to the order.",
    }
    PURCHASE_NOT_FOUND = NOT_FOUND, "purchase_not_found", charged: No {
        title: "No such purchase is known, and nothing was bought",
        when: "The request has `Tollgate-Replay: only`, which never buys, and the `Idempotency-Key` is free: the \
            purchase never arrived, was not charged, was released by `tollgate purchase resolve`, or is older \
            than `purchase.keep_replies`.\n\nWithin that time, `charged: no` also holds for the earlier \
            purchase.",
        advice: "To buy it, send it with the same Idempotency-Key and without Tollgate-Replay.",
    }
    METHOD_NOT_ALLOWED = METHOD_NOT_ALLOWED, "method_not_allowed", charged: No {
        title: "The path does not support this method",
        when: "The path does not support this method. The header `Allow` lists the methods.",
        advice: "Use a method that the Allow header lists.",
    }
    REQUEST_TIMEOUT = REQUEST_TIMEOUT, "request_timeout", charged: No {
        title: "The body arrived too slowly",
        when: "The body took longer than `server.body_timeout`. Nothing was sent to the gateway.",
        advice: "Nothing was bought. Send it again.",
    }
    STILL_RUNNING = CONFLICT, "still_running", charged: Unknown {
        title: "The first request with this key is still running",
        when: "The same purchase was sent before and did not end within `gateway.max_wait` plus \
            `gateway.chat_timeout` (or `gateway.video_timeout`, if that is longer). Or its kept reply could not \
            be read for that long, because too many others were. `Retry-After` says when to ask again.",
        advice: "Ask again with the same Idempotency-Key; it is not bought twice.",
    }
    LEDGER_CHANGED = PRECONDITION_FAILED, "ledger_changed", charged: No {
        title: "The server's ledger is not the one that the request names",
        when: "A valid paid request names a ledger in `Tollgate-Ledger`, and the server's ledger has another \
            name. The name changes whenever the server may have forgotten purchases and their keys, for example \
            after a restored backup. Nothing is sent, no running call is joined, and no kept reply is returned. \
            The header is optional. The catalog and every paid reply carry the current name.\n\n`charged: no` is \
            about this request only. If you sent the same key before, that purchase may be charged: check your \
            purchases, and let a person decide whether to buy again. If you never sent the key, send the request \
            with the new name. SDKs do not retry this status.",
        advice: "If this key was never sent before, send it with the name in this answer's Tollgate-Ledger. \
            Otherwise it may be charged already: check your purchases before you buy again.",
    }
    PAYLOAD_TOO_LARGE = PAYLOAD_TOO_LARGE, "payload_too_large", charged: No {
        title: "The body is too large",
        when: "The body is larger than `server.chat_body` or `server.video_body`.",
        advice: "Send less. The detail gives the limit of this endpoint.",
    }
    UNSUPPORTED_MEDIA_TYPE = UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", charged: No {
        title: "The body must be application/json",
        when: "The body is compressed, or its `Content-Type` is not `application/json` in UTF-8. Forms and \
            `text/plain` are refused because any web page could send them without a preflight.",
        advice: "Send Content-Type: application/json and no Content-Encoding.",
    }
    MISDIRECTED_REQUEST = MISDIRECTED_REQUEST, "misdirected_request", charged: No {
        title: "This server does not answer for this Host",
        when: "`Host` is neither a loopback name, nor an address that the server listens on, nor in \
            `server.hosts`. This stops DNS rebinding.",
        advice: "The operator can list the name in server.hosts.",
    }
    INVALID_REQUEST = UNPROCESSABLE_ENTITY, "invalid_request", charged: No {
        title: "The request breaks the contract",
        when: "The payload or the query breaks the [contract](../explain/gateway.md#the-contract). `errors` \
            lists every mistake: a JSON pointer (for a query, `/` and the parameter's name), a code from the \
            table below, and what was expected.",
        advice: "Fix the fields that errors lists.",
    }
    IDEMPOTENCY_KEY_REUSED = UNPROCESSABLE_ENTITY, "idempotency_key_reused", charged: No {
        title: "This Idempotency-Key was used with another payload",
        when: "The key belongs to a purchase with another payload at the same endpoint. Payloads are compared as \
            sent to the gateway, so field order and whitespace do not matter. A key is free again if its \
            purchase was not charged, or after `purchase.keep_replies`.",
        advice: "Use a new key for a new purchase.",
    }
    OUTCOME_UNKNOWN = FAILED_DEPENDENCY, "outcome_unknown", charged: Unknown {
        title: "The request was sent, and the reply was lost",
        when: "A purchase was sent, and then the connection was lost, no reply arrived within \
            `gateway.chat_timeout` or `gateway.video_timeout`, or the reply was a redirect, a 5xx, compressed, \
            too large or unreadable. The log has the cause. A crash or a stop that cuts off a purchase has the \
            same result.\n\nA retry with the same key gets the same answer with `Idempotent-Replayed: true` and \
            buys nothing. So does an identical request without a key within `purchase.dedupe_window`, or within \
            15 minutes if an SDK marks it as a retry.\n\n`tollgate reconcile` resolves it if the gateway's \
            counters allow it. If it was charged, `charged` is `yes` from then on. If not, the money is given \
            back and the key is free. `charged` is also `yes` if the purchase succeeded but its reply is no \
            longer kept.",
        advice: "Do not buy it again. The same Idempotency-Key returns the true answer once it is known.",
    }
    RATE_LIMITED = TOO_MANY_REQUESTS, "rate_limited", charged: No {
        title: "Too many requests",
        when: "- The caller exceeded its rate or burst in `[limits]`, or has `limits.concurrent` purchases in \
            flight.\n- This address sent more than 30 wrong credentials within a minute. Valid ones still pass. \
            With `access.mode = \"jwt\"`, after 30 tokens with a wrong signature, only tokens that were valid \
            within the last minute pass until the minute is over.\n- The caller has 16 video downloads in \
            progress.\n- A member signed in more often than `[limits]` allows purchases.",
        advice: "Wait for the time in Retry-After.",
    }
    INTERNAL = INTERNAL_SERVER_ERROR, "internal", charged: No {
        title: "An internal error, before anything was bought",
        when: "A panic before a purchase was about to be sent, or settings that the process cannot work with. \
            The log has the location in the code.",
        advice: "Nothing was bought. Try again; if it happens again, report the request id to the operator.",
    }
    GATEWAY_UNREACHABLE = BAD_GATEWAY, "gateway_unreachable", charged: No {
        title: "The gateway could not be reached",
        when: "For a purchase: no connection was made (name, TCP, TLS, `gateway.connect_timeout`), or it failed \
            before it took a byte. For a status request: any other failure.",
        advice: "Nothing was bought. Try again later.",
    }
    GATEWAY_KEY_REJECTED = BAD_GATEWAY, "gateway_key_rejected", charged: No {
        title: "The gateway rejected all keys",
        when: "The gateway answered 401 for every key that may be tried. A rejected key is skipped for a second \
            at first and for up to a minute later; one request at a time tries it again.",
        advice: "Nothing was bought. The operator must renew the gateway keys.",
    }
    GATEWAY_BUSY = SERVICE_UNAVAILABLE, "gateway_busy", charged: No {
        title: "The gateway's rate limit has no free slot",
        when: "The account's rate limit has no free slot for this request within `gateway.max_wait`; or the gateway \
            answered 429 and asks for a longer wait than that. `Retry-After` estimates when a caller with \
            nothing else waiting gets a slot.",
        advice: "Nothing was bought. Wait for the time in Retry-After.",
    }
    OVERLOADED = SERVICE_UNAVAILABLE, "overloaded", charged: No {
        title: "The server is overloaded",
        when: "- 1000 event streams are open.\n- 64 video downloads are in progress and none of them is slow.\n- \
            16 callers are reading reports (`/bff/usage`, `/bff/admin/…`).\n- Request bodies take up all of \
            `server.max_body_memory`.\n- `access.mode` is `jwt`, and no keys are available to check tokens \
            with.\n- All clients that waited for a purchase disconnected before it was sent, just after this \
            request joined it.",
        advice: "Nothing was bought. Wait for the time in Retry-After.",
    }
    DRAINING = SERVICE_UNAVAILABLE, "draining", charged: No {
        title: "The server is shutting down",
        when: "The server is stopping, and the request still waited for the rate limit. Purchases that were sent \
            are finished. `/readyz` reports the same.",
        advice: "Nothing was bought. Try again in a moment.",
    }
    LEDGER_UNAVAILABLE = SERVICE_UNAVAILABLE, "ledger_unavailable", charged: No {
        title: "Spending cannot be recorded right now",
        when: "The ledger cannot be written: the disk is full or failed, or the file is damaged, foreign, or for \
            the other kind of money. Nothing is sold; everything else works. The log has the cause.\n\nThe same \
            happens if the gateway's key belongs to [another account](../operations.md#the-account-of-a-ledger) \
            than the ledger, or if `access.mode` is `members` and the members could not be read at the start or \
            for 30 seconds.",
        advice: "Nothing was bought. Try again later.",
    }
}

/// The codes in `errors` of an `invalid_request` and their meaning, for the reference.
pub const FIELD_ERROR_CODES: &[(&str, &str)] = &[
    ("`required`", "the field is missing"),
    ("`wrong_type`", "another JSON type was expected; `null` does not count as absent"),
    ("`unknown_field`, `unknown_parameter`", "no such name; `detail` suggests the nearest one"),
    ("`unknown_model`", "no such model for this endpoint"),
    ("`unknown_role`", "the message's role is not supported"),
    ("`unknown_aspect_ratio`", "neither `16:9` nor `9:16`"),
    ("`empty`, `blank`", "the text is empty, or has no visible character"),
    ("`too_long`", "longer than the limit in `detail`"),
    ("`too_many`", "more than 50 jobs in one request"),
    ("`nul_character`", "the text contains U+0000"),
    ("`duration_not_offered`", "the model does not support this duration"),
    ("`image_required`", "the model needs an `image_url`"),
    ("`not_public_url`", "the gateway cannot fetch an image from this address"),
    ("`duplicate`", "a parameter or form field is given twice, or under two names"),
    ("`not_supported`", "OpenAI's API: ignoring this unsupported field would change the answer"),
    ("`size_not_offered`", "OpenAI's API: a `size` that is neither 16:9 nor 9:16"),
    ("`bad_parameter`", "OpenAI's API: `limit` or `order` of a list is invalid"),
    ("`bad_period`", "`since` is not `1d` to `31d` (`366d` at `/bff/admin/usage`)"),
    ("`bad_utc_offset`", "`utc_offset` is not a whole number from `-1080` to `1080`"),
    ("`too_many_rows`", "`/bff/admin/usage`: more than 20,000 rows; ask for fewer days"),
    ("`bad_format`", "`format` is neither `json` nor `csv`"),
    ("`bad_encoding`, `bad_character`", "`request_id` has bad percent-encoding or characters"),
    ("`more_faults`", "the payload has more mistakes than are listed"),
];
