//! Which servers are trusted, and why a server is not.

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use zeroize::Zeroizing;

/// Returns settings of TLS that always verify the server.
pub(crate) fn tls_config(anchors: RootCertStore) -> io::Result<ClientConfig> {
    let provider = Arc::new(default_provider());
    let anchors = Arc::new(anchors);
    let inner =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&anchors), Arc::clone(&provider));
    let verifier = Verifier { anchors, inner: inner.build().map_err(io::Error::other)? };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(config.with_no_client_auth())
}

/// Returns the certificates of a PEM file; without one, those of the system.
pub(crate) fn trust_anchors(file: Option<&Path>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let missing = if let Some(file) = file {
        for certificate in CertificateDer::pem_slice_iter(&read_pem(file)?) {
            let certificate = certificate.map_err(io::Error::other)?;
            roots.add(certificate).map_err(|error| explained(io::Error::other(error)))?;
        }
        "it has no certificate"
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        "no trust anchors for TLS on this system: install the package ca-certificates, or set \
         SSL_CERT_FILE"
    };
    if roots.is_empty() { Err(io::Error::new(io::ErrorKind::NotFound, missing)) } else { Ok(roots) }
}

/// Reads a file without its byte order mark, whose line the parser would skip: the first of a certificate.
pub(crate) fn read_pem(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    let mut file = Zeroizing::new(fs::read(path)?);
    if file.starts_with(MARK) {
        file.drain(..MARK.len());
    }
    Ok(file)
}

/// Verifies as webpki does, and also accepts a server that shows a trust anchor: an operator has pinned it.
/// webpki refuses it if it is the certificate of an authority, which self-signed ones often are.
#[derive(Debug)]
struct Verifier {
    anchors: Arc<RootCertStore>,
    inner: Arc<WebPkiServerVerifier>,
}

impl Verifier {
    fn is_pinned(&self, certificate: &CertificateDer<'_>) -> bool {
        let anchor = webpki::anchor_from_trusted_cert(certificate);
        anchor.is_ok_and(|anchor| self.anchors.roots.contains(&anchor))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(shown, chain, name, ocsp, now);
        // webpki has checked the dates before it looks whose certificate it is.
        if verified.as_ref().is_err_and(is_of_authority) && self.is_pinned(shown) {
            verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, shown, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn is_of_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(error))) = error else {
        return false;
    };
    matches!(error.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Replaces an error that says in the library's terms why a certificate is refused.
pub(crate) fn explained(error: io::Error) -> io::Error {
    explain(&error).map_or(error, |text| io::Error::new(io::ErrorKind::InvalidData, text))
}

/// Returns why a certificate is refused, however the library's error is wrapped; `None` for other errors.
pub(crate) fn explain(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    loop {
        let error = next?;
        // The source of this error is that of the one in it.
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(error) = within.map_or(error, |error| error).downcast_ref() {
            return reason(error);
        }
        next = error.source();
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library may add variants")]
fn reason(error: &Error) -> Option<&'static str> {
    use CertificateError::{
        BadEncoding, BadSignature, Expired, ExpiredContext, NotValidForName,
        NotValidForNameContext, NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    if is_of_authority(error) {
        return Some("the server shows the certificate of an authority, which is no trust anchor");
    }
    let Error::InvalidCertificate(error) = error else { return None };
    Some(match error {
        UnknownIssuer | BadSignature => "the certificate's issuer is no trust anchor",
        NotValidForName | NotValidForNameContext { .. } => {
            "the server's certificate is for another name"
        }
        Expired | ExpiredContext { .. } => "the server's certificate has expired",
        NotValidYet | NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; compare the clocks"
        }
        BadEncoding => "the certificate is malformed",
        _ => "the server's certificate cannot be used for TLS servers",
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
    use tokio::io::duplex;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    struct SelfSigned {
        pem: String,
        server: TlsAcceptor,
    }

    /// A certificate as `openssl req -x509` makes it, which is that of an authority, too.
    fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> SelfSigned {
        let mut parameters = CertificateParams::new(["db.example".to_owned()]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut parameters);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        SelfSigned { pem: certificate.pem(), server: TlsAcceptor::from(Arc::new(config)) }
    }

    async fn connect(server: &SelfSigned, trusted: &str, name: &'static str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        fs::write(&file, format!("\u{feff}{trusted}")).unwrap();
        let client = tls_config(trust_anchors(Some(&file)).unwrap()).unwrap();
        let client = TlsConnector::from(Arc::new(client));
        let (ours, theirs) = duplex(1 << 16);
        let accepting = server.server.accept(theirs);
        let opening = client.connect(ServerName::try_from(name).unwrap(), ours);
        let (opened, _) = tokio::join!(opening, accepting);
        opened.map(drop).map_err(|error| explained(error).to_string())
    }

    #[tokio::test]
    async fn pinned_certificate_is_accepted_for_its_name_and_time() {
        let (server, other) = (self_signed(|_| ()), self_signed(|_| ()));
        assert_eq!(connect(&server, &server.pem, "db.example").await, Ok(()));
        let both = format!("{}{}", other.pem, server.pem);
        assert_eq!(connect(&server, &both, "db.example").await, Ok(()));
        let plain = self_signed(|parameters| parameters.is_ca = IsCa::NoCa);
        assert_eq!(connect(&plain, &plain.pem, "db.example").await, Ok(()));
        let old = self_signed(|parameters| parameters.not_after = date_time_ymd(2020, 1, 1));
        let early = self_signed(|parameters| parameters.not_before = date_time_ymd(2200, 1, 1));
        for (server, trusted, name, reason) in [
            (&server, &server.pem, "a.example", "the server's certificate is for another name"),
            (&plain, &plain.pem, "a.example", "the server's certificate is for another name"),
            (&plain, &server.pem, "db.example", "the certificate's issuer is no trust anchor"),
            (&old, &old.pem, "db.example", "the server's certificate has expired"),
            (
                &early,
                &early.pem,
                "db.example",
                "the server's certificate is not valid yet; compare the clocks",
            ),
            (
                &server,
                &other.pem,
                "db.example",
                "the server shows the certificate of an authority, which is no trust anchor",
            ),
        ] {
            assert_eq!(connect(server, trusted, name).await, Err(reason.to_owned()));
        }
    }

    #[test]
    fn file_that_is_no_certificate_is_refused_with_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        for (text, reason) in [
            ("", "it has no certificate"),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "the certificate is malformed",
            ),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(trust_anchors(Some(&file)).unwrap_err().to_string(), reason);
        }
    }
}
