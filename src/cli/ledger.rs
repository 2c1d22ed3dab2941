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

use super::Failure;
use crate::answer::BoxError;
use crate::billing::summary::Statement;
use crate::clock;
use crate::config::{self, Config, Store as StoreSetting};
use crate::reports::text::plain;
use crate::store::Store;
use crate::store::sqlite::{Holder, OpenError};
use crate::upstream::billing::Listing;

const MAX_ANSWER: usize = 1 << 20;
/// What a server needs besides its own patience with the gateway.
const SPARE: Duration = Duration::from_secs(10);
const MEMBERS_PATIENCE: Duration = Duration::from_secs(2);

pub(super) enum Way {
    /// The server that has the ledger.
    Through(Beside),
    /// The command, with the ledger in its hands: no server begins meanwhile.
    Alone(Store),
}

/// A running server, as its ledger's lock names it.
pub(super) struct Beside {
    process: Option<u32>,
    admin: SocketAddr,
    patience: Duration,
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
    title: String,
    detail: Option<String>,
}

/// Says which file was written: a wrong working folder, or a variable that is missing, is seen by it.
pub(super) fn name(path: &Path, err: &mut impl Write) -> io::Result<()> {
    let whole = path.canonicalize();
    writeln!(err, "the ledger is {} (store.url)", whole.as_deref().unwrap_or(path).display())
}

/// The file, or a sentence on why there is none to look into.
pub(super) fn file(config: &Config) -> Result<&Path, String> {
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

pub(super) fn read(config: &Config) -> Result<Store, Failure> {
    Ok(Store::open_read_only(file(config)?, Arc::new(clock::wall))?)
}

/// Who asks on behalf of the ledger at `path`; or a sentence on why nobody can.
pub(super) fn way(config: &Config, path: &Path) -> Result<Way, String> {
    match Store::open_exclusive(path, Arc::new(clock::wall)) {
        Ok(store) => Ok(Way::Alone(store)),
        Err(OpenError::Locked { pid, holder: Holder::Server(admin) }) => {
            let admin = reachable(admin.unwrap_or(config.admin.listen));
            let config::Gateway { max_wait, connect_timeout, chat_timeout, .. } = config.gateway;
            let patience = max_wait + connect_timeout + chat_timeout + SPARE;
            Ok(Way::Through(Beside { process: pid, admin, patience }))
        }
        Err(error @ (OpenError::Locked { .. } | OpenError::Unusable(_))) => Err(error.to_string()),
    }
}

/// Has the server at `admin` read the list of members now; whether it did.
pub(super) async fn refresh_members(admin: SocketAddr) -> bool {
    let asked = timeout(MEMBERS_PATIENCE, ask(reachable(admin), Request::post("/members"))).await;
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
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
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

impl Beside {
    pub(super) async fn listing(&self) -> Result<Listing, String> {
        let answer = timeout(self.patience, ask(self.admin, Request::get("/billing"))).await;
        let (status, body) = match answer {
            Ok(answer) => answer.map_err(|error| self.does_not_answer(&plain(&error.to_string()))),
            Err(_late) => Err(self.does_not_answer("it took too long")),
        }?;
        if status != StatusCode::OK {
            return Err(match serde_json::from_slice(&body) {
                Ok(Refusal { code, title, detail }) => {
                    let why = plain(&detail.unwrap_or(title));
                    format!("{} was told: {why} ({})", self.name(), plain(&code))
                }
                Err(_) => self.does_not_answer(&format!("it says {status}")),
            });
        }
        let told = serde_json::from_slice(&body);
        let Statement { process, keys, billing } =
            told.map_err(|_| self.does_not_answer("what it says is no billing summary"))?;
        if self.process.is_some_and(|expected| expected != process) {
            return Err(self.does_not_answer(&format!("process {process} answers there")));
        }
        Ok(Listing { keys, billing })
    }

    pub(super) fn name(&self) -> String {
        let process = self.process.map(|process| format!(" (process {process})"));
        format!("the running server{}", process.unwrap_or_default())
    }

    fn does_not_answer(&self, why: &str) -> String {
        let (name, admin) = (self.name(), self.admin);
        format!(
            "{name} has the ledger and alone knows what may be sent to the gateway, and its admin \
             listener at {admin} does not answer: {why}; nothing was asked. Run this where {admin} \
             can be reached, or stop the server"
        )
    }
}
