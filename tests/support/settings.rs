//! Settings that the gates of all tests share.

use super::upstream::Upstream;

/// Limits that no test reaches by accident. Tests of limits set their own.
const NO_LIMITS: &str =
    "limits = { requests = 100000, seconds = 1, burst = 100000, concurrent = 10000 }\n";

/// Adds these limits to a text that sets none.
pub(super) fn whole(settings: &str) -> String {
    let limits = if settings.contains("limits") { "" } else { NO_LIMITS };
    format!("{limits}{settings}")
}

/// Sets free ports, the gateway's address and its keys.
pub(super) fn environment(upstream: &Upstream) -> Vec<(String, String)> {
    let keys: Vec<_> = upstream.canaries().iter().map(|canary| canary.key()).collect();
    let pairs = [
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0".to_owned()),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0".to_owned()),
        ("TOLLGATE_GATEWAY__BASE_URL", format!("http://{}", upstream.address())),
        ("GATEWAY_API_KEY", keys.join(",")),
        ("TOLLGATE_SECRET", super::members::SECRET.to_owned()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}
