//! `GET /bff/admin/billing`: the account as the gateway reports it, how its balance went, and purchases whose
//! outcome is unknown. Of a key it shows the name and the public prefix that the gateway lists.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Reports, unavailable};
use crate::answer::{self, Answer};
use crate::billing::summary::{Known, cents, shown};
use crate::clock::iso8601;
use crate::contract::money::Usd;
use crate::problem::Problem;
use crate::store::{Row, Snapshot};
use crate::upstream::billing::KeyRow;

const MAX_CHECKPOINTS: usize = 100;
const MAX_UNKNOWN: usize = 500;
/// A public prefix is short; anything longer is cut.
const MAX_PREFIX: usize = 24;

impl Reports {
    /// The gateway is asked at most once a minute, and nobody waits for it for longer than a second.
    pub async fn account(&self) -> Result<Answer, Problem> {
        self.summary.refresh().await;
        let mut rows = self.store.unknown(MAX_UNKNOWN + 1).await.map_err(unavailable)?;
        let more = rows.len() > MAX_UNKNOWN;
        rows.truncate(MAX_UNKNOWN);
        let checkpoints = self.store.checks(MAX_CHECKPOINTS).await.map_err(unavailable)?;
        let document = json!({
            // Null until the gateway has answered once.
            "account": self.summary.known().as_ref().map(account),
            "stale": self.summary.is_stale(),
            "checkpoints": checkpoints.iter().map(checkpoint).collect::<Vec<_>>(),
            "unknown": unknown(&rows, more),
        });
        Ok(answer::json(StatusCode::OK, &document))
    }
}

fn account(Known { listing, as_of, .. }: &Known) -> Value {
    let billing = &listing.billing;
    let (balance, spent) = (cents(billing.balance_cents), cents(billing.usage.total_spent_cents));
    json!({
        "as_of": iso8601(*as_of),
        "balance": balance,
        "balance_micros": balance.as_micros(),
        "spent": spent,
        "spent_micros": spent.as_micros(),
        "chats": billing.usage.chat.count,
        "limit": {
            "requests": billing.rate_limit.requests,
            "seconds": billing.rate_limit.window_seconds,
        },
        "keys": listing.keys.iter().map(key).collect::<Vec<_>>(),
    })
}

fn key(row: &KeyRow) -> Value {
    json!({
        "name": row.name,
        "prefix": shown(&row.key_prefix).chars().take(MAX_PREFIX).collect::<String>(),
        "state": if row.revoked_at.is_none() { "active" } else { "revoked" },
        "created": row.created_at,
        "last_used": row.last_used_at,
        "revoked": row.revoked_at,
        "uses": row.usage_count,
    })
}

fn checkpoint(check: &Snapshot) -> Value {
    let (balance, spent) = (cents(check.balance_cents), cents(check.spent_cents));
    json!({
        "at": iso8601(check.at),
        "balance": balance,
        "balance_micros": balance.as_micros(),
        "spent": spent,
        "spent_micros": spent.as_micros(),
        "chats": check.chats,
    })
}

fn unknown(rows: &[Row], more: bool) -> Value {
    let sum = rows.iter().try_fold(Usd::ZERO, |sum, row| sum.checked_add(row.toll));
    let sum = sum.unwrap_or(Usd::micros(u64::MAX));
    let purchase = |row: &Row| {
        json!({
            "id": row.id.to_string(),
            "at": iso8601(row.at),
            "caller": row.caller,
            "service": row.service.name(),
            "model": row.model,
            "toll": row.toll,
            "toll_micros": row.toll.as_micros(),
        })
    };
    json!({
        "count": rows.len(),
        // Whether there are more than are listed and counted.
        "more": more,
        "tolls": sum,
        "tolls_micros": sum.as_micros(),
        "purchases": rows.iter().map(purchase).collect::<Vec<_>>(),
    })
}
