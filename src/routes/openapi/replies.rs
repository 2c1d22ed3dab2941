//! What the document says of headers.

use http::StatusCode;

use crate::problem::Kind;

/// What a reply to a purchase carries.
pub(super) const OF_PURCHASES: &[(&str, &str)] = &[
    (
        "Tollgate-Toll",
        "What it cost, in dollars: 0.006000. A replay repeats it and is not charged again.",
    ),
    ("Idempotent-Replayed", "`true` where it is the reply of an earlier or running purchase."),
    (
        "Tollgate-Ignored",
        "What was asked for and is not done, by name, where there is any: what the gateway has no word for, and an \
         `aspect_ratio` (or `size`) that the model ignores.",
    ),
    ("Tollgate-Ledger", "The name of the ledger that knows the purchase."),
    ("X-Request-Id", "The request's name in logs."),
];

/// Whether its answer says when another try makes sense.
pub(super) fn tells_when_to_return(kind: &Kind) -> bool {
    matches!(kind.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}
