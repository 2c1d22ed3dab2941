//! `GET /bff/admin/billing`: the account as the gateway reports it, its history, and the unknown
//! purchases. Of a key it shows the name and the public prefix.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Reports, list_of, unavailable};
use crate::account::summary::{SummaryReading, visible_prefix};
use crate::clock::iso8601;
use crate::gate::problem::Problem;
use crate::gate::response::{self, Response};
use crate::gateway::billing::{ApiKey, ApiKeysResponse};
use crate::gateway::contract::money::{SignedUsd, Usd};
use crate::ledger::{PurchaseRecord, Snapshot};

const MAX_CHECKPOINTS: usize = 100;
const MAX_UNKNOWN: usize = 500;
const MAX_PREFIX: usize = 24;

impl Reports {
    /// Reports the account. The gateway is asked at most once a minute, for at most a second.
    pub async fn admin_billing(&self) -> Result<Response, Problem> {
        self.summary.refresh().await;
        let rows = self.store.unknown_purchases(MAX_UNKNOWN + 1).await.map_err(unavailable)?;
        let snapshots = self.store.latest_snapshots(MAX_CHECKPOINTS).await.map_err(unavailable)?;
        let document = json!({
            "account": self.summary.reading().map(|SummaryReading { listing, as_of, .. }| account(&listing, as_of)),
            "stale": self.summary.is_stale(),
            "checkpoints": snapshots.iter().map(checkpoint).collect::<Vec<_>>(),
            "unknown": unknown_purchases(&rows),
        });
        Ok(response::json(StatusCode::OK, &document))
    }
}

/// Returns the account's JSON, as the gateway described it at a time.
pub fn account(ApiKeysResponse { keys, billing }: &ApiKeysResponse, at: Duration) -> Value {
    let balance = billing.balance();
    let spent = Usd::cents(billing.usage.total_spent_cents);
    json!({
        "at": iso8601(at),
        "balance": balance, "balance_micros": balance.as_micros(),
        "spent": spent, "spent_micros": spent.as_micros(),
        "chats": billing.usage.chat.count,
        "limit": {
            "requests": billing.rate_limit.requests,
            "seconds": billing.rate_limit.window_seconds,
        },
        "keys": keys.iter().map(key).collect::<Vec<_>>(),
    })
}

fn key(row: &ApiKey) -> Value {
    json!({
        "name": row.name,
        "prefix": visible_prefix(&row.key_prefix).chars().take(MAX_PREFIX).collect::<String>(),
        "state": if row.revoked_at.is_none() { "active" } else { "revoked" },
        "created_at": row.created_at,
        "last_used_at": row.last_used_at,
        "revoked_at": row.revoked_at,
        "uses": row.usage_count,
    })
}

fn checkpoint(snapshot: &Snapshot) -> Value {
    let balance = SignedUsd::cents(snapshot.balance_cents);
    let spent = Usd::cents(snapshot.spent_cents);
    json!({
        "at": iso8601(snapshot.at),
        "balance": balance, "balance_micros": balance.as_micros(),
        "spent": spent, "spent_micros": spent.as_micros(),
        "chats": snapshot.chats,
    })
}

fn unknown_purchases(rows: &[PurchaseRecord]) -> impl Serialize + use<> {
    let listed = &rows[..rows.len().min(MAX_UNKNOWN)];
    let sum = listed.iter().try_fold(Usd::ZERO, |sum, row| sum.checked_add(row.price));
    let sum = sum.unwrap_or(Usd::micros(u64::MAX));
    let purchase = |row: &PurchaseRecord| {
        json!({
            "id": row.id.to_string(),
            "at": iso8601(row.at),
            "caller": row.caller,
            "service": row.service.name(),
            "model": row.model,
            "price": row.price, "price_micros": row.price.as_micros(),
        })
    };
    list_of(listed.iter().map(purchase)).with(json!({
        "count": listed.len(),
        "more": rows.len() > MAX_UNKNOWN,
        "price": sum, "price_micros": sum.as_micros(),
    }))
}
