//! How a command finds the ledger, and how it asks the gateway: through the running server, or itself if there
//! is none. Either way each request takes a slot of the account's rate limit.

use std::io::{self, Write};
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
use tokio::time::timeout;

use super::CommandError;
use crate::billing::summary::BillingReport;
use crate::clock;
use crate::config::{self, Settings, StoreConfig as StoreSetting};
use crate::reports::text::strip_controls;
use crate::response::BoxError;
use crate::store::Store;
use crate::store::sqlite::{LockHolder, OpenError};
use crate::upstream::billing::ApiKeysResponse;

const MAX_REPLY: usize = 1 << 20;
/// What a server needs besides its own patience with the gateway.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(10);
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) enum GatewayAccess {
    /// The server that has the ledger.
    ViaServer(RunningServer),
    /// The command, with the ledger in its hands: no server begins meanwhile.
    Standalone(Store),
}

/// A running server, as its ledger's lock names it.
pub(super) struct RunningServer {
    process: Option<u32>,
    address: SocketAddr,
    timeout: Duration,
}

#[derive(Deserialize)]
struct ProblemBody {
    code: String,
    title: String,
    detail: Option<String>,
}

/// Says which file was written: a wrong working folder, or a variable that is missing, is seen by it.
pub(super) fn print_path(path: &Path, err: &mut impl Write) -> io::Result<()> {
    let whole = path.canonicalize();
    writeln!(err, "the ledger is {} (store.url)", whole.as_deref().unwrap_or(path).display())
}

/// The file, or a sentence on why there is none to look into.
pub(super) fn existing_path(config: &Settings) -> Result<&Path, String> {
    let path = match &config.store {
        StoreSetting::Sqlite(path) => path,
        StoreSetting::Memory => {
            return Err(
                "store.url is \"memory\": what was bought is known to the running server alone, and \
                 no ledger is on disk (in sandbox mode this is the default, as it is play money)"
                    .to_owned(),
            );
        }
    };
    match path.try_exists() {
        Ok(true) => Ok(path),
        Ok(false) => Err(format!(
            "there is no ledger at {} (store.url): the server makes it at its first start",
            path.display()
        )),
        Err(error) => Err(format!("the ledger at {} cannot be read: {error}", path.display())),
    }
}

pub(super) fn open_read_only(config: &Settings) -> Result<Store, CommandError> {
    Ok(Store::open_read_only(existing_path(config)?, Arc::new(clock::wall))?)
}

/// Who asks on behalf of the ledger at `path`; or a sentence on why nobody can.
pub(super) fn gateway_access(config: &Settings, path: &Path) -> Result<GatewayAccess, String> {
    match Store::open_exclusive(path, Arc::new(clock::wall)) {
        Ok(store) => Ok(GatewayAccess::Standalone(store)),
        Err(OpenError::Locked { pid, holder: LockHolder::Server(admin) }) => {
            let admin = reachable(admin.unwrap_or(config.ops.listen));
            let config::GatewayConfig { max_wait, connect_timeout, chat_timeout, .. } =
                config.gateway;
            let patience = max_wait + connect_timeout + chat_timeout + TIMEOUT_MARGIN;
            Ok(GatewayAccess::ViaServer(RunningServer {
                process: pid,
                address: admin,
                timeout: patience,
            }))
        }
        Err(error @ (OpenError::Locked { .. } | OpenError::Unusable(_))) => Err(error.to_string()),
    }
}

/// Has the server at `admin` read the list of members now; whether it did.
pub(super) async fn refresh_members(admin: SocketAddr) -> bool {
    let asked = timeout(REFRESH_TIMEOUT, ask(reachable(admin), Request::post("/members"))).await;
    matches!(asked, Ok(Ok((StatusCode::OK, _))))
}

async fn ask(
    admin: SocketAddr,
    request: request::Builder,
) -> Result<(StatusCode, Bytes), BoxError> {
    let stream = TcpStream::connect(admin).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = request.header(HOST, admin.to_string()).body(Empty::<Bytes>::new())?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_REPLY).collect().await?.to_bytes();
    connection.abort();
    Ok((head.status, body))
}

/// Who listens everywhere is reached over loopback.
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
        let answer = timeout(self.timeout, ask(self.address, Request::get("/billing"))).await;
        let (status, body) = match answer {
            Ok(answer) => {
                answer.map_err(|error| self.unreachable(&strip_controls(&error.to_string())))
            }
            Err(_late) => Err(self.unreachable("it took too long")),
        }?;
        if status != StatusCode::OK {
            return Err(match serde_json::from_slice(&body) {
                Ok(ProblemBody { code, title, detail }) => {
                    let why = strip_controls(&detail.unwrap_or(title));
                    format!("{} was told: {why} ({})", self.describe(), strip_controls(&code))
                }
                Err(_) => self.unreachable(&format!("it says {status}")),
            });
        }
        let told = serde_json::from_slice(&body);
        let BillingReport { process, keys, billing } =
            told.map_err(|_| self.unreachable("what it says is no billing summary"))?;
        if self.process.is_some_and(|expected| expected != process) {
            return Err(self.unreachable(&format!("process {process} answers there")));
        }
        Ok(ApiKeysResponse { keys, billing })
    }

    pub(super) fn describe(&self) -> String {
        let process = self.process.map(|process| format!(" (process {process})"));
        format!("the running server{}", process.unwrap_or_default())
    }

    fn unreachable(&self, why: &str) -> String {
        let (name, admin) = (self.describe(), self.address);
        format!(
            "{name} has the ledger and alone knows what may be sent to the gateway, and its admin \
             listener at {admin} does not answer: {why}; nothing was asked. Run this where {admin} \
             can be reached, or stop the server"
        )
    }
}
