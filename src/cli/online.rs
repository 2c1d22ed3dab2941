//! `tollgate check --online`: asks the gateway with each key, and prints what the account has.

use std::io::{self, Write};
use std::sync::Arc;

use super::ledger::{self, GatewayAccess, RunningServer};
use super::{Exit, Loaded, check};
use crate::app;
use crate::billing::summary::{is_active_prefix, usd_from_cents, visible_prefix};
use crate::clock;
use crate::config::{Key, SettingError, Settings, Target};
use crate::contract::wire::KEY_PREFIX;
use crate::reports::text::{pluralize, strip_controls};
use crate::store::Store;
use crate::upstream::Error;
use crate::upstream::billing::{self, ApiKey, ApiKeysResponse, UsageCounter};

/// `check`, then the account as the gateway lists it. A key is named by its place and its public prefix only.
pub async fn online(
    loaded: &Result<Loaded, Vec<SettingError>>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let exit = check(loaded, out, err).await?;
    match loaded {
        Ok(Loaded { config, .. }) if exit == Exit::Done => ask_directly(config, out, err).await,
        Ok(_) | Err(_) => Ok(exit),
    }
}

async fn ask_directly(
    config: &Settings,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let Target::Live { base_url, keys } = &config.gateway.target else {
        writeln!(out, "online    nothing to ask: the sandbox starts with the server")?;
        return Ok(Exit::Done);
    };
    let store = match ledger::existing_path(config).map(|path| ledger::gateway_access(config, path))
    {
        Ok(Ok(GatewayAccess::ViaServer(server))) => {
            return ask_server(&server, keys, out, err).await;
        }
        Ok(Ok(GatewayAccess::Standalone(store))) => {
            writeln!(out, "asked     here; the ledger's window counts a request for each key")?;
            store
        }
        Ok(Err(why)) => {
            writeln!(err, "the gateway is not asked: {why}")?;
            return Ok(Exit::Failed);
        }
        Err(_no_ledger) => {
            writeln!(out, "asked     here; there is no ledger yet to count it in the window")?;
            Store::in_memory(Arc::new(clock::wall))
        }
    };
    let window = app::standalone_rate_limit(store, &config.gateway).await;
    let mut listings = Vec::with_capacity(keys.len());
    for (place, key) in (1..).zip(keys) {
        // A ring of its own for each, so that none stands in for another.
        let key = std::slice::from_ref(key);
        let gateway = app::standalone_gateway(&config.gateway, base_url, key, Arc::clone(&window))?;
        listings.push(match billing::fetch(gateway).await {
            Ok(listing) => Some(listing),
            Err(Error::AllKeysRejected | Error::KeyRejected { .. }) => None,
            Err(error) => {
                writeln!(err, "gateway.base_url: asked with key {place}: {error}")?;
                return Ok(Exit::Failed);
            }
        });
    }
    let listing = listings.iter().flatten().last();
    let listed = listing.map_or(&[][..], |listing| &listing.keys);
    for (place, (key, own)) in (1..).zip(keys.iter().zip(&listings)) {
        let prefix =
            listed_prefix(key, listed).map(|prefix| format!(" ({}…)", strip_controls(prefix)));
        let prefix = prefix.unwrap_or_default();
        match own {
            Some(_) => writeln!(out, "key {place}     accepted{prefix}")?,
            None => writeln!(err, "key {place}{prefix}: the gateway refuses it")?,
        }
    }
    listing.map_or(Ok(()), |listing| print(listing, out))?;
    Ok(if listings.iter().all(Option::is_some) { Exit::Done } else { Exit::Failed })
}

/// What the running server was told: its own keys asked, so these here are looked up in the list alone.
async fn ask_server(
    server: &RunningServer,
    keys: &[Key],
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let listing = match server.listing().await {
        Ok(listing) => listing,
        Err(why) => {
            writeln!(err, "{why}")?;
            return Ok(Exit::Failed);
        }
    };
    writeln!(out, "asked     by {}, within its window", server.describe())?;
    let mut exit = Exit::Done;
    for (place, key) in (1..).zip(keys) {
        match listed_prefix(key, &listing.keys) {
            None => writeln!(out, "key {place}     not tried; nothing in the list fits it")?,
            Some(prefix) if is_active_prefix(prefix, &listing.keys) => {
                writeln!(out, "key {place}     not tried; listed as {}…", strip_controls(prefix))?;
            }
            Some(prefix) => {
                writeln!(
                    err,
                    "key {place} ({}…): the gateway lists it as revoked",
                    strip_controls(prefix)
                )?;
                exit = Exit::Failed;
            }
        }
    }
    print(&listing, out)?;
    Ok(exit)
}

/// The longest listed prefix that is one of this key, and not the whole of it.
fn listed_prefix<'a>(key: &Key, listed: &'a [ApiKey]) -> Option<&'a str> {
    let prefixes = listed.iter().map(|row| visible_prefix(&row.key_prefix));
    let fits = prefixes.filter(|prefix| {
        prefix.len() > KEY_PREFIX.len()
            && prefix.len() < key.expose().len()
            && key.expose().starts_with(prefix)
    });
    fits.max_by_key(|prefix| prefix.len())
}

fn print(
    ApiKeysResponse { keys, billing }: &ApiKeysResponse,
    out: &mut impl Write,
) -> io::Result<()> {
    let dollars = |amount| usd_from_cents(amount).short();
    let (limit, usage) = (billing.rate_limit, billing.usage);
    writeln!(out, "balance   {}", dollars(billing.balance_cents))?;
    writeln!(out, "limit     {} requests in {} s", limit.requests, limit.window_seconds)?;
    let counters = [("chat", usage.chat), ("search", usage.search), ("images", usage.images)];
    for (name, UsageCounter { count, cost_cents }) in counters {
        writeln!(out, "{name:<9} {}, {}", pluralize(count, "call"), dollars(cost_cents))?;
    }
    writeln!(out, "spent     {} in all", dollars(usage.total_spent_cents))?;
    for row in keys {
        let said = |word: &str, text: &Option<String>| {
            text.as_ref()
                .map(|text| format!(", {word} {}", strip_controls(text)))
                .unwrap_or_default()
        };
        let uses = row.usage_count.map(|count| format!(", {}", pluralize(count, "use")));
        let uses = uses.unwrap_or_default();
        writeln!(
            out,
            "listed    {}…, {}{}{uses}{}{}",
            strip_controls(&row.key_prefix),
            strip_controls(&row.name),
            said("created", &row.created_at),
            said("last used", &row.last_used_at),
            said("revoked", &row.revoked_at),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_by_what_the_gateway_lists_of_it_and_never_whole() {
        let row = |prefix: &str| ApiKey {
            id: None,
            name: "a key".to_owned(),
            key_prefix: prefix.to_owned(),
            created_at: None,
            last_used_at: None,
            revoked_at: None,
            usage_count: None,
        };
        let key = Key::new("svc_sk_abcdefgh".to_owned());
        for (listed, named) in [
            (&["svc_sk_abcd"][..], Some("svc_sk_abcd")),
            (&["svc_sk_abcd..."], Some("svc_sk_abcd")),
            (&["svc_sk_ab", "svc_sk_abc", "svc_sk_x"], Some("svc_sk_abc")),
            (&["svc_sk_abcdefgh"], None),
            (&["svc_sk_", "", "svc_sk_b", "svc_sk_abcdefghi"], None),
            (&[], None),
        ] {
            let listed: Vec<_> = listed.iter().map(|prefix| row(prefix)).collect();
            assert_eq!(listed_prefix(&key, &listed), named, "{listed:?}");
        }
    }
}
