//! The folder of kept videos. Servers that share it see each other's videos.
//!
//! Files are named `<job>.<owner>.<what>`, by hashes, and their state is their name. A video gets
//! its name when it is whole.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use tempfile::NamedTempFile;

use super::format::{self, HEAD_SIZE, VideoFormat};
use crate::ledger::Job;

const VIDEO: &str = "video";
const PART: &str = "part";
/// Holds the reason why the video could not be kept.
const FAILED: &str = "failed";
/// The video was removed because of the quota.
const OVER_QUOTA: &str = "quota";
/// The owner or an admin removed the video.
const REMOVED: &str = "removed";

/// A video that could not be kept is tried again after this time: the disk may have had no room.
const TRIED_AGAIN: Duration = Duration::from_secs(86_400);
/// A transfer writes more often than this, so an older part is of a server that ended.
const STALE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptState {
    Kept,
    Removed,
    OverQuota,
    Failed(String),
    Missing,
}

/// A kept video, open: it can be read to its end after it was removed.
#[derive(Debug)]
pub(super) struct KeptFile {
    pub(super) file: File,
    pub(super) length: u64,
    pub(super) tag: String,
    pub(super) format: VideoFormat,
}

/// The videos that a tidy-up removed for the quota.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tidied {
    pub(super) expired: u64,
    pub(super) over_quota: u64,
    pub(super) bytes_over_quota: u64,
    /// The size of the videos that stay.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    fn path(&self, job: &Job, what: &str) -> PathBuf {
        self.0.join(format!("{}.{what}", stem(job)))
    }

    pub(super) fn state(&self, job: &Job) -> KeptState {
        let is_there = |what| self.path(job, what).exists();
        if is_there(REMOVED) {
            KeptState::Removed
        } else if is_there(VIDEO) {
            KeptState::Kept
        } else if is_there(OVER_QUOTA) {
            KeptState::OverQuota
        } else {
            let reason = fs::read_to_string(self.path(job, FAILED));
            reason.map_or(KeptState::Missing, KeptState::Failed)
        }
    }

    /// Opens the video of a job, if it is kept.
    pub(super) fn open(&self, job: &Job) -> Option<KeptFile> {
        let mut file = File::open(self.path(job, VIDEO)).ok()?;
        let metadata = file.metadata().ok()?;
        let mut head = Vec::with_capacity(HEAD_SIZE);
        Read::by_ref(&mut file).take(HEAD_SIZE as u64).read_to_end(&mut head).ok()?;
        let (format, length) = (format::identify(&head)?, metadata.len());
        // A video that is kept again has another time.
        let time = modified(&metadata).as_nanos();
        let tag = format!("\"{}-{time:x}-{length:x}\"", stem(job));
        Some(KeptFile { file, length, tag, format })
    }

    /// Makes the file that a transfer writes to, readable by this user only. It is removed on drop.
    pub(super) fn new_part(&self, job: &Job) -> io::Result<NamedTempFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let prefix = format!("{}.", stem(job));
        tempfile::Builder::new().prefix(&prefix).suffix(&format!(".{PART}")).tempfile_in(&self.0)
    }

    /// Returns whether a server writes the video of this job right now.
    pub(super) fn is_being_written(&self, job: &Job, now: Duration) -> bool {
        let stem = stem(job);
        let is_own = |entry: &Entry| entry.stem == stem && entry.what == PART;
        self.entries().iter().any(|entry| is_own(entry) && !entry.is_older(STALE, now))
    }

    /// Gives a whole part the name of the video.
    pub(super) fn finish(&self, job: &Job, part: NamedTempFile) -> io::Result<()> {
        part.as_file().sync_all()?;
        part.persist(self.path(job, VIDEO)).map_err(|error| error.error)?;
        fs::remove_file(self.path(job, FAILED)).ok();
        File::open(&self.0)?.sync_all()
    }

    pub(super) fn note_failure(&self, job: &Job, reason: &str) -> io::Result<()> {
        note(&self.path(job, FAILED), reason)
    }

    /// Removes the video of a job for good.
    pub(super) fn remove(&self, job: &Job) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let noted = note(&self.path(job, REMOVED), "");
        // On a full disk, this makes room for the next attempt.
        match fs::remove_file(self.path(job, VIDEO)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => noted,
        }
    }

    /// Removes all files of these owners.
    pub(super) fn remove_of(&self, owners: &[String]) {
        let owners: HashSet<_> = owners.iter().map(|owner| owner_hash(owner)).collect();
        for entry in self.entries() {
            let owner = entry.stem.rsplit('.').next().unwrap_or_default();
            if owners.contains(owner) {
                fs::remove_file(&entry.path).ok();
            }
        }
    }

    /// Removes parts that no server writes any more: all, if this is the only server.
    pub(super) fn remove_stale_parts(&self, is_only_server: bool, now: Duration) {
        let parts = self.entries().into_iter().filter(|entry| entry.what == PART);
        for part in parts.filter(|part| is_only_server || part.is_older(STALE, now)) {
            fs::remove_file(&part.path).ok();
        }
    }

    /// Removes what is older than `keep`, then the oldest videos beyond the quota.
    pub(super) fn tidy(&self, keep: Duration, quota: u64, now: Duration) -> Tidied {
        let mut tidied = Tidied::default();
        let mut videos = Vec::new();
        for entry in self.entries() {
            let keep = match &*entry.what {
                VIDEO | OVER_QUOTA => keep,
                FAILED => TRIED_AGAIN.min(keep),
                _ => Duration::MAX,
            };
            if entry.is_older(keep, now) {
                let is_removed = fs::remove_file(&entry.path).is_ok();
                tidied.expired += u64::from(is_removed && entry.what == VIDEO);
            } else if entry.what == VIDEO {
                tidied.bytes += entry.length;
                videos.push(entry);
            }
        }
        videos.sort_by_key(|video| video.modified);
        for video in videos {
            if tidied.bytes <= quota {
                break;
            }
            // The note comes first: without it, the video would be fetched again.
            note(&video.path.with_extension(OVER_QUOTA), "").ok();
            if fs::remove_file(&video.path).is_ok() {
                tidied.over_quota += 1;
                tidied.bytes_over_quota += video.length;
            }
            tidied.bytes -= video.length;
        }
        tidied
    }

    fn entries(&self) -> Vec<Entry> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        files.filter_map(|file| Entry::found(&file)).collect()
    }
}

struct Entry {
    path: PathBuf,
    /// `<job>.<owner>`.
    stem: String,
    what: String,
    length: u64,
    modified: Duration,
}

impl Entry {
    fn found(file: &fs::DirEntry) -> Option<Self> {
        let (name, metadata) = (file.file_name().into_string().ok()?, file.metadata().ok()?);
        let mut words = name.split('.');
        let stem = format!("{}.{}", words.next()?, words.next()?);
        let what = words.next_back()?.to_owned();
        let (length, modified) = (metadata.len(), modified(&metadata));
        Some(Self { path: file.path(), stem, what, length, modified })
    }

    fn is_older(&self, age: Duration, now: Duration) -> bool {
        now.saturating_sub(self.modified) > age
    }
}

fn modified(metadata: &Metadata) -> Duration {
    let time = metadata.modified().ok();
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default()
}

fn note(path: &Path, text: &str) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn stem(job: &Job) -> String {
    let id = blake3::derive_key("tollgate 2026-11 file of a video", job.request_id.as_bytes());
    format!("{}.{}", hex(&id), owner_hash(&job.owner))
}

fn owner_hash(owner: &str) -> String {
    hex(&blake3::derive_key("tollgate 2026-11 owner of a video", owner.as_bytes()))
}

/// 128 bits of a hash.
fn hex(hash: &[u8; 32]) -> String {
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
