//! Asks the ops listener of a running server, as commands do.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;

use crate::account::summary::BillingReport;
use crate::api::reports::text::strip_controls;
use crate::gateway::billing::ApiKeysResponse;
use crate::gateway::fetch::exchange;

const MAX_REPLY: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(2);

/// A server that has the ledger of a command.
pub struct RunningServer {
    pub process: Option<u32>,
    pub address: SocketAddr,
    /// The lock file names the address. Otherwise, it is that of `admin.listen`.
    pub is_noted: bool,
    pub timeout: Duration,
}

#[derive(Deserialize)]
struct ProblemBody {
    code: String,
    title: String,
    detail: Option<String>,
}

/// Makes the server whose ops listener is `at` reload its members. Returns whether it did.
pub async fn refresh_members(at: SocketAddr) -> bool {
    let reply = ask(reachable(at), (Method::POST, "/members"), TIMEOUT).await;
    matches!(reply, Ok((StatusCode::OK, _)))
}

/// Returns whether a server is alive whose ops listener is `at`.
pub async fn is_alive(at: SocketAddr) -> bool {
    let reply = ask(reachable(at), (Method::GET, "/healthz"), TIMEOUT).await;
    matches!(reply, Ok((StatusCode::OK, _)))
}

async fn ask(
    address: SocketAddr,
    (method, path): (Method, &str),
    max_time: Duration,
) -> io::Result<(StatusCode, Bytes)> {
    let address = format!("http://{address}{path}").parse().map_err(io::Error::other)?;
    let (request, limits) = ((method, Bytes::new()), (MAX_REPLY, max_time));
    let (head, body) = exchange(&address, request, HeaderMap::new(), limits, None).await?;
    Ok((head.status, body))
}

/// Returns where this machine reaches a listener.
pub fn reachable(mut at: SocketAddr) -> SocketAddr {
    if at.ip().is_unspecified() {
        at.set_ip(match at.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    at
}

impl RunningServer {
    pub async fn listing(&self) -> Result<ApiKeysResponse, String> {
        let reply = ask(self.address, (Method::GET, "/billing"), self.timeout).await;
        let (status, body) =
            reply.map_err(|error| self.unreachable(&strip_controls(&error.to_string())))?;
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

    pub fn describe(&self) -> String {
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
