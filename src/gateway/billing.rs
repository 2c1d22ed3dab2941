//! Fetches the account's keys, balance, rate limit and usage (contract 2.1 to 2.3).

use serde::{Deserialize, Serialize};
use tower::{Service, ServiceExt};

use super::{Error, GatewayCall, GatewayReply, GatewayRequest, UnparsableReply};
use crate::gateway::contract::money::SignedUsd;
use crate::ledger::AccountLimit;

const MAX_ID_LENGTH: usize = 256;
const MAX_KEYS: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ApiKeysResponse {
    /// Every key of the account, revoked ones included.
    pub keys: Vec<ApiKey>,
    pub billing: GatewayBilling,
}

impl ApiKeysResponse {
    pub fn key_ids(&self) -> Vec<String> {
        let ids = self.keys.iter().filter_map(|key| key.id.clone());
        ids.filter(|id| !id.is_empty() && id.len() <= MAX_ID_LENGTH).take(MAX_KEYS).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Stays the same when the key is revoked.
    #[serde(default)]
    pub id: Option<String>,
    pub name: String,
    pub key_prefix: String,
    pub created_at: Option<String>,
    pub last_used_at: Option<String>,
    pub revoked_at: Option<String>,
    pub usage_count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayBilling {
    /// Rounded to cents, so a chat of $0.003 may not change it. Below zero if the account is in debt.
    pub balance_cents: i64,
    pub rate_limit: AccountLimit,
    pub usage: GatewayUsage,
}

impl GatewayBilling {
    pub fn balance(&self) -> SignedUsd {
        SignedUsd::cents(self.balance_cents)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayUsage {
    pub chat: UsageCounter,
    #[serde(default)]
    pub search: UsageCounter,
    #[serde(default)]
    pub images: UsageCounter,
    pub total_spent_cents: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageCounter {
    pub count: u64,
    pub cost_cents: u64,
}

/// Fetches the keys and the billing summary: free, but it takes a rate-limit slot.
pub async fn fetch<S>(gateway: S) -> Result<ApiKeysResponse, Error>
where
    S: Service<GatewayRequest, Response = GatewayReply, Error = Error>,
{
    parse(&gateway.oneshot(GatewayRequest::free(GatewayCall::Billing)).await?)
}

pub fn parse(reply: &GatewayReply) -> Result<ApiKeysResponse, Error> {
    if !reply.status.is_success() {
        return Err(Error::Status(reply.status));
    }
    let listing = serde_json::from_slice(&reply.body);
    listing.map_err(|_error| Error::Unparsable(reply.status, UnparsableReply::default()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;
    use tower::service_fn;

    use super::*;

    const REFERENCE: &str = r#"{
        "keys": [
            {"id": "k1", "name": "production", "keyPrefix": "svc_sk_ab12", "createdAt": "2025-01-01T00:00:00Z",
             "lastUsedAt": null, "usageCount": 7, "scopes": ["chat"]},
            {"id": "k2", "name": "old", "keyPrefix": "svc_sk_cd34", "createdAt": "2024-01-01T00:00:00Z",
             "lastUsedAt": "2024-02-01T00:00:00Z", "revokedAt": "2024-03-01T00:00:00Z", "usageCount": 1}
        ],
        "stats": {"activeKeys": 1, "totalUsage": 8},
        "billing": {
            "hasCredits": true, "balanceCents": 4210, "balanceFormatted": "$42.10",
            "rateLimit": {"requests": 60, "windowSeconds": 60},
            "usage": {
                "chat": {"count": 3, "costCents": 1}, "search": {"count": 0, "costCents": 0},
                "images": {"count": 0, "costCents": 0}, "totalSpentCents": 790
            }
        }
    }"#;

    async fn fetch_reply(status: StatusCode, body: &str) -> Result<ApiKeysResponse, Error> {
        let reply = GatewayReply {
            status,
            is_json: true,
            body: Bytes::copy_from_slice(body.as_bytes()),
            key: 0,
            video: None,
        };
        fetch(service_fn(move |request: GatewayRequest| {
            assert!(matches!(request.call, GatewayCall::Billing) && request.before_send.is_none());
            let reply = reply.clone();
            async move { Ok(reply) }
        }))
        .await
    }

    #[tokio::test]
    async fn billing_is_parsed_as_in_contract() {
        let ApiKeysResponse { keys, billing } =
            fetch_reply(StatusCode::OK, REFERENCE).await.unwrap();
        let shown: Vec<_> =
            keys.iter().map(|key| (&*key.name, &*key.key_prefix, key.usage_count)).collect();
        assert_eq!(
            shown,
            [("production", "svc_sk_ab12", Some(7)), ("old", "svc_sk_cd34", Some(1))]
        );
        assert_eq!(keys[0].revoked_at, None);
        assert_eq!(keys[1].revoked_at.as_deref(), Some("2024-03-01T00:00:00Z"));
        assert_eq!(billing.balance_cents, 4_210);
        assert_eq!(billing.rate_limit, AccountLimit { requests: 60, window_seconds: 60 });
        assert_eq!(billing.usage.chat, UsageCounter { count: 3, cost_cents: 1 });
        assert_eq!(billing.usage.total_spent_cents, 790);
    }

    #[tokio::test]
    async fn missing_or_mistyped_field_is_an_error() {
        for (from, to) in [
            ("\"balanceCents\": 4210", "\"balanceCents\": \"4210\""),
            ("\"balanceCents\": 4210", "\"balanceCents\": 42.1"),
            ("\"balanceCents\": 4210", "\"balanceCents\": null"),
            ("\"balanceCents\": 4210", "\"balance\": 4210"),
            ("\"balanceCents\": 4210", "\"balanceCents\": 1, \"balanceCents\": 4210"),
            ("\"count\": 3", "\"count\": true"),
            ("\"totalSpentCents\": 790", "\"spent\": 790"),
            ("\"windowSeconds\": 60", "\"windowSeconds\": [60]"),
            ("\"name\": \"old\"", "\"name\": 1"),
            ("\"keyPrefix\": \"svc_sk_cd34\"", "\"key\": \"x\""),
            ("\"billing\"", "\"bill\""),
            ("\"keys\"", "\"key\""),
        ] {
            assert!(REFERENCE.contains(from), "{from}");
            let outcome = fetch_reply(StatusCode::OK, &REFERENCE.replace(from, to)).await;
            assert!(matches!(outcome, Err(Error::Unparsable(..))), "{to}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn refused_billing_request_is_an_error() {
        let outcome = fetch_reply(StatusCode::FORBIDDEN, REFERENCE).await;
        assert!(matches!(outcome, Err(Error::Status(StatusCode::FORBIDDEN))), "{outcome:?}");
    }
}
