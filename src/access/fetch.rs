//! Where a login service's keys come from: an address, or a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::spawn_blocking;
use url::Url;

use super::key_set::{LARGEST, Unreadable};
use crate::upstream::document::{self, Document, Unfetched};

/// How long an address may take in all.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
/// How often an address is asked that does not say how long its answer holds.
const USUAL: Duration = Duration::from_secs(600);
/// The shortest and the longest that an address may ask for.
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(900);
/// How often a file is read.
const FILE: Duration = Duration::from_secs(10);

/// Why there are no new keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The address gave nothing.
    #[error(transparent)]
    Unfetched(#[from] Unfetched),
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] io::Error),
    /// What came is no set of keys.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// A document, and when to ask again.
pub(super) struct Fetched {
    pub(super) body: Bytes,
    pub(super) again: Duration,
}

/// What it gives, in a while.
pub(super) type Fetching = Pin<Box<dyn Future<Output = Result<Fetched, Fault>> + Send>>;

/// Where keys come from.
pub(super) trait Source: Send + Sync + 'static {
    /// Asks for the document as it is now.
    fn fetch(&self) -> Fetching;
}

/// An address of https, or of loopback.
pub(super) struct Address(pub(super) Url);

impl Source for Address {
    fn fetch(&self) -> Fetching {
        let address = self.0.clone();
        Box::pin(async move {
            let Document { body, fresh_for } = document::fetch(&address, LARGEST, DEADLINE).await?;
            Ok(Fetched { body, again: fresh_for.unwrap_or(USUAL).clamp(SHORTEST, LONGEST) })
        })
    }
}

/// A file, which somebody replaces when keys change.
pub(super) struct InFile(pub(super) PathBuf);

impl Source for InFile {
    fn fetch(&self) -> Fetching {
        let path = self.0.clone();
        Box::pin(async move {
            let read = spawn_blocking(move || read(&path)).await.map_err(io::Error::other)?;
            Ok(Fetched { body: read?.into(), again: FILE })
        })
    }
}

/// The file as it is now; one byte more than is taken, at most.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let mut body = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut body)?;
    Ok(body)
}
