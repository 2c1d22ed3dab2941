//! `GET /bff/admin/billing`: the account as the gateway reports it, its history, and the unknown
//! purchases. Of a key it shows the name and the public prefix.

use http::StatusCode;
use serde::Serialize;

use super::{Amounts, Reports, unavailable};
use crate::billing::summary::{SummaryReading, usd_from_cents, visible_prefix};
use crate::clock::iso8601;
use crate::contract::money::Usd;
use crate::problem::Problem;
use crate::response::{self, Response};
use crate::store::{PurchaseRecord, Snapshot};
use crate::upstream::billing::{ApiKey, ApiKeysResponse};

const MAX_CHECKPOINTS: usize = 100;
const MAX_UNKNOWN: usize = 500;
const MAX_PREFIX: usize = 24;

#[derive(Serialize)]
struct BillingDocument {
    account: Option<AccountBody>,
    stale: bool,
    checkpoints: Vec<CheckpointBody>,
    unknown: UnknownPurchases,
}

#[derive(Serialize)]
struct AccountBody {
    as_of: String,
    #[serde(flatten)]
    money: Amounts<2>,
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

#[derive(Serialize)]
struct CheckpointBody {
    at: String,
    #[serde(flatten)]
    money: Amounts<2>,
    chats: u64,
}

#[derive(Serialize)]
struct UnknownPurchases {
    count: usize,
    more: bool,
    #[serde(flatten)]
    price: Amounts<1>,
    purchases: Vec<Purchase>,
}

#[derive(Serialize)]
struct Purchase {
    id: String,
    at: String,
    caller: String,
    service: &'static str,
    model: String,
    #[serde(flatten)]
    price: Amounts<1>,
}

impl Reports {
    /// Reports the account. The gateway is asked at most once a minute, for at most a second.
    pub async fn admin_billing(&self) -> Result<Response, Problem> {
        self.summary.refresh().await;
        let mut rows = self.store.unknown_purchases(MAX_UNKNOWN + 1).await.map_err(unavailable)?;
        let more = rows.len() > MAX_UNKNOWN;
        rows.truncate(MAX_UNKNOWN);
        let checkpoints =
            self.store.latest_snapshots(MAX_CHECKPOINTS).await.map_err(unavailable)?;
        let document = BillingDocument {
            account: self.summary.reading().as_ref().map(account_body),
            stale: self.summary.is_stale(),
            checkpoints: checkpoints.iter().map(checkpoint_body).collect(),
            unknown: unknown_purchases(rows, more),
        };
        Ok(response::json(StatusCode::OK, &document))
    }
}

fn money(balance_cents: u64, spent_cents: u64) -> Amounts<2> {
    Amounts([("balance", usd_from_cents(balance_cents)), ("spent", usd_from_cents(spent_cents))])
}

fn account_body(SummaryReading { listing, as_of, .. }: &SummaryReading) -> AccountBody {
    let ApiKeysResponse { keys, billing } = listing.as_ref();
    let limit = billing.rate_limit;
    AccountBody {
        as_of: iso8601(*as_of),
        money: money(billing.balance_cents, billing.usage.total_spent_cents),
        chats: billing.usage.chat.count,
        limit: Limit { requests: limit.requests, seconds: limit.window_seconds },
        keys: keys.iter().map(key).collect(),
    }
}

fn key(row: &ApiKey) -> Key {
    Key {
        name: row.name.clone(),
        prefix: visible_prefix(&row.key_prefix).chars().take(MAX_PREFIX).collect(),
        state: if row.revoked_at.is_none() { "active" } else { "revoked" },
        created: row.created_at.clone(),
        last_used: row.last_used_at.clone(),
        revoked: row.revoked_at.clone(),
        uses: row.usage_count,
    }
}

fn checkpoint_body(check: &Snapshot) -> CheckpointBody {
    CheckpointBody {
        at: iso8601(check.at),
        money: money(check.balance_cents, check.spent_cents),
        chats: check.chats,
    }
}

fn unknown_purchases(rows: Vec<PurchaseRecord>, more: bool) -> UnknownPurchases {
    let sum = rows.iter().try_fold(Usd::ZERO, |sum, row| sum.checked_add(row.price));
    let purchase = |row: PurchaseRecord| Purchase {
        id: row.id.to_string(),
        at: iso8601(row.at),
        caller: row.caller,
        service: row.service.name(),
        model: row.model,
        price: Amounts([("price", row.price)]),
    };
    UnknownPurchases {
        count: rows.len(),
        more,
        price: Amounts([("price", sum.unwrap_or(Usd::micros(u64::MAX)))]),
        purchases: rows.into_iter().map(purchase).collect(),
    }
}
