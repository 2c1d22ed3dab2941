//! `GET /bff/admin/billing`: the account as the gateway tells it, how its balance went, and what nobody
//! knows the outcome of. Of a key there is its name and the public prefix that the gateway lists.

use http::StatusCode;
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::billing::summary::{Books, Known, shown};
use crate::clock::iso8601;
use crate::contract::money::Usd;
use crate::store::{Row, Snapshot, Store, Unavailable};
use crate::upstream::billing::{KeyRow, Listing};

/// Snapshots that are shown, the latest first.
const MOST_CHECKPOINTS: usize = 100;
/// Unknown outcomes that are shown, the latest first.
const MOST_UNKNOWN: usize = 500;
/// A public prefix is short; whatever else the gateway puts there is cut.
const LONGEST_PREFIX: usize = 24;

#[derive(Serialize)]
struct Document {
    /// Nothing before the gateway said anything.
    account: Option<Account>,
    /// Whether the gateway did not answer when it was asked last.
    stale: bool,
    checkpoints: Vec<Point>,
    unknown: Unknown,
}

#[derive(Serialize)]
struct Account {
    as_of: String,
    balance: String,
    balance_micros: u64,
    spent: String,
    spent_micros: u64,
    chats: u64,
    limit: Limit,
    keys: Vec<Key>,
}

#[derive(Serialize)]
struct Limit {
    requests: u64,
    seconds: u64,
}

#[derive(Serialize)]
struct Key {
    name: String,
    prefix: String,
    /// `active` or `revoked`.
    state: &'static str,
    created: Option<String>,
    last_used: Option<String>,
    revoked: Option<String>,
    uses: Option<u64>,
}

/// What the gateway's books said at a moment at which nothing was under way.
#[derive(Serialize)]
struct Point {
    at: String,
    balance: String,
    balance_micros: u64,
    spent: String,
    spent_micros: u64,
    chats: u64,
}

#[derive(Serialize)]
struct Unknown {
    count: usize,
    /// Whether there are more than are listed and counted.
    more: bool,
    tolls: String,
    tolls_micros: u64,
    purchases: Vec<Purchase>,
}

#[derive(Serialize)]
struct Purchase {
    id: String,
    at: String,
    caller: String,
    service: &'static str,
    model: String,
    toll: String,
    toll_micros: u64,
}

pub(super) async fn answer(books: &Books, ledger: &Store) -> Result<Answer, Unavailable> {
    let mut rows = ledger.unknown(MOST_UNKNOWN + 1).await?;
    let more = rows.len() > MOST_UNKNOWN;
    rows.truncate(MOST_UNKNOWN);
    let checkpoints = ledger.checks(MOST_CHECKPOINTS).await?;
    let document = Document {
        account: books.known().as_ref().map(account),
        stale: books.is_stale(),
        checkpoints: checkpoints.iter().map(point).collect(),
        unknown: unknown(rows, more),
    };
    Ok(answer::json(StatusCode::OK, &document))
}

fn account(Known { listing, as_of, .. }: &Known) -> Account {
    let Listing { keys, billing } = listing.as_ref();
    let (balance, spent) = (cents(billing.balance_cents), cents(billing.usage.total_spent_cents));
    Account {
        as_of: iso8601(*as_of),
        balance: balance.to_string(),
        balance_micros: balance.as_micros(),
        spent: spent.to_string(),
        spent_micros: spent.as_micros(),
        chats: billing.usage.chat.count,
        limit: Limit {
            requests: billing.rate_limit.requests,
            seconds: billing.rate_limit.window_seconds,
        },
        keys: keys.iter().map(key).collect(),
    }
}

fn key(row: &KeyRow) -> Key {
    Key {
        name: row.name.clone(),
        prefix: shown(&row.key_prefix).chars().take(LONGEST_PREFIX).collect(),
        state: if row.revoked_at.is_none() { "active" } else { "revoked" },
        created: row.created_at.clone(),
        last_used: row.last_used_at.clone(),
        revoked: row.revoked_at.clone(),
        uses: row.usage_count,
    }
}

fn point(check: &Snapshot) -> Point {
    let (balance, spent) = (cents(check.balance_cents), cents(check.spent_cents));
    Point {
        at: iso8601(check.at),
        balance: balance.to_string(),
        balance_micros: balance.as_micros(),
        spent: spent.to_string(),
        spent_micros: spent.as_micros(),
        chats: check.chats,
    }
}

fn unknown(rows: Vec<Row>, more: bool) -> Unknown {
    let sum = rows.iter().try_fold(Usd::ZERO, |sum, row| sum.checked_add(row.toll));
    let tolls = sum.unwrap_or(Usd::micros(u64::MAX));
    let purchase = |row: Row| Purchase {
        id: row.id.to_string(),
        at: iso8601(row.at),
        caller: row.caller,
        service: row.service.name(),
        model: row.model,
        toll: row.toll.to_string(),
        toll_micros: row.toll.as_micros(),
    };
    Unknown {
        count: rows.len(),
        more,
        tolls: tolls.to_string(),
        tolls_micros: tolls.as_micros(),
        purchases: rows.into_iter().map(purchase).collect(),
    }
}

fn cents(cents: u64) -> Usd {
    Usd::cents(cents).unwrap_or(Usd::micros(u64::MAX))
}
