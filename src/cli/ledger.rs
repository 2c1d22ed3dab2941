//! Finds the ledger for a command, and asks the gateway: through the running server, or directly if
//! there is none. Either way, each request takes a slot of the rate limit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode, request};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{CommandError, Exit};
use crate::account::summary::BillingReport;
use crate::api::reports::text::strip_controls;
use crate::app::ledger::{Migration, describe, open_for_command, open_for_report};
use crate::clock;
use crate::config::{Settings, StoreConfig};
use crate::gate::response::BoxError;
use crate::gateway::billing::ApiKeysResponse;
use crate::ledger::sqlite::{LockHolder, OpenError};
use crate::ledger::{Store, VERSION_POLL_INTERVAL};

/// Said by a command that changes nothing else.
pub(super) const RECOVERED: &str = "; as no server runs, interrupted purchases were ended";

const MAX_REPLY: usize = 1 << 20;
/// Added to the time that the server itself may wait for the gateway.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(10);
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) enum GatewayAccess {
    /// A server has the ledger.
    ViaServer(RunningServer),
    /// The command has locked the ledger, so no server can start meanwhile.
    Standalone(Store),
    /// Servers share the ledger and its rate limit with this command.
    Shared(Store),
}

pub(super) struct RunningServer {
    process: Option<u32>,
    address: SocketAddr,
    /// The lock file names the address. Otherwise, it is that of `admin.listen`.
    is_noted: bool,
    timeout: Duration,
}

#[derive(Deserialize)]
struct ProblemBody {
    code: String,
    title: String,
    detail: Option<String>,
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
                (reachable(admin.unwrap_or(settings.ops_address())), admin.is_some());
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
            Some(address) => refresh_members(address).await,
            None => false,
        };
        if !is_refreshed {
            // Until the server has polled the ledger.
            sleep(VERSION_POLL_INTERVAL * 3).await;
        }
    }
}

/// Makes the server at `address` reload its members; returns whether it did.
async fn refresh_members(address: SocketAddr) -> bool {
    let reply = timeout(REFRESH_TIMEOUT, ask(reachable(address), Request::post("/members"))).await;
    matches!(reply, Ok(Ok((StatusCode::OK, _))))
}

/// Asks the server whose ops listener is `at` whether it is alive.
pub(super) async fn check_live(at: SocketAddr) -> Result<Exit, CommandError> {
    let at = reachable(at);
    match timeout(REFRESH_TIMEOUT, ask(at, Request::get("/healthz"))).await {
        Ok(Ok((StatusCode::OK, _))) => Ok(Exit::Done),
        _ => Err(format!("no live server at {at} (admin.listen)").into()),
    }
}

async fn ask(
    address: SocketAddr,
    request: request::Builder,
) -> Result<(StatusCode, Bytes), BoxError> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = request.header(HOST, address.to_string()).body(Empty::<Bytes>::new())?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_REPLY).collect().await?.to_bytes();
    connection.abort();
    Ok((head.status, body))
}

fn reachable(mut at: SocketAddr) -> SocketAddr {
    if at.ip().is_unspecified() {
        at.set_ip(match at.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    at
}

impl RunningServer {
    pub(super) async fn listing(&self) -> Result<ApiKeysResponse, String> {
        let reply = timeout(self.timeout, ask(self.address, Request::get("/billing"))).await;
        let (status, body) = reply
            .map_err(|_| self.unreachable("timed out"))?
            .map_err(|error| self.unreachable(&strip_controls(&error.to_string())))?;
        if status != StatusCode::OK {
            return Err(match serde_json::from_slice(&body) {
                Ok(ProblemBody { code, title, detail }) => {
                    let detail = strip_controls(&detail.unwrap_or(title));
                    format!("{} reported: {detail} ({})", self.describe(), strip_controls(&code))
                }
                Err(_) => self.unreachable(&format!("status {status}")),
            });
        }
        let BillingReport { process, keys, billing } = serde_json::from_slice(&body)
            .map_err(|_| self.unreachable("the reply is not a billing summary"))?;
        if self.process.is_some_and(|expected| expected != process) {
            return Err(self.unreachable(&format!("process {process} answers at this address")));
        }
        Ok(ApiKeysResponse { keys, billing })
    }

    pub(super) fn describe(&self) -> String {
        let process = self.process.map(|process| format!(" (process {process})"));
        format!("the running server{}", process.unwrap_or_default())
    }

    fn unreachable(&self, reason: &str) -> String {
        let (name, address) = (self.describe(), self.address);
        if !self.is_noted {
            return format!(
                "{name} has the ledger and its rate limit, but named no admin listener, and {address} \
                 (admin.listen) does not answer: {reason}; the gateway was not asked. If an \
                 application embeds tollgate, serve Tollgate::ops and name its address with \
                 Config::ops_at, or stop the application"
            );
        }
        format!(
            "{name} has the ledger and its rate limit, but its admin listener at {address} does not \
             answer: {reason}; the gateway was not asked. Run this where {address} can be reached, \
             or stop the server"
        )
    }
}
