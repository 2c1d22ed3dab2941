//! Certificates for gates that speak TLS.

use std::fs;
use std::path::Path;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};

/// The setting `server.tls` of a gate in whose folder a [`Pair`] was written.
pub(crate) const SETTING: &str = r#"{ cert = "cert.pem", key = "key.pem" }"#;

/// A certificate and its key.
pub(crate) struct Pair(CertifiedKey<KeyPair>);

impl Pair {
    pub(crate) fn new(names: &[&str]) -> Self {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Self(generate_simple_self_signed(names).unwrap())
    }

    /// Returns the certificate in DER.
    pub(crate) fn der(&self) -> Vec<u8> {
        self.0.cert.der().to_vec()
    }

    pub(crate) fn write(&self, folder: &Path) {
        let Self(CertifiedKey { cert, signing_key }) = self;
        // A server must not see half a file.
        for (name, text) in [("key.pem", signing_key.serialize_pem()), ("cert.pem", cert.pem())] {
            let new = folder.join(format!("{name}.new"));
            fs::write(&new, text).unwrap();
            fs::rename(new, folder.join(name)).unwrap();
        }
    }
}

/// Writes a new pair for these names, and returns the certificate in DER.
pub(crate) fn write(folder: &Path, names: &[&str]) -> Vec<u8> {
    let pair = Pair::new(names);
    pair.write(folder);
    pair.der()
}
