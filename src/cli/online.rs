//! `tollgate check --online`: asks the gateway about each key and the account.

use std::io::{self, Write};
use std::slice;
use std::sync::Arc;

use super::ledger::{self, GatewayAccess, RunningServer};
use super::{CommandError, Exit};
use crate::app;
use crate::billing::summary::{is_active_prefix, listed_prefix};
use crate::clock;
use crate::config::{Key, Settings, Target};
use crate::contract::money::Usd;
use crate::reports::text::{pluralize, strip_controls};
use crate::store::Store;
use crate::upstream::Error;
use crate::upstream::billing::{self, ApiKeysResponse, UsageCounter};

/// Prints the account. Keys are named by their position and public prefix only.
pub(super) async fn ask_gateway(
    settings: &Settings,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let Target::Live { base_url, keys } = &settings.gateway.target else {
        writeln!(out, "online    nothing to ask: the sandbox starts with the server")?;
        return Ok(Exit::Done);
    };
    let access = ledger::existing_path(settings).map(|path| ledger::gateway_access(settings, path));
    let store = match access {
        Ok(Ok(GatewayAccess::ViaServer(server))) => {
            return ask_server(&server, keys, out, err).await;
        }
        Ok(Ok(GatewayAccess::Standalone(store))) => {
            let slots = "each key takes one slot of the rate limit";
            writeln!(out, "asked     directly; {slots}{}", ledger::RECOVERED)?;
            store
        }
        Ok(Err(reason)) => return Err(format!("the gateway was not asked: {reason}").into()),
        Err(_no_ledger) => {
            writeln!(out, "asked     directly; without a ledger, the rate limit is not recorded")?;
            Store::in_memory(Arc::new(clock::wall))
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
    for (number, (key, accepted)) in (1..).zip(keys.iter().zip(&listings)) {
        let prefix = listed_prefix(key, listed)
            .map_or(String::new(), |prefix| format!(" ({}…)", strip_controls(prefix)));
        match accepted {
            Some(_) => writeln!(out, "key {number}     accepted{prefix}")?,
            None => writeln!(err, "key {number}{prefix}: the gateway rejected it")?,
        }
    }
    listing.map_or(Ok(()), |listing| print(listing, out))?;
    Ok(if listings.iter().all(Option::is_some) { Exit::Done } else { Exit::Failed })
}

/// Asks through the running server. It uses its own keys, so these are only looked up in its list.
async fn ask_server(
    server: &RunningServer,
    keys: &[Key],
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, CommandError> {
    let listing = server.listing().await?;
    writeln!(out, "asked     by {}, within its rate limit", server.describe())?;
    let mut exit = Exit::Done;
    for (number, key) in (1..).zip(keys) {
        match listed_prefix(key, &listing.keys) {
            None => writeln!(out, "key {number}     not tried; no listed key matches it")?,
            Some(prefix) if is_active_prefix(prefix, &listing.keys) => {
                writeln!(out, "key {number}     not tried; listed as {}…", strip_controls(prefix))?;
            }
            Some(prefix) => {
                writeln!(err, "key {number} ({}…): listed as revoked", strip_controls(prefix))?;
                exit = Exit::Failed;
            }
        }
    }
    print(&listing, out)?;
    Ok(exit)
}

fn print(
    ApiKeysResponse { keys, billing }: &ApiKeysResponse,
    out: &mut impl Write,
) -> io::Result<()> {
    let dollars = |amount| Usd::cents(amount).short();
    let (limit, usage) = (billing.rate_limit, billing.usage);
    writeln!(out, "balance   {}", dollars(billing.balance_cents))?;
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
