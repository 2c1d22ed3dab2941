//! Settings that the gates of all tests share.

use super::canary::Canary;
use super::upstream::Upstream;

/// Limits that no test reaches by accident. Tests of limits set their own.
const NO_LIMITS: &str =
    "limits = { requests = 100000, seconds = 1, burst = 100000, concurrent = 10000 }\n";

/// Adds these limits to a text that sets none.
pub(super) fn whole(settings: &str) -> String {
    let limits = if settings.contains("limits") { "" } else { NO_LIMITS };
    format!("{limits}{settings}")
}

/// Adds limits, and a store in memory if the text names none.
pub(super) fn stored(settings: &str) -> String {
    let has_store = settings.contains("store.url");
    let store = if has_store { "" } else { "store.url = \"memory\"\n" };
    format!("{store}{}", whole(settings))
}

/// Sets free ports, the gateway's address and its keys.
pub(super) fn environment(upstream: &Upstream) -> Vec<(String, String)> {
    environment_of(&format!("http://{}", upstream.address()), upstream.canaries())
}

/// Does the same for a gateway with this address and these keys.
pub(super) fn environment_of(gateway: &str, keys: &[Canary]) -> Vec<(String, String)> {
    let keys: Vec<_> = keys.iter().map(Canary::key).collect();
    let pairs = [
        ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_ADMIN__LISTEN", "127.0.0.1:0"),
        ("TOLLGATE_GATEWAY__BASE_URL", gateway),
        ("GATEWAY_API_KEY", &keys.join(",")),
        ("TOLLGATE_SECRET", super::members::SECRET),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// Keeps no video, unless the settings say how: to fetch it takes requests that no test expects.
pub(super) fn no_kept_videos(settings: &str) -> Option<(String, String)> {
    let variable = || ("TOLLGATE_VIDEOS__KEEP".to_owned(), "0s".to_owned());
    (!settings.contains("videos.")).then(variable)
}

/// Sets a rate limit that no test reaches by accident, unless the settings have their own.
pub(super) fn no_rate_limit(settings: &str) -> Option<(String, String)> {
    const NO_LIMIT: &str = "{ requests = 100000, seconds = 1 }";
    let variable = || ("TOLLGATE_GATEWAY__RATE_LIMIT".to_owned(), NO_LIMIT.to_owned());
    (!settings.contains("gateway.rate_limit")).then(variable)
}
