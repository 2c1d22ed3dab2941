//! Certificates for gates that speak TLS.

use std::fs;
use std::path::Path;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};

/// The setting `server.tls` of a gate in whose folder [`write`] was called.
pub(crate) const SETTING: &str = r#"{ cert = "cert.pem", key = "key.pem" }"#;

/// Writes a new pair for these names, and returns the certificate in DER.
pub(crate) fn write(folder: &Path, names: &[&str]) -> Vec<u8> {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
    let key: &KeyPair = &signing_key;
    // A watcher must not see half a file.
    for (name, text) in [("key.pem", key.serialize_pem()), ("cert.pem", cert.pem())] {
        let new = folder.join(format!("{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, folder.join(name)).unwrap();
    }
    cert.der().to_vec()
}
