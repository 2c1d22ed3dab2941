//! Opens connections: TCP, and TLS with the system's trust anchors; and asks over them without our key,
//! where no gateway is asked.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::Url;

use super::Error;
use super::connection::{Connection, Failed};

/// Where the gateway is.
#[derive(Clone)]
pub(super) struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    patience: Duration,
}

impl Connector {
    /// Checks what can be checked before the first connection: the host's name, the trust anchors.
    pub(super) fn new(base: &Url, patience: Duration) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let host = base.host_str().ok_or_else(|| invalid("gateway.base_url has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port =
            base.port_or_known_default().ok_or_else(|| invalid("gateway.base_url has no port"))?;
        let tls = match base.scheme() {
            "https" => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| invalid("the host of gateway.base_url is no TLS server name"))?;
                Some((TlsConnector::from(client_config()?), name))
            }
            _ => None,
        };
        Ok(Self { host, port, tls, patience })
    }

    /// A fresh connection, its task running on this runtime. Any failure here is before the first
    /// byte of a request.
    pub(super) async fn connect(&self) -> Result<Connection, Error> {
        let opened = timeout(self.patience, self.open()).await;
        opened
            .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
            .map_err(Error::Unreachable)
    }

    /// [`Connector::connect`] without its deadline.
    pub(super) async fn open(&self) -> io::Result<Connection> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        tcp.set_nodelay(true)?;
        match &self.tls {
            None => Connection::over(tcp).await,
            Some((tls, name)) => Connection::over(tls.connect(name.clone(), tcp).await?).await,
        }
    }
}

/// The headers of every request of ours to a server.
pub(super) fn head(server: &Url) -> io::Result<HeaderMap> {
    let host = &server[url::Position::BeforeHost..url::Position::AfterPort];
    let agent = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
    Ok(HeaderMap::from_iter([
        (HOST, HeaderValue::from_str(host).map_err(io::Error::other)?),
        (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
        (USER_AGENT, HeaderValue::from_static(agent)),
    ]))
}

/// Asks for a public address over a connection to its server: without our key, and without following
/// anything. The body of the reply streams.
pub(super) async fn fetch(
    connection: &mut Connection,
    address: &Url,
    method: Method,
    more: HeaderMap,
) -> Result<Response<Incoming>, Failed> {
    let target = &address[url::Position::BeforePath..url::Position::AfterQuery];
    let (Ok(target), Ok(mut head)) = (target.parse(), head(address)) else {
        return Err(Failed::Unsent(None));
    };
    head.extend(more);
    let mut request = Request::new(Full::<Bytes>::default());
    *request.method_mut() = method;
    *request.uri_mut() = target;
    *request.headers_mut() = head;
    connection.send(request).await
}

/// One for the process: trust anchors are parsed once, and TLS sessions are resumed, so that a further
/// connection is cheap.
static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();

fn client_config() -> io::Result<Arc<ClientConfig>> {
    match CONFIG.get() {
        Some(config) => Ok(Arc::clone(config)),
        None => {
            let made = Arc::new(make_client_config()?);
            Ok(Arc::clone(CONFIG.get_or_init(|| made)))
        }
    }
}

fn make_client_config() -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let (added, _ignored) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "no trust anchors for TLS on this system: install the package ca-certificates, or name \
             a file of them in SSL_CERT_FILE",
        ));
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
