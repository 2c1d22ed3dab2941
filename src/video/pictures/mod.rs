//! Starting pictures: callers upload them, and the gateway fetches them within a day.
//!
//! The files are beside the ledger and named `<id>.<owner>.<second>.<extension>`. A request's path is
//! only looked up in the index, which is rebuilt from the folder at start.

mod format;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tokio::task::spawn_blocking;
use tracing::warn;

pub use format::PictureFormat;

use crate::access::token::random;
use crate::clock;
use crate::gate::problem::{INTERNAL, NOT_FOUND, OVERLOADED, Problem, RATE_LIMITED};
use crate::ledger::Caller;
use crate::sync::lock;

const LIFETIME: Duration = Duration::from_secs(86_400);
/// The gateway fetches a picture once per order. A link on another site would fetch more often.
const MAX_FETCHES: u32 = 100;
const MAX_TOTAL: u64 = 1 << 30;
const MAX_PER_CALLER: u64 = 64 << 20;
/// A smaller picture counts as this much, so that the limits also bound the number of files.
const MIN_COUNTED: u64 = 64 << 10;
const CHUNK_SIZE: u64 = 16 << 10;

#[derive(Debug)]
pub struct Pictures {
    folder: PathBuf,
    is_temporary: bool,
    index: Mutex<HashMap<String, Picture>>,
}

#[derive(Debug)]
struct Picture {
    file: PathBuf,
    owner: String,
    bytes: u64,
    expires: Duration,
    format: &'static PictureFormat,
    fetches: u32,
}

impl Pictures {
    /// Reads the index from the folder beside this ledger. The first upload creates the folder.
    pub fn beside(ledger: &Path) -> Self {
        let mut folder = ledger.as_os_str().to_owned();
        folder.push(".pictures");
        let folder = PathBuf::from(folder);
        let files = fs::read_dir(&folder).into_iter().flatten().flatten();
        let index = files.filter_map(|entry| Picture::found(&entry)).collect();
        Self { folder, is_temporary: false, index: Mutex::new(index) }
    }

    /// Keeps pictures in a temporary folder, which is deleted with the value.
    ///
    /// Returns `None` without randomness for the folder's name.
    pub fn temporary() -> Option<Self> {
        let name = format!("tollgate-{}.pictures", random().ok()?.as_str());
        let folder = std::env::temp_dir().join(name);
        Some(Self { folder, is_temporary: true, index: Mutex::default() })
    }

    /// Stores a picture. Returns its id and when it expires.
    pub async fn add(&self, caller: &Caller, bytes: Bytes) -> Result<(String, Duration), Problem> {
        let format = format::identify(&bytes)?;
        let id = random().map_err(|_| Problem::new(&INTERNAL))?.to_string();
        let owner = blake3::hash(caller.to_string().as_bytes()).to_hex()[..16].to_owned();
        let now = clock::wall();
        let name = format!("{id}.{owner}.{}.{}", now.as_secs(), format.extension);
        let file = self.folder.join(name);
        let expires = Duration::from_secs(now.as_secs()) + LIFETIME;
        let size = bytes.len() as u64;
        let picture =
            Picture { file: file.clone(), owner, bytes: size, expires, format, fetches: 0 };
        self.reserve(&id, picture, now)?;
        let folder = self.folder.clone();
        let writing = spawn_blocking(move || write(&folder, &file, &bytes));
        if let Err(error) = writing.await.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            warn!(%error, "picture not stored");
            lock(&self.index).remove(&id);
            return Err(Problem::new(&INTERNAL).detail("the picture could not be written"));
        }
        Ok((id, expires))
    }

    /// Adds a picture to the index if the limits allow it, so that concurrent uploads count.
    fn reserve(&self, id: &str, picture: Picture, now: Duration) -> Result<(), Problem> {
        let mut index = lock(&self.index);
        let refusal = |kind, detail, owner: Option<&str>, max| {
            let counted = index.values().filter(|it| owner.is_none_or(|owner| it.owner == owner));
            let (mut used, mut first) = (picture.bytes.max(MIN_COUNTED), picture.expires);
            for one in counted.filter(|it| it.expires > now) {
                used += one.bytes.max(MIN_COUNTED);
                first = first.min(one.expires);
            }
            let wait = first.saturating_sub(now);
            (used > max).then(|| Problem::new(kind).detail(detail).retry_after(wait))
        };
        let own = "your pictures of the last 24 hours take up 64 MiB, the maximum";
        let all = "all pictures of the last 24 hours take up 1 GiB, the maximum";
        let refused = refusal(&RATE_LIMITED, own, Some(&picture.owner), MAX_PER_CALLER)
            .or_else(|| refusal(&OVERLOADED, all, None, MAX_TOTAL));
        match refused {
            Some(problem) => Err(problem),
            None => {
                index.insert(id.to_owned(), picture);
                Ok(())
            }
        }
    }

    /// Returns a picture's file, length and format. With `is_counted`, it counts as a fetch.
    pub async fn find(
        &self,
        id: &str,
        is_counted: bool,
    ) -> Result<(PathBuf, u64, &'static PictureFormat), Problem> {
        let missing = || {
            Problem::new(&NOT_FOUND).detail(format!(
                "no such picture: it expires after 24 hours and after {MAX_FETCHES} downloads"
            ))
        };
        let (path, bytes, format) = {
            let mut index = lock(&self.index);
            let picture = index
                .get_mut(id)
                .filter(|picture| picture.expires > clock::wall() && picture.fetches < MAX_FETCHES);
            let picture = picture.ok_or_else(missing)?;
            picture.fetches += u32::from(is_counted);
            (picture.file.clone(), picture.bytes, picture.format)
        };
        tokio::fs::metadata(&path).await.map_err(|_| missing())?;
        Ok((path, bytes, format))
    }

    /// Deletes expired pictures.
    pub async fn purge_expired(self: Arc<Self>) {
        let now = clock::wall();
        let purge = move || {
            let expired: Vec<_> =
                lock(&self.index).extract_if(|_, picture| picture.expires <= now).collect();
            for (_, picture) in expired {
                if let Err(error) = fs::remove_file(picture.file) {
                    warn!(%error, "expired picture not deleted");
                }
            }
        };
        // A panic is logged by its hook.
        let _ = spawn_blocking(purge).await;
    }
}

impl Drop for Pictures {
    fn drop(&mut self) {
        if self.is_temporary {
            // Nothing was uploaded, or the system deletes it in time.
            fs::remove_dir_all(&self.folder).ok();
        }
    }
}

impl Picture {
    /// Returns a picture that an earlier process stored, by the name of its file.
    fn found(entry: &fs::DirEntry) -> Option<(String, Self)> {
        let name = entry.file_name().into_string().ok()?;
        let [id, owner, second, extension] = name.split('.').collect::<Vec<_>>().try_into().ok()?;
        let picture = Self {
            file: entry.path(),
            owner: owner.to_owned(),
            bytes: entry.metadata().ok()?.len(),
            expires: Duration::from_secs(second.parse().ok()?).checked_add(LIFETIME)?,
            format: format::with_extension(extension)?,
            fetches: 0,
        };
        Some((id.to_owned(), picture))
    }
}

fn write(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // The gateway charges for an order whose picture it cannot read.
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        // Nothing else would delete the part, and the disk may be full.
        fs::remove_file(path).ok();
    }
    written
}

/// Returns the first `length` bytes of a file in chunks.
///
/// The file is open only during each read. Otherwise, slow downloads could take the descriptors
/// that purchases and the ledger need.
pub fn read(path: PathBuf, length: u64) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold((path, 0), move |(path, start)| async move {
        let size = CHUNK_SIZE.min(length - start);
        if size == 0 {
            return Ok(None);
        }
        let reading = spawn_blocking(move || {
            let mut chunk = vec![0; usize::try_from(size).map_err(io::Error::other)?];
            fs::File::open(&path)?.read_exact_at(&mut chunk, start)?;
            Ok(Some((Bytes::from(chunk), (path, start + size))))
        });
        reading.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    })
}

#[cfg(test)]
mod tests;
