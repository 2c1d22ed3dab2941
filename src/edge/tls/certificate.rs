//! A certificate chain and its key, read from files and checked.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, Error, KeyUsage};
use zeroize::Zeroizing;

use crate::clock::Date;
use crate::config::TlsFiles;
use crate::trust::read_pem;

const DAY: Duration = Duration::from_secs(86_400);
/// A certificate that ends sooner is warned of.
pub const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);
/// Later than any certificate ends: the year 10000.
const END_OF_TIME: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(253_402_300_800));

#[derive(Debug)]
pub struct Certificate {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) files: TlsFiles,
    pub(super) stamp: Stamp,
    /// The DNS names, which may begin with `*.`.
    names: Vec<String>,
    /// The first and the last moment of its life, since the Unix epoch.
    life: (Duration, Duration),
}

/// The versions of both files: inode, size and time of change. `None` if a file is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp([Option<(u64, u64, i64, i64)>; 2]);

impl Stamp {
    pub(super) fn of(files: &TlsFiles) -> Self {
        Self([&files.cert, &files.key].map(|path| {
            let about = fs::metadata(path).ok()?;
            Some((about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
        }))
    }
}

impl Certificate {
    /// Reads both files.
    ///
    /// # Errors
    /// The text says what was expected, and never holds a part of the key.
    pub fn load(files: &TlsFiles) -> Result<Self, String> {
        // Before the files are read, so that a later change is noticed.
        let stamp = Stamp::of(files);
        let pem = read("cert", &files.cert)?;
        let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain =
            chain.ok_or_else(|| expected("cert", "hold certificates in PEM", &files.cert))?;
        let pem = read("key", &files.key)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).ok();
        let key = key.and_then(|key| any_supported_type(&key).ok());
        let key = key.ok_or_else(|| {
            let kinds =
                "hold an RSA (2048 to 4096 bits), P-256, P-384 or Ed25519 key in PEM, not encrypted";
            expected("key", kinds, &files.key)
        })?;
        let unusable = || expected("cert", "begin with an X.509 v3 certificate", &files.cert);
        let (names, life) = facts(&chain[0]).ok_or_else(unusable)?;
        let key = CertifiedKey::new(chain, key);
        if key.keys_match().is_err() {
            return Err(expected(
                "key",
                "hold the key of the first certificate in `cert`",
                &files.key,
            ));
        }
        Ok(Self { key: Arc::new(key), files: files.clone(), stamp, names, life })
    }

    /// Returns whether a browser accepts the certificate for this name or address.
    pub fn covers(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else { return false };
        let Ok(leaf) = EndEntityCert::try_from(&self.key.cert[0]) else { return false };
        leaf.verify_is_valid_for_subject_name(&name).is_ok()
    }

    /// Returns the time of its start, since the Unix epoch.
    pub fn starts(&self) -> Duration {
        self.life.0
    }

    /// Returns the time of its end, since the Unix epoch.
    pub fn expires(&self) -> Duration {
        self.life.1
    }

    /// Returns the first certificate of the chain.
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.key.cert[0]
    }

    /// Describes it in one line.
    pub fn summary(&self) -> String {
        let Date { year, month, day } = Date::at(self.expires());
        let names = if self.names.is_empty() { "no names".into() } else { self.names.join(", ") };
        format!("{names}; until {year:04}-{month:02}-{day:02}")
    }

    /// Returns what an operator should change. `now` is the time since the Unix epoch.
    pub fn warnings(&self, hosts: &[String], now: Duration) -> Vec<String> {
        let uncovered = hosts.iter().filter(|host| !self.covers(host)).map(|host| {
            format!("server.tls.cert: does not cover {host}, which is in server.hosts")
        });
        let left = self.expires().saturating_sub(now);
        let end = match left.as_secs() / DAY.as_secs() {
            _ if left.is_zero() => Some("it has expired".to_owned()),
            _ if left >= EXPIRES_SOON => None,
            0 => Some("it expires within a day".to_owned()),
            days => Some(format!("it expires in {days} days")),
        };
        let end = end.map(|end| format!("server.tls.cert: {end}; renew it"));
        uncovered.chain(end).collect()
    }
}

fn read(name: &str, path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let text = |error| expected(name, &format!("name a readable file ({error})"), path);
    read_pem(path).map_err(text)
}

fn expected(name: &str, what: &str, path: &Path) -> String {
    format!("`{name}` to {what}: {}", path.display())
}

/// Returns the DNS names, and the start and the end of a certificate.
fn facts(leaf: &CertificateDer<'_>) -> Option<(Vec<String>, (Duration, Duration))> {
    let leaf = EndEntityCert::try_from(leaf).ok()?;
    let names = leaf.valid_dns_names().map(str::to_owned).collect();
    // webpki shows both in one place only: its errors when a certificate is not valid yet, or no more.
    let verify =
        |at| leaf.verify_for_usage(&[], &[], &[], at, KeyUsage::server_auth(), None, None).err();
    let epoch = UnixTime::since_unix_epoch(Duration::ZERO);
    let starts = match verify(epoch) {
        Some(Error::CertNotValidYet { not_before, .. }) => not_before,
        Some(_) | None => epoch,
    };
    let Error::CertExpired { not_after, .. } = verify(END_OF_TIME)? else { return None };
    let since_epoch = |time: UnixTime| Duration::from_secs(time.as_secs());
    Some((names, (since_epoch(starts), since_epoch(not_after))))
}
