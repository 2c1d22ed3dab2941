//! Who may call (5), and `GET /api/api-keys`: keys, statistics and billing (2.1 to 2.3).

use http::header::{AUTHORIZATION, HeaderMap};
use serde::Serialize;

use super::Gateway;
use super::account::{Key, Spent, State};
use super::wire::{self, Reply, Stop};
use crate::clock::iso8601;

/// Checks the key and takes a place in the account's window.
pub(super) fn admit(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Stop> {
    let bearer = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, key)) = bearer else {
        return Err(wire::refuse(wire::NO_KEY, "Send Authorization: Bearer with an API key"));
    };
    gateway.account.admit(key.trim())
}

/// The account as its owner sees it; no key in full.
pub(super) fn list(gateway: &Gateway) -> Reply {
    let (requests, length) = gateway.settings.window;
    let state = gateway.account.books();
    Ok(wire::json(&Listing {
        keys: state.keys.iter().map(KeyRow::of).collect(),
        stats: Stats {
            active_keys: state.keys.iter().filter(|key| key.revoked.is_none()).count(),
            total_usage: state.keys.iter().map(|key| key.uses).sum(),
        },
        billing: Billing::of(&state, RateLimit { requests, window_seconds: length.as_secs() }),
    }))
}

#[derive(Serialize)]
struct Listing {
    keys: Vec<KeyRow>,
    stats: Stats,
    billing: Billing,
}

/// 2.1. Guess: a date that is not there yet is `null`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyRow {
    id: String,
    name: String,
    key_prefix: String,
    created_at: String,
    last_used_at: Option<String>,
    revoked_at: Option<String>,
    usage_count: u64,
}

/// 2.2.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    active_keys: usize,
    total_usage: u64,
}

/// 2.3. Guess: cents are rounded down, the text is exact.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Billing {
    has_credits: bool,
    balance_cents: u64,
    balance_formatted: String,
    rate_limit: RateLimit,
    usage: Usage,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RateLimit {
    requests: u32,
    window_seconds: u64,
}

/// 2.3: three counters, none of them for videos, which show in the total alone (guess).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    chat: Counter,
    search: Counter,
    images: Counter,
    total_spent_cents: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Counter {
    count: u64,
    cost_cents: u64,
}

impl KeyRow {
    fn of(key: &Key) -> Self {
        Self {
            id: key.id.clone(),
            name: key.name.clone(),
            key_prefix: key.prefix(),
            created_at: iso8601(key.created),
            last_used_at: key.last_used.map(iso8601),
            revoked_at: key.revoked.map(iso8601),
            usage_count: key.uses,
        }
    }
}

impl Billing {
    fn of(state: &State, rate_limit: RateLimit) -> Self {
        let balance = state.balance.as_micros();
        Self {
            has_credits: balance > 0,
            balance_cents: cents(balance),
            balance_formatted: state.balance.short().to_string(),
            rate_limit,
            usage: Usage {
                chat: Counter::of(state.chat),
                search: Counter::of(Spent::default()),
                images: Counter::of(Spent::default()),
                total_spent_cents: cents(state.charged().as_micros()),
            },
        }
    }
}

impl Counter {
    fn of(spent: Spent) -> Self {
        Self { count: spent.count, cost_cents: cents(spent.micros) }
    }
}

fn cents(micros: u64) -> u64 {
    micros / 10_000
}
