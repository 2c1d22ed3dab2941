//! Every kind of refusal, a row each. `docs/problems.md` is written from these rows: run
//! `UPDATE_DOCS=1 cargo test --test documents` after a change.

use http::StatusCode;

use super::{Charged, Kind};

macro_rules! kinds {
    ($($name:ident { $status:ident, charged: $charged:ident, code: $code:literal,
        title: $title:literal, when: $when:literal, advice: $advice:literal $(,)? })*) => {
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
    MALFORMED_REQUEST {
        BAD_REQUEST, charged: No, code: "malformed_request",
        title: "The request's head cannot be read safely",
        when: "The head can be read in two ways: no `Host` header or several, a target that is not a path, a \
            transfer coding other than `chunked`, a body with `GET`. Or the body ended early.",
        advice: "Send one Host header, an origin-form path, and no body with GET.",
    }
    MALFORMED_JSON {
        BAD_REQUEST, charged: No, code: "malformed_json",
        title: "The body is not one well-formed JSON object",
        when: "The body is not one JSON object: not UTF-8, a key twice at any level, too deep, something after it. \
            The detail has the line and the column.",
        advice: "Mend the JSON at the line and column that the detail names.",
    }
    INVALID_IDEMPOTENCY_KEY {
        BAD_REQUEST, charged: No, code: "invalid_idempotency_key",
        title: "The Idempotency-Key cannot be used",
        when: "The header `Idempotency-Key` is there twice, is empty, has more than 255 characters, or one that is \
            not visible ASCII. Quotes around it do not count.",
        advice: "Send one Idempotency-Key of 1 to 255 visible ASCII characters, such as a UUID.",
    }
    MISSING_CREDENTIALS {
        UNAUTHORIZED, charged: No, code: "missing_credentials",
        title: "This endpoint is for known callers",
        when: "`access.mode` is members or jwt, the endpoint is for known callers, and the request shows neither a \
            bearer token nor, with members, the cookie of a login.",
        advice: "Sign in, or send Authorization: Bearer with your token.",
    }
    INVALID_CREDENTIALS {
        UNAUTHORIZED, charged: No, code: "invalid_credentials",
        title: "The token is not valid",
        when: "`access.mode` is members or jwt, and what was shown does not hold: misspelt, expired, revoked, of \
            another mode, sent twice, or another scheme than `Bearer`. Which it was is not said. Or a purchase \
            waited for its turn in the account's rate limit, and meanwhile the credentials ended: nothing was \
            sent. A token that is wrong is refused although a cookie may be right.",
        advice: "Sign in again, or ask who runs this service for a new token.",
    }
    BUDGET_EXHAUSTED {
        PAYMENT_REQUIRED, charged: No, code: "budget_exhausted",
        title: "The budget does not cover this request",
        when: "The toll would go over `budget.total` or `budget.caller`, for the UTC day or month. The detail says \
            which budget, what is left and when it renews. What is under way or unknown counts as spent.",
        advice: "Wait until the budget renews, or ask who runs this service to raise it.",
    }
    INSUFFICIENT_CREDIT {
        PAYMENT_REQUIRED, charged: No, code: "insufficient_credit",
        title: "The account's prepaid balance does not cover this request",
        when: "The account's last known balance, less what was set aside or spent since, does not cover the toll \
            and `gateway.balance_floor`. The detail says what the request costs, and not what is left: not every \
            caller may see the account. Nothing was sent. While no balance is known, everything is sold. When the \
            gateway itself says 402, its own body passes instead.",
        advice: "Who runs this service has to add credit to the gateway's account.",
    }
    ORIGIN_NOT_ALLOWED {
        FORBIDDEN, charged: No, code: "origin_not_allowed",
        title: "This web origin may not call here",
        when: "A web page of another origin sent a request that could spend, or asked for something below `/api/`, \
            `/bff/` or `/v1/` without sending a listed `Origin`. Its `Sec-Fetch-Site` or `Origin` gives it away. \
            Or a browser navigated to an endpoint of `gateway.passthrough`.",
        advice: "Who runs this service can list the origin in access.allowed_origins.",
    }
    FORBIDDEN {
        FORBIDDEN, charged: No, code: "forbidden",
        title: "You may not do this",
        when: "`GET /bff/usage` in open mode where others than this machine's own users may call (an address \
            beyond loopback, `server.hosts` or `server.trusted_proxies`): an address is no identity. `GET \
            /bff/admin/…` by whoever has not the role `admin`; in open mode that is everybody. Or a request that \
            changes something comes with the cookie of a login and without `X-Tollgate: 1`; or somebody signs in \
            over plain http, where others can read along. On the admin listener: `GET /billing` from another \
            machine.",
        advice: "Ask who runs this service for the role that this needs.",
    }
    UNKNOWN_ENDPOINT {
        NOT_FOUND, charged: No, code: "unknown_endpoint",
        title: "There is no such endpoint",
        when: "The path lies below `/api/`, `/bff/` or `/v1/`, and is not an endpoint. `/api/api-keys` is never \
            one. Nothing is asked of the gateway.",
        advice: "See the README for the endpoints on offer.",
    }
    NOT_FOUND {
        NOT_FOUND, charged: No, code: "not_found",
        title: "What was asked for is not here",
        when: "There is no such file of the page or of `page.dir`, or no such kind of problem. Or a finished video \
            was asked for that is not there yet, or at an address that is not on `page.media_origins`: its status \
            has the address. Or somebody signs in where `access.mode` is not members. A person who follows a link \
            gets a small page instead.",
        advice: "Check the address.",
    }
    JOB_NOT_FOUND {
        NOT_FOUND, charged: No, code: "job_not_found",
        title: "There is no such job among yours",
        when: "The job was not ordered here, or is forgotten (`store.url = \"memory\"`, after a restart). The \
            gateway is not asked.",
        advice: "Check the request_id: it is the one that the order was answered with.",
    }
    METHOD_NOT_ALLOWED {
        METHOD_NOT_ALLOWED, charged: No, code: "method_not_allowed",
        title: "This path does not take that method",
        when: "The path is right and the method is not. The header `Allow` lists the methods.",
        advice: "Use a method that the Allow header lists.",
    }
    REQUEST_TIMEOUT {
        REQUEST_TIMEOUT, charged: No, code: "request_timeout",
        title: "The body came too slowly",
        when: "The body took longer than `server.body_timeout`. Nothing of it was sent on.",
        advice: "Nothing was bought. Send it again.",
    }
    STILL_RUNNING {
        CONFLICT, charged: Unknown, code: "still_running",
        title: "The first of these calls has not ended",
        when: "The same purchase was sent before, and has not ended within `gateway.max_wait` and \
            `gateway.chat_timeout` (or `gateway.video_timeout`, if that is longer) together. Or its reply is kept, \
            and too many kept replies were being read for as long. `Retry-After` says when to ask again.",
        advice: "Ask again with the same Idempotency-Key; it is not bought twice.",
    }
    LEDGER_CHANGED {
        PRECONDITION_FAILED, charged: No, code: "ledger_changed",
        title: "This is another ledger than the request names",
        when: "The request is for a paid endpoint, it is valid, and its header `Tollgate-Ledger` names another \
            ledger than the server has now. The name changes whenever the server may have forgotten purchases and \
            their keys, for example after a backup was restored. Nothing is sent, no running call is joined, and \
            no kept reply is replayed. The header is optional: without it, nothing is compared. The catalog and \
            every answer to a paid request carry the current name in `Tollgate-Ledger`.\n\n`charged: no` speaks of \
            this request alone. If you sent the same key before, that purchase may be charged: look at your \
            purchases, and let a person decide whether to buy again. If you never sent the key, read the new name \
            and send the request with it. SDKs do not retry this status.",
        advice: "If this key was never sent before, send it with the name in this answer's Tollgate-Ledger. \
            Otherwise it may be charged already: look at your purchases before you buy again.",
    }
    PAYLOAD_TOO_LARGE {
        PAYLOAD_TOO_LARGE, charged: No, code: "payload_too_large",
        title: "The body is too large",
        when: "The body is larger than `server.chat_body` or `server.video_body`.",
        advice: "Send less: the detail says how much this endpoint takes.",
    }
    UNSUPPORTED_MEDIA_TYPE {
        UNSUPPORTED_MEDIA_TYPE, charged: No, code: "unsupported_media_type",
        title: "Only application/json is taken",
        when: "The body is not declared as `application/json` in UTF-8 (the detail names what came instead), or it \
            is compressed. Forms and `text/plain` would reach us from any web page without a preflight.",
        advice: "Send Content-Type: application/json and no Content-Encoding.",
    }
    MISDIRECTED_REQUEST {
        MISDIRECTED_REQUEST, charged: No, code: "misdirected_request",
        title: "This server does not answer for that Host",
        when: "The `Host` header names neither loopback, nor an address that we listen on, nor a name in \
            `server.hosts`. This stops DNS rebinding.",
        advice: "Who runs this service can list the name in server.hosts.",
    }
    INVALID_REQUEST {
        UNPROCESSABLE_ENTITY, charged: No, code: "invalid_request",
        title: "The request breaks the contract",
        when: "The payload or the query breaks the [contract](contract.md). `errors` has every fault: a JSON \
            pointer, a code of the list below, and what was expected. For a query, the pointer is `/` and the \
            parameter.",
        advice: "Mend the fields that errors lists.",
    }
    IDEMPOTENCY_KEY_REUSED {
        UNPROCESSABLE_ENTITY, charged: No, code: "idempotency_key_reused",
        title: "This Idempotency-Key was used with another payload",
        when: "The key stands for a purchase with another payload at the same endpoint. Payloads are compared as \
            they are sent to the gateway, so the order of fields and blanks between them do not matter. A key is \
            free again when its purchase was not charged, or when its reply's time has passed \
            (`purchase.keep_replies`).",
        advice: "Use a new key for a new purchase.",
    }
    OUTCOME_UNKNOWN {
        FAILED_DEPENDENCY, charged: Unknown, code: "outcome_unknown",
        title: "It was sent, and the reply was lost",
        when: "A purchase was sent, and then the connection was lost, no reply came within `gateway.chat_timeout` \
            or `gateway.video_timeout`, or the reply was a redirect, a 5xx, compressed, too large or unreadable. \
            The log has the cause. A repeat with the same key, or an identical one within `purchase.dedupe_window` \
            (15 minutes if an SDK marks it as a retry), gets the same answer, with `Idempotent-Replayed: true`, \
            and buys nothing. `tollgate reconcile` settles it where the gateway's counters tell: what was charged \
            is `charged: yes` from then on, and what was not is given back and its key is free. The same answer, \
            with `charged: yes`, has a purchase whose reply is no longer kept, and what a crash or a stop cut off \
            is `unknown`.",
        advice: "Do not buy it anew. The same Idempotency-Key gives the true answer once it is known.",
    }
    RATE_LIMITED {
        TOO_MANY_REQUESTS, charged: No, code: "rate_limited",
        title: "Too many requests",
        when: "The caller has used up `[limits]`: its burst and rate, or `limits.concurrent` purchases at the same \
            time. `Retry-After` says when there is room. Or more than 30 credentials that came from the same \
            address within a minute were wrong; one that holds is still taken, but with `access.mode = \"jwt\"`: \
            there, after 30 tokens with a wrong signature, only those that were found right within the last minute \
            are taken from that address until the minute is over. Or 16 finished videos are on their way to the \
            caller. Or a member signed in more often than `[limits]` allows purchases.",
        advice: "Wait as long as Retry-After says.",
    }
    INTERNAL {
        INTERNAL_SERVER_ERROR, charged: No, code: "internal",
        title: "Something broke before anything was bought",
        when: "A panic, in a purchase before it was about to be sent, or settings that the process cannot work \
            with. The log has the place in the code.",
        advice: "Nothing was bought. Try again; if it stays, tell who runs this service the request id.",
    }
    GATEWAY_UNREACHABLE {
        BAD_GATEWAY, charged: No, code: "gateway_unreachable",
        title: "The gateway could not be reached",
        when: "For a purchase: no connection was made (the name, TCP, TLS, `gateway.connect_timeout`), or it took \
            no byte. For a status: anything that went wrong.",
        advice: "Nothing was bought. Try again in a while.",
    }
    GATEWAY_KEY_REJECTED {
        BAD_GATEWAY, charged: No, code: "gateway_key_rejected",
        title: "The gateway takes none of our keys",
        when: "The gateway answered 401 for each key that may be tried. A refused key is parked for a second, then \
            ever longer up to a minute, and probed by one call at a time.",
        advice: "Nothing was bought. Who runs this service has to renew its gateway keys.",
    }
    WINDOW_EXHAUSTED {
        SERVICE_UNAVAILABLE, charged: No, code: "window_exhausted",
        title: "The gateway's rate limit leaves no room right now",
        when: "The account's rate limit has no place for this call within `gateway.max_wait`, or the gateway \
            answered 429 and waiting for it would take longer than that. `Retry-After` is when the turn of a \
            caller who has nothing else waiting should come, as far as it can be known now.",
        advice: "Nothing was bought. Wait as long as Retry-After says.",
    }
    OVERLOADED {
        SERVICE_UNAVAILABLE, charged: No, code: "overloaded",
        title: "Too much is going on here right now",
        when: "1000 event streams are open in all, or 64 finished videos are on their way and none of them is \
            slow. Or 16 callers read reports (`/bff/usage`, `/bff/admin/…`). Or the bodies of other requests take \
            all of `server.max_body_memory`. Or `access.mode` is jwt, and there are no keys to check tokens with. \
            Or everybody who waited for a purchase hung up before it was sent, and this call joined it just then.",
        advice: "Nothing was bought. Wait as long as Retry-After says.",
    }
    DRAINING {
        SERVICE_UNAVAILABLE, charged: No, code: "draining",
        title: "The server is shutting down",
        when: "The server is stopping, and the call still waited for the account's rate limit. What was sent \
            already is finished. `/readyz` says so, too.",
        advice: "Nothing was bought. Try again in a moment.",
    }
    LEDGER_UNAVAILABLE {
        SERVICE_UNAVAILABLE, charged: No, code: "ledger_unavailable",
        title: "Spending cannot be recorded right now",
        when: "The ledger or the window's log cannot be written: the disk is full or failed, or the file is \
            damaged, foreign or of the other kind of money. What cannot be written down is not sold. The rest goes \
            on. The log has the cause. With `access.mode` members, also while the list of members cannot be read: \
            at a start, or for more than 30 seconds. Also if the gateway's key belongs to [another \
            account](operations.md#the-account-of-a-ledger) than the ledger.",
        advice: "Nothing was bought. Try again in a while.",
    }
}

/// What the faults of an `invalid_request` mean: their codes, as the list in `docs/problems.md` shows them.
pub const FAULTS: &[(&str, &str)] = &[
    ("`required`", "the field is not there"),
    ("`wrong_type`", "another JSON type was expected; `null` is never taken for absence"),
    (
        "`unknown_field`, `unknown_parameter`",
        "there is no such field or parameter; the detail has the nearest known name",
    ),
    ("`unknown_model`", "no such model for this endpoint"),
    ("`unknown_role`", "a message's role is not one of those on offer"),
    ("`unknown_aspect_ratio`", "neither `16:9` nor `9:16`"),
    ("`empty`, `blank`", "nothing is there, or nothing that people can see"),
    ("`too_long`", "longer than the detail says"),
    ("`too_many`", "more than 50 jobs in one question"),
    ("`nul_character`", "the text holds U+0000"),
    ("`duration_not_offered`", "the model does not make clips of this length"),
    ("`image_required`", "the model animates a picture, and none was given"),
    ("`not_public_url`", "the picture's address is none that the gateway could fetch"),
    (
        "`duplicate`",
        "a parameter, or a field of a form, is there more than once, or under two names",
    ),
    (
        "`not_supported`",
        "OpenAI's dialect: the gateway has no word for it, and without it another answer would come",
    ),
    ("`size_not_offered`", "OpenAI's dialect: a `size` that is neither 16:9 nor 9:16"),
    ("`bad_parameter`", "OpenAI's dialect: `limit` or `order` of a list is none"),
    ("`bad_period`", "`since` is not `1d` to `31d` (`366d` at `/bff/admin/usage`)"),
    (
        "`too_many_rows`",
        "`since` reaches so far back that there are more than 20,000 rows (`/bff/admin/usage`)",
    ),
    ("`bad_format`", "`format` is neither `json` nor `csv`"),
    (
        "`bad_encoding`, `bad_character`",
        "`request_id` is not percent-encoded, or not visible ASCII",
    ),
    ("`more_faults`", "there are more faults than are listed"),
];
