//! Finds the ledger for a command, and asks the gateway: through the running server, or directly if
//! there is none. Either way, each request takes a slot of the rate limit.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{CommandError, Exit};
use crate::api::ops::client::{self, RunningServer};
use crate::clock;
use crate::config::{Settings, StoreConfig};
use crate::ledger::configured::{Migration, describe, open_for_command, open_for_report};
use crate::ledger::sqlite::{LockHolder, OpenError};
use crate::ledger::{Store, VERSION_POLL_INTERVAL};

/// Said by a command that changes nothing else.
pub(super) const RECOVERED: &str = "; as no server runs, interrupted purchases were ended";

/// Added to the time that the server itself may wait for the gateway.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(10);

pub(super) enum GatewayAccess {
    /// A server has the ledger.
    ViaServer(RunningServer),
    /// The command has locked the ledger, so no server can start meanwhile.
    Standalone(Store),
    /// Servers share the ledger and its rate limit with this command.
    Shared(Store),
}

fn in_memory() -> CommandError {
    CommandError::usage(
        "store.url is \"memory\" (the default of the sandbox, which uses play money): only the \
         running server knows its purchases; set store.url to keep a ledger on disk",
    )
}

pub(super) fn existing_path(settings: &Settings) -> Result<&Path, CommandError> {
    let path = settings.store.path().ok_or_else(in_memory)?;
    let shown = path.display();
    match path.try_exists() {
        Ok(true) => Ok(path),
        Ok(false) => Err(format!(
            "there is no ledger at {shown} (store.url); the server creates it when it first starts"
        )
        .into()),
        Err(error) => Err(format!("the ledger at {shown} cannot be read: {error}").into()),
    }
}

pub(super) async fn open_read_only(settings: &Settings) -> Result<Store, CommandError> {
    if let StoreConfig::Postgres(config) = &settings.store {
        return Ok(open_for_report(settings, config).await?);
    }
    Ok(Store::open_read_only(existing_path(settings)?, Arc::new(clock::wall))?)
}

/// Opens the ledger to write in it, also while servers have it.
pub(super) async fn open_shared(settings: &Settings) -> Result<Store, CommandError> {
    if let StoreConfig::Postgres(config) = &settings.store {
        return Ok(open_for_command(settings, config, Migration::Refused).await?);
    }
    Ok(Store::open_shared(existing_path(settings)?, Arc::new(clock::wall))?)
}

/// Does the same, and creates a ledger if there is none.
pub(super) async fn open_or_create(settings: &Settings) -> Result<Store, CommandError> {
    match &settings.store {
        StoreConfig::Postgres(config) => {
            Ok(open_for_command(settings, config, Migration::AsConfigured).await?)
        }
        StoreConfig::Sqlite(path) => Ok(Store::open_shared(path, Arc::new(clock::wall))?),
        StoreConfig::Memory => Err(in_memory()),
    }
}

/// Describes the ledger of a command that changes it, so that a wrong folder is noticed.
pub(super) fn whole_path(settings: &Settings) -> String {
    let Some(path) = settings.store.path() else { return describe(settings) };
    let whole = path.canonicalize();
    whole.as_deref().unwrap_or(path).display().to_string()
}

/// Decides who asks the gateway: the server that has the ledger, or this command. Fails at once if
/// there is no ledger.
pub(super) async fn gateway_access(
    settings: &Settings,
) -> Result<Result<GatewayAccess, String>, CommandError> {
    if let StoreConfig::Postgres(config) = &settings.store {
        let opened = open_for_command(settings, config, Migration::Refused).await;
        return Ok(opened.map(GatewayAccess::Shared));
    }
    Ok(sqlite_access(settings, existing_path(settings)?))
}

fn sqlite_access(settings: &Settings, path: &Path) -> Result<GatewayAccess, String> {
    match Store::open_exclusive(path, Arc::new(clock::wall)) {
        Ok(store) => Ok(GatewayAccess::Standalone(store)),
        Err(OpenError::Locked { pid, holder: LockHolder::Server(admin), .. }) => {
            let (address, is_noted) =
                (client::reachable(admin.unwrap_or(settings.ops_address())), admin.is_some());
            let gateway = &settings.gateway;
            let timeout =
                gateway.max_wait + gateway.connect_timeout + gateway.chat_timeout + TIMEOUT_MARGIN;
            Ok(GatewayAccess::ViaServer(RunningServer { process: pid, address, is_noted, timeout }))
        }
        Err(error @ (OpenError::Locked { .. } | OpenError::Unusable(_))) => Err(error.to_string()),
    }
}

/// Returns once running servers know the change.
pub(super) async fn wait_for_servers(settings: &Settings, ledger: &Store) {
    if let StoreConfig::Postgres(_) = settings.store {
        // Until all servers have polled the ledger.
        sleep(VERSION_POLL_INTERVAL * 3).await;
    } else if let Some(LockHolder::Server(address)) = ledger.lock_holder() {
        let is_refreshed = match address {
            Some(address) => client::refresh_members(address).await,
            None => false,
        };
        if !is_refreshed {
            // Until the server has polled the ledger.
            sleep(VERSION_POLL_INTERVAL * 3).await;
        }
    }
}

/// Asks the server whose ops listener is `at` whether it is alive.
pub(super) async fn check_live(at: SocketAddr) -> Result<Exit, CommandError> {
    if client::is_alive(at).await {
        return Ok(Exit::Done);
    }
    let at = client::reachable(at);
    Err(format!("no live server at {at} (admin.listen)").into())
}
