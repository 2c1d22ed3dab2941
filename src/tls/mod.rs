//! TLS for callers: certificates that are replaced while connections are open.

mod certificate;

use std::io;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
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

/// The TLS side of all listeners. Clones share the certificate and the keys of session tickets.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    certificate: Arc<ArcSwap<Certificate>>,
    /// The files as they were when they were last read, successfully or not.
    last_read: Arc<Mutex<Stamp>>,
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
    /// Loads the certificate.
    ///
    /// # Errors
    /// If the files are unusable, or do not belong together.
    pub fn new(files: &TlsFiles) -> io::Result<Self> {
        let certificate = Certificate::load(files).map_err(io::Error::other)?;
        let last_read = Arc::new(Mutex::new(certificate.stamp.clone()));
        let certificate = Arc::new(ArcSwap::from_pointee(certificate));
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(Arc::clone(&certificate))));
        config.alpn_protocols = [HTTP2, HTTP1].map(<[u8]>::to_vec).into();
        config.ticketer = Ticketer::new().map_err(io::Error::other)?;
        // All ciphers are strong. Scanners report servers that leave the choice to the client.
        config.ignore_client_order = true;
        // Early data can be replayed, and a replayed purchase would buy twice.
        config.max_early_data_size = 0;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate, last_read })
    }

    pub fn certificate(&self) -> Arc<Certificate> {
        self.certificate.load_full()
    }

    /// Replaces the certificate. Open connections keep theirs.
    ///
    /// # Errors
    /// If the new one is unusable; then the old one stays.
    pub fn reload(&self, files: &TlsFiles) -> Result<(), String> {
        let certificate = Certificate::load(files)?;
        *lock(&self.last_read) = certificate.stamp.clone();
        if certificate.stamp != self.certificate().stamp {
            info!(certificate = certificate.summary(), "certificate reloaded");
        }
        self.certificate.store(Arc::new(certificate));
        Ok(())
    }

    /// Reloads the certificate if its files have changed, and logs the result.
    pub fn reload_if_changed(&self, hosts: &[String]) {
        let files = self.certificate().files.clone();
        let stamp = Stamp::of(&files);
        // An unusable pair is read, and logged, once.
        if std::mem::replace(&mut *lock(&self.last_read), stamp.clone()) == stamp {
            return;
        }
        match self.reload(&files) {
            Ok(()) => {
                for warning in self.certificate().warnings(hosts, clock::wall()) {
                    warn!(warning, "risky setting");
                }
            }
            Err(reason) => error!(reason, "certificate rejected"),
        }
    }

    /// Does the handshake.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, TlsSession)> {
        let stream = self.acceptor.accept(stream).await?;
        let (_, connection) = stream.get_ref();
        let session = TlsSession {
            server_name: connection.server_name().map(str::to_ascii_lowercase),
            certificate: self.certificate(),
            is_http2: connection.alpn_protocol() == Some(HTTP2),
        };
        Ok((stream, session))
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
struct Resolver(Arc<ArcSwap<Certificate>>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().key))
    }
}
