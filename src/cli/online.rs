//! `tollgate check --online`: asks the gateway about each key and the account.

use std::io::{self, Write};
use std::slice;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::ledger::{self, GatewayAccess};
use super::{CommandError, Exit};
use crate::account::summary::{is_active_prefix, listed_prefix};
use crate::api::ops::client::RunningServer;
use crate::api::reports::billing::account;
use crate::api::reports::text::{pluralize, strip_controls};
use crate::app;
use crate::clock;
use crate::config::{Key, Settings, Target};
use crate::gateway::Error;
use crate::gateway::billing::{self, ApiKeysResponse, UsageCounter};
use crate::gateway::contract::money::Usd;
use crate::ledger::Store;

/// The account. Keys are named by their position and public prefix only.
pub(super) struct OnlineReport {
    asked: String,
    keys: Vec<CheckedKey>,
    account: Option<ApiKeysResponse>,
}

#[derive(Serialize)]
struct CheckedKey {
    /// From 1.
    key: usize,
    state: CheckedKeyState,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckedKeyState {
    Accepted,
    Rejected,
    /// Not tried, because a server runs.
    Listed,
    Unlisted,
    Revoked,
}

/// Asks about the account; `None` in the sandbox.
pub(super) async fn ask_gateway(settings: &Settings) -> Result<Option<OnlineReport>, CommandError> {
    let Target::Live { base_url, keys } = &settings.gateway.target else { return Ok(None) };
    let (asked, store) = match ledger::gateway_access(settings).await {
        Ok(Ok(GatewayAccess::ViaServer(server))) => {
            return ask_server(&server, keys).await.map(Some);
        }
        Ok(Ok(GatewayAccess::Standalone(store))) => {
            let slots = "each key takes one slot of the rate limit";
            (format!("directly; {slots}{}", ledger::RECOVERED), store)
        }
        Ok(Ok(GatewayAccess::Shared(store))) => {
            let slots = "each key takes one slot of the rate limit, which all servers share";
            (format!("directly; {slots}"), store)
        }
        Ok(Err(reason)) => return Err(format!("the gateway was not asked: {reason}").into()),
        Err(_no_ledger) => {
            let asked = "directly; without a ledger, the rate limit is not recorded";
            (asked.to_owned(), Store::in_memory(Arc::new(clock::wall)))
        }
    };
    let rate_limit = app::standalone_rate_limit(store, &settings.gateway).await;
    let mut listings = Vec::with_capacity(keys.len());
    for (number, key) in (1..).zip(keys) {
        // A key ring of its own, so that no key is tried in place of another.
        let gateway = app::standalone_gateway(
            &settings.gateway,
            base_url,
            slice::from_ref(key),
            Arc::clone(&rate_limit),
        )?;
        listings.push(match billing::fetch(gateway).await {
            Ok(listing) => Some(listing),
            Err(Error::AllKeysRejected | Error::KeyRejected { .. }) => None,
            Err(error) => {
                let why = format!("gateway.base_url: request with key {number} failed: {error}");
                return Err(why.into());
            }
        });
    }
    let listing = listings.iter().flatten().last();
    let listed = listing.map_or(&[][..], |listing| &listing.keys);
    let checked = (1..).zip(keys.iter().zip(&listings)).map(|(number, (key, listing))| {
        let is_accepted = listing.is_some();
        let state = if is_accepted { CheckedKeyState::Accepted } else { CheckedKeyState::Rejected };
        CheckedKey { key: number, state, prefix: listed_prefix(key, listed).map(strip_controls) }
    });
    let (keys, account) = (checked.collect(), listing.cloned());
    Ok(Some(OnlineReport { asked, keys, account }))
}

/// Asks through the running server. It uses its own keys, so these are only looked up in its list.
async fn ask_server(server: &RunningServer, keys: &[Key]) -> Result<OnlineReport, CommandError> {
    let listing = server.listing().await?;
    let checked = (1..).zip(keys).map(|(number, key)| {
        let prefix = listed_prefix(key, &listing.keys);
        let state = match prefix {
            None => CheckedKeyState::Unlisted,
            Some(prefix) if is_active_prefix(prefix, &listing.keys) => CheckedKeyState::Listed,
            Some(_) => CheckedKeyState::Revoked,
        };
        CheckedKey { key: number, state, prefix: prefix.map(strip_controls) }
    });
    let (asked, keys) =
        (format!("by {}, within its rate limit", server.describe()), checked.collect());
    Ok(OnlineReport { asked, keys, account: Some(listing) })
}

impl OnlineReport {
    pub(super) fn json(&self) -> Value {
        json!({
            "asked": self.asked,
            "keys": self.keys,
            "account": self.account.as_ref().map(|it| account(it, clock::wall())),
        })
    }

    pub(super) fn exit(&self) -> Exit {
        let is_bad = |key: &CheckedKey| {
            matches!(key.state, CheckedKeyState::Rejected | CheckedKeyState::Revoked)
        };
        if self.keys.iter().any(is_bad) { Exit::Failed } else { Exit::Done }
    }

    pub(super) fn print(&self, out: &mut impl Write, err: &mut impl Write) -> io::Result<()> {
        writeln!(out, "asked     {}", self.asked)?;
        for CheckedKey { key, state, prefix } in &self.keys {
            let known = prefix.as_ref().map_or(String::new(), |prefix| format!(" ({prefix}…)"));
            match state {
                CheckedKeyState::Accepted => writeln!(out, "key {key}     accepted{known}")?,
                CheckedKeyState::Rejected => {
                    writeln!(err, "key {key}{known}: the gateway rejected it")?;
                }
                CheckedKeyState::Listed => {
                    let prefix = prefix.as_deref().unwrap_or_default();
                    writeln!(out, "key {key}     not tried; listed as {prefix}…")?;
                }
                CheckedKeyState::Unlisted => {
                    writeln!(out, "key {key}     not tried; no listed key matches it")?;
                }
                CheckedKeyState::Revoked => writeln!(err, "key {key}{known}: listed as revoked")?,
            }
        }
        self.account.as_ref().map_or(Ok(()), |account| print(account, out))
    }
}

fn print(
    ApiKeysResponse { keys, billing }: &ApiKeysResponse,
    out: &mut impl Write,
) -> io::Result<()> {
    let dollars = |amount| Usd::cents(amount).short();
    let (limit, usage) = (billing.rate_limit, billing.usage);
    writeln!(out, "balance   {}", billing.balance().short())?;
    writeln!(out, "limit     {} requests in {} s", limit.requests, limit.window_seconds)?;
    let counters = [("chat", usage.chat), ("search", usage.search), ("images", usage.images)];
    for (name, UsageCounter { count, cost_cents }) in counters {
        writeln!(out, "{name:<9} {}, {}", pluralize(count, "call"), dollars(cost_cents))?;
    }
    writeln!(out, "spent     {} in total", dollars(usage.total_spent_cents))?;
    for row in keys {
        let uses = row.usage_count.map(|count| pluralize(count, "use"));
        write!(out, "listed    {}…", strip_controls(&row.key_prefix))?;
        for (word, text) in [
            ("", Some(&row.name)),
            ("created ", row.created_at.as_ref()),
            ("", uses.as_ref()),
            ("last used ", row.last_used_at.as_ref()),
            ("revoked ", row.revoked_at.as_ref()),
        ] {
            text.map_or(Ok(()), |text| write!(out, ", {word}{}", strip_controls(text)))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
