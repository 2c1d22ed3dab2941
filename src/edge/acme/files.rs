//! The files of an ACME account: its key, the order under way, the certificate.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use instant_acme::AccountCredentials;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use url::Url;
use zeroize::Zeroizing;

use super::schedule::MAX_ORDERS;
use crate::config::TlsFiles;

/// A pending order.
#[derive(Deserialize, Serialize)]
pub(super) struct PendingOrder {
    pub(super) url: String,
    pub(super) names: Vec<String>,
    /// The key of the certificate, in PEM.
    pub(super) key: Zeroizing<String>,
}

/// A registered account.
#[derive(Deserialize, Serialize)]
struct KeptAccount {
    directory: String,
    credentials: AccountCredentials,
}

pub(super) struct AcmeFiles {
    folder: PathBuf,
}

impl AcmeFiles {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(super) fn certificate_files(&self) -> TlsFiles {
        // One file, so that a crash leaves no key without its certificate.
        let file = self.folder.join("certificate.pem");
        TlsFiles { cert: file.clone(), key: file }
    }

    /// Creates the folder with access for its owner only.
    pub(super) fn create_folder(&self) -> io::Result<()> {
        let private = || fs::set_permissions(&self.folder, Permissions::from_mode(0o700));
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        created.and_then(|()| private()).map_err(|error| self.describe("", &error))
    }

    /// Returns the account at this ACME directory, if there is one.
    pub(super) fn account(&self, directory: &Url) -> io::Result<Option<AccountCredentials>> {
        let kept: Option<KeptAccount> = self.read("account.json")?;
        Ok(kept.filter(|kept| kept.directory == directory.as_str()).map(|kept| kept.credentials))
    }

    pub(super) fn keep_account(
        &self,
        directory: &Url,
        credentials: AccountCredentials,
    ) -> io::Result<()> {
        // Its order belongs to the former account.
        self.forget_order()?;
        let directory = directory.to_string();
        self.write_json("account.json", &KeptAccount { directory, credentials })
    }

    pub(super) fn forget_account(&self) -> io::Result<()> {
        self.remove("account.json")
    }

    pub(super) fn order(&self) -> io::Result<Option<PendingOrder>> {
        self.read("order.json")
    }

    pub(super) fn keep_order(&self, order: &PendingOrder) -> io::Result<()> {
        self.write_json("order.json", order)
    }

    pub(super) fn forget_order(&self) -> io::Result<()> {
        self.remove("order.json")
    }

    /// Writes the certificate, and removes its order.
    pub(super) fn keep_certificate(&self, key: &str, chain: &str) -> io::Result<()> {
        let text = Zeroizing::new(format!("{}\n{chain}", key.trim_end()));
        self.write("certificate.pem", text.as_bytes())?;
        self.forget_order()
    }

    /// Returns the times of the latest orders.
    pub(super) fn placed_orders(&self) -> Vec<Duration> {
        let seconds: Option<Vec<u64>> = self.read("orders.json").ok().flatten();
        seconds.unwrap_or_default().into_iter().map(Duration::from_secs).collect()
    }

    /// Records an order before it is placed.
    pub(super) fn record_order(&self, now: Duration) -> io::Result<()> {
        let mut placed = self.placed_orders();
        placed.push(now);
        let first = placed.len().saturating_sub(MAX_ORDERS);
        let seconds: Vec<_> = placed[first..].iter().map(Duration::as_secs).collect();
        self.write_json("orders.json", &seconds)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let text = match fs::read(self.folder.join(name)).map(Zeroizing::new) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| self.describe(name, &error))?,
        };
        // The error of the parser would quote a key.
        let invalid = |_| io::Error::new(ErrorKind::InvalidData, "the file is damaged; remove it");
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| self.describe(name, &invalid(error)))
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(value).map(Zeroizing::new)?;
        self.write(name, &text)
    }

    /// Replaces a file atomically.
    fn write(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let temporary = self.folder.join(format!(".{name}.new"));
        let write = || {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&temporary, self.folder.join(name))?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error| self.describe(name, &error))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.describe(name, &error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn describe(&self, name: &str, error: &io::Error) -> io::Error {
        let path = self.folder.join(name);
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    }
}
