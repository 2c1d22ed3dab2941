//! TLS for callers, whose certificates are replaced while connections are open.

mod certificate;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::{Ticketer, default_provider};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;
use tracing::{error, info, warn};

use certificate::Stamp;
pub use certificate::{Certificate, EXPIRES_SOON};

use crate::clock;
use crate::config::TlsFiles;
use crate::sync::lock;

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// An authority that checks that a name is served here (RFC 8737).
const ACME: &[u8] = b"acme-tls/1";

/// The TLS side of all listeners. Clones share the certificate and the keys of session tickets.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    shown: Arc<Shown>,
    /// The files as they were when they were last read, successfully or not.
    last_read: Arc<Mutex<Option<Stamp>>>,
}

/// The certificates that clients get.
#[derive(Debug, Default)]
struct Shown {
    /// `None` until an authority has issued the first one.
    certificate: ArcSwapOption<Certificate>,
    /// For the checks of an authority, by name.
    challenges: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

/// What a handshake agreed on.
#[derive(Debug)]
pub struct TlsSession {
    /// The name that the client asked for (SNI), in lower case.
    server_name: Option<String>,
    certificate: Arc<Certificate>,
    pub is_http2: bool,
}

impl Tls {
    /// Loads the certificate from an operator's files.
    ///
    /// # Errors
    /// If the files are unusable, or do not belong together.
    pub fn from_files(files: &TlsFiles) -> io::Result<Self> {
        let tls = Self::new(&[HTTP2, HTTP1])?;
        tls.show(Certificate::load(files).map_err(io::Error::other)?);
        Ok(tls)
    }

    /// Prepares for the certificates of an authority. Until there is one, handshakes fail.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn for_acme() -> io::Result<Self> {
        Self::new(&[HTTP2, HTTP1, ACME])
    }

    fn new(protocols: &[&[u8]]) -> io::Result<Self> {
        let shown = Arc::<Shown>::default();
        let resolver = Resolver(Arc::clone(&shown));
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.ticketer = Ticketer::new().map_err(io::Error::other)?;
        // All ciphers are strong. Scanners report servers that leave the choice to the client.
        config.ignore_client_order = true;
        // Early data can be replayed, and a replayed purchase would buy twice.
        config.max_early_data_size = 0;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor, shown, last_read: Arc::default() })
    }

    /// Returns the certificate, unless the first one is still to be issued.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.shown.certificate.load_full()
    }

    /// Replaces the certificate. Open connections keep theirs.
    pub fn show(&self, certificate: Certificate) {
        *lock(&self.last_read) = Some(certificate.stamp.clone());
        self.shown.certificate.store(Some(Arc::new(certificate)));
    }

    /// Shows the certificate of these files.
    ///
    /// # Errors
    /// If it is unusable; then the old one stays.
    pub fn reload(&self, files: &TlsFiles) -> Result<(), String> {
        let certificate = Certificate::load(files)?;
        if self.certificate().is_none_or(|old| certificate.stamp != old.stamp) {
            info!(certificate = certificate.summary(), "certificate reloaded");
        }
        self.show(certificate);
        Ok(())
    }

    /// Reloads the certificate if its files have changed, and logs the result.
    pub fn reload_if_changed(&self, hosts: &[String]) {
        let Some(certificate) = self.certificate() else { return };
        let files = certificate.files.clone();
        let stamp = Stamp::of(&files);
        // An unusable pair is read, and logged, once.
        if lock(&self.last_read).replace(stamp.clone()) == Some(stamp) {
            return;
        }
        match self.reload(&files) {
            Ok(()) => {
                let warnings = self.certificate().map(|it| it.warnings(hosts, clock::wall()));
                for warning in warnings.unwrap_or_default() {
                    warn!(warning, "risky setting");
                }
            }
            Err(reason) => error!(reason, "certificate rejected"),
        }
    }

    /// Shows this certificate to the authority that checks this name.
    pub fn offer_challenge(&self, name: String, certificate: CertifiedKey) {
        lock(&self.shown.challenges).insert(name, Arc::new(certificate));
    }

    pub fn withdraw_challenges(&self) {
        lock(&self.shown.challenges).clear();
    }

    /// Does the handshake. Returns `None` if it was an authority's check, which needs no more.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<Option<(TlsStream<TcpStream>, TlsSession)>> {
        let mut stream = self.acceptor.accept(stream).await?;
        let (_, connection) = stream.get_ref();
        let certificate = self.certificate();
        let Some(certificate) = certificate.filter(|_| connection.alpn_protocol() != Some(ACME))
        else {
            stream.shutdown().await?;
            return Ok(None);
        };
        let session = TlsSession {
            server_name: connection.server_name().map(str::to_ascii_lowercase),
            certificate,
            is_http2: connection.alpn_protocol() == Some(HTTP2),
        };
        Ok(Some((stream, session)))
    }
}

impl TlsSession {
    /// Returns whether a request for this host belongs on this connection.
    ///
    /// Over HTTP/2, browsers use a connection for every name of its certificate.
    pub fn serves(&self, host: &str) -> bool {
        let Some(server_name) = &self.server_name else { return true };
        host.eq_ignore_ascii_case(server_name) || self.certificate.covers(host)
    }
}

#[derive(Debug)]
struct Resolver(Arc<Shown>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_check = hello.alpn().is_some_and(|offered| offered.eq([ACME]));
        if is_check {
            let name = hello.server_name()?.to_ascii_lowercase();
            return lock(&self.0.challenges).get(&name).cloned();
        }
        self.0.certificate.load().as_ref().map(|certificate| Arc::clone(&certificate.key))
    }
}
