//! Keeps replies for retries, within limits: those that expire next are deleted first.
//!
//! Replies that cannot be parsed are kept in files beside the ledger, for a day.

use std::cell::Cell;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tracing::{error, warn};

use super::column::{insert, read, record, select};
use crate::ledger::engine::{Engine, Result, Sql};
use crate::ledger::sqlite::with_suffix;
use crate::ledger::writer::Durability;
use crate::ledger::{KeptReply, PurchaseId, Store, StoreCapacity, Unavailable};

record!(KeptReply { status: "status", is_json: "is_json", body: "body" });

impl Store {
    pub async fn reply(&self, id: PurchaseId) -> Result<Option<KeptReply>, Unavailable> {
        let of = "FROM replies WHERE number = (SELECT number FROM purchases WHERE id = ?)";
        let find = select::<KeptReply>(of);
        self.query("reply", move |ledger| ledger.db.first(&find, [id], read)).await
    }

    /// Keeps, without waiting, a reply that cannot be parsed, for the operator and for a day: in a file
    /// beside the ledger, or in the database. An in-memory store keeps none.
    pub fn keep_unparsable_reply(&self, id: PurchaseId, body: Bytes) {
        if self.is_shared() {
            self.notify("keep_unparsable_reply", Durability::Buffered, move |ledger| {
                insert!(
                    ledger.db,
                    unparsable_replies { id: id, at: ledger.now(), body: body }
                    "ON CONFLICT (id) DO NOTHING"
                )?;
                warn!(purchase = %id, "unparsable reply kept");
                Ok(())
            });
            return;
        }
        if self.inner.path.as_os_str().is_empty() {
            return;
        }
        // On the writer's thread, because it may wait for a disk.
        let path = self.inner.path.clone();
        self.notify("keep_unparsable_reply", Durability::Buffered, move |ledger| {
            match keep_unparsable(&path, id, &body, ledger.now()) {
                Ok(file) => warn!(purchase = %id, file = %file.display(), "unparsable reply kept"),
                Err(error) => error!(purchase = %id, %error, "failed to keep unparsable reply"),
            }
            Ok(())
        });
    }
}

/// The limits of the kept replies, and how much is used.
pub(super) struct Replies {
    capacity: StoreCapacity,
    kept: Cell<Option<Kept>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    replies: usize,
    bytes: usize,
}

impl Kept {
    fn without(self, bytes: usize) -> Self {
        Self { replies: self.replies.saturating_sub(1), bytes: self.bytes.saturating_sub(bytes) }
    }
}

impl Replies {
    pub(super) fn new(capacity: StoreCapacity) -> Self {
        Self { capacity, kept: Cell::new(None) }
    }

    /// Counts again at the next use, because something was rolled back.
    pub(super) fn invalidate(&self) {
        self.kept.set(None);
    }

    pub(super) fn keep(
        &self,
        db: &dyn Engine,
        number: i64,
        reply: &KeptReply,
        until: Duration,
    ) -> Result<()> {
        if reply.body.len() > self.capacity.reply_bytes {
            return Ok(());
        }
        let mut kept = match self.kept.get() {
            Some(kept) => kept,
            None => {
                let sizes = "SELECT count(*), coalesce(sum(length(body)), 0) FROM replies";
                let (replies, bytes) = db.one(sizes, (), read)?;
                Kept { replies, bytes }
            }
        };
        let KeptReply { status, is_json, body } = reply;
        insert!(
            db,
            replies { number: number, until: until, status: status, is_json: is_json, body: body }
        )?;
        kept = Kept { replies: kept.replies + 1, bytes: kept.bytes + body.len() };
        while kept.replies > self.capacity.replies || kept.bytes > self.capacity.reply_bytes {
            let next = "DELETE FROM replies
                WHERE number = (SELECT number FROM replies ORDER BY until, number LIMIT 1)
                RETURNING length(body)";
            let Some(bytes) = db.first(next, (), read)? else {
                kept = Kept::default();
                break;
            };
            kept = kept.without(bytes);
        }
        self.kept.set(Some(kept));
        Ok(())
    }

    pub(super) fn purge_expired(&self, db: &dyn Engine, now: Duration) -> Result<()> {
        let expired = "DELETE FROM replies WHERE until <= ? RETURNING length(body)";
        let expired = db.all(expired, [now], read)?;
        // Counting again would read all that are kept.
        let without = |kept| expired.into_iter().fold(kept, Kept::without);
        // Replies of other servers are counted once in a while.
        let kept = self.kept.get().filter(|_| !db.dialect().is_shared());
        self.kept.set(kept.map(without));
        Ok(())
    }
}

const UNPARSABLE_SUFFIX: &str = ".unread";
pub(super) const UNPARSABLE_RETENTION: Duration = Duration::from_secs(86_400);
const MAX_UNPARSABLE_BYTES: u64 = 64 << 20;
pub(super) const MAX_UNPARSABLE: usize = 1_000;

/// Writes a reply to a file for its owner only, named after the purchase, and returns its path.
pub(super) fn keep_unparsable(
    ledger: &Path,
    id: PurchaseId,
    body: &[u8],
    now: Duration,
) -> io::Result<PathBuf> {
    let folder = with_suffix(ledger, UNPARSABLE_SUFFIX);
    DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
    let path = folder.join(id.to_string());
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(body)?;
    file.set_modified(SystemTime::UNIX_EPOCH + now)?;
    purge_unparsable(ledger, now)?;
    Ok(path)
}

pub(super) fn purge_unparsable(ledger: &Path, now: Duration) -> io::Result<()> {
    let entries = match fs::read_dir(with_suffix(ledger, UNPARSABLE_SUFFIX)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let log_failure = |path: &Path, error: io::Error| {
        // Deleted meanwhile, if it is not found.
        if error.kind() != io::ErrorKind::NotFound {
            warn!(file = %path.display(), %error, "failed to delete unparsable reply");
        }
    };
    let mut kept = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let details = fs::symlink_metadata(&path).and_then(|file| Ok((file.modified()?, file)));
        match details {
            Ok((written, file)) if file.is_file() => {
                let age = (SystemTime::UNIX_EPOCH + now).duration_since(written);
                kept.push((age.unwrap_or_default(), file.len(), path));
            }
            // Not ours.
            Ok(_) => {}
            Err(error) => log_failure(&path, error),
        }
    }
    kept.sort_unstable();
    let (mut count, mut bytes) = (0, 0);
    for (age, length, path) in kept {
        count += 1;
        bytes += length;
        if age >= UNPARSABLE_RETENTION || count > MAX_UNPARSABLE || bytes > MAX_UNPARSABLE_BYTES {
            fs::remove_file(&path).unwrap_or_else(|error| log_failure(&path, error));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(ledger: &Path) -> Vec<String> {
        let entries = fs::read_dir(with_suffix(ledger, UNPARSABLE_SUFFIX)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn unparsable_reply_is_kept_for_a_day_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.db");
        let (first, second) = (PurchaseId::generate(), PurchaseId::generate());
        let path = keep_unparsable(&ledger, first, b"<html>", UNPARSABLE_RETENTION).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"<html>");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let parent = path.parent().unwrap().metadata().unwrap();
        assert_eq!(parent.permissions().mode() & 0o777, 0o700);
        keep_unparsable(&ledger, second, b"x", UNPARSABLE_RETENTION + Duration::from_secs(1))
            .unwrap();
        purge_unparsable(&ledger, UNPARSABLE_RETENTION * 2 - Duration::from_secs(1)).unwrap();
        assert_eq!(names(&ledger).len(), 2);
        purge_unparsable(&ledger, UNPARSABLE_RETENTION * 2).unwrap();
        assert_eq!(names(&ledger), [second.to_string()]);
    }

    #[test]
    fn foreign_entries_do_not_block_deletion() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.db");
        keep_unparsable(&ledger, PurchaseId::generate(), b"x", Duration::ZERO).unwrap();
        let within = with_suffix(&ledger, UNPARSABLE_SUFFIX);
        fs::create_dir(within.join("a folder")).unwrap();
        std::os::unix::fs::symlink("nowhere", within.join("a link")).unwrap();
        // Removing the first fails; that must not keep the second.
        purge_unparsable(&ledger, UNPARSABLE_RETENTION * 20_000 * 2).unwrap();
        assert_eq!(names(&ledger), ["a folder", "a link"]);
    }

    #[test]
    fn oldest_files_are_deleted_beyond_the_byte_limit() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.db");
        let large = vec![0; usize::try_from(MAX_UNPARSABLE_BYTES / 4).unwrap()];
        let ids: Vec<_> = (0..6_u32).map(|_| PurchaseId::generate()).collect();
        for (second, id) in (1..).zip(&ids) {
            keep_unparsable(&ledger, *id, &large, Duration::from_secs(second)).unwrap();
        }
        let mut latest: Vec<_> = ids[2..].iter().map(ToString::to_string).collect();
        latest.sort_unstable();
        assert_eq!(names(&ledger), latest);
    }
}
