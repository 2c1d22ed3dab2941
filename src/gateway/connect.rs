//! Opens TCP and TLS connections.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::Full;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::either::Either;
use url::Url;

use super::Error;
use super::connection::Connection;
use crate::trust::{explained, tls_config, trust_anchors};

#[derive(Clone)]
pub(super) struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    connect_timeout: Duration,
}

impl Connector {
    pub(super) fn new(base: &Url, connect_timeout: Duration) -> io::Result<Self> {
        Self::with_tls(base, connect_timeout, None)
    }

    /// Trusts other certificates than those of the system, if `config` says so.
    pub(super) fn with_tls(
        base: &Url,
        connect_timeout: Duration,
        config: Option<Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let host = base.host_str().ok_or_else(|| invalid("gateway.base_url has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port =
            base.port_or_known_default().ok_or_else(|| invalid("gateway.base_url has no port"))?;
        let tls = match base.scheme() {
            "https" => {
                let name = ServerName::try_from(host.clone()).map_err(|_| {
                    invalid("the host of gateway.base_url is not a valid TLS server name")
                })?;
                Some((TlsConnector::from(config.map_or_else(client_config, Ok)?), name))
            }
            _ => None,
        };
        Ok(Self { host, port, tls, connect_timeout })
    }

    pub(super) async fn connect(&self) -> Result<Connection, Error> {
        let opened = timeout(self.connect_timeout, self.open()).await;
        opened
            .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
            .map_err(Error::Unreachable)
    }

    pub(super) async fn open(&self) -> io::Result<Connection> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        tcp.set_nodelay(true)?;
        let stream = match &self.tls {
            None => Either::Left(tcp),
            Some((tls, name)) => {
                Either::Right(tls.connect(name.clone(), tcp).await.map_err(explained)?)
            }
        };
        Connection::handshake(stream).await
    }
}

pub(super) fn base_headers(server: &Url) -> io::Result<HeaderMap> {
    let host = &server[url::Position::BeforeHost..url::Position::AfterPort];
    let agent = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
    Ok(HeaderMap::from_iter([
        (HOST, HeaderValue::from_str(host).map_err(io::Error::other)?),
        (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
        (USER_AGENT, HeaderValue::from_static(agent)),
    ]))
}

pub(super) fn build_request(
    method: Method,
    target: Uri,
    head: HeaderMap,
    body: Bytes,
) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = target;
    *request.headers_mut() = head;
    request
}

/// Shared by the process, so that trust anchors are parsed once and TLS sessions are resumed.
static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();

fn client_config() -> io::Result<Arc<ClientConfig>> {
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let config = Arc::new(tls_config(trust_anchors(None)?)?);
    Ok(Arc::clone(CONFIG.get_or_init(|| config)))
}
