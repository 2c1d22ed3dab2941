//! Keeps what the gateway answered and nobody can read in files beside the ledger, for a day and within
//! bounds: the oldest go first.

use std::fs::{self, DirBuilder, DirEntry, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::warn;

use super::lock::beside;
use crate::store::PurchaseId;

const ENDING: &str = ".unread";
/// How long one is kept.
const KEEP: Duration = Duration::from_secs(86_400);
/// How many bytes they may have together.
const MOST_BYTES: u64 = 64 << 20;
/// How many there may be.
const MOST: usize = 1_000;

/// Writes one down for its owner alone, and says where; the name is the purchase's.
pub(super) fn keep(
    ledger: &Path,
    id: PurchaseId,
    body: &[u8],
    now: Duration,
) -> io::Result<PathBuf> {
    let folder = beside(ledger, ENDING);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let path = folder.join(id.to_string());
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(body)?;
    file.set_modified(SystemTime::UNIX_EPOCH + now)?;
    tidy(ledger, now)?;
    Ok(path)
}

/// Drops those whose time has come, and the oldest of too many.
pub(super) fn tidy(ledger: &Path, now: Duration) -> io::Result<()> {
    let entries = match fs::read_dir(beside(ledger, ENDING)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut kept = Vec::new();
    for entry in entries {
        let entry = entry?;
        match file(&entry, now) {
            Ok(Some(file)) => kept.push(file),
            // Somebody else put it there, and may want it back.
            Ok(None) => {}
            Err(error) => left(&entry.path(), &error),
        }
    }
    kept.sort_unstable();
    let (mut count, mut bytes) = (0, 0);
    for (age, length, path) in kept {
        count += 1;
        bytes += length;
        if age >= KEEP || count > MOST || bytes > MOST_BYTES {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => left(&path, &error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Its age, its size and where it is; none for what no file of ours can be.
fn file(entry: &DirEntry, now: Duration) -> io::Result<Option<(Duration, u64, PathBuf)>> {
    let about = match entry.metadata() {
        // It went meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        about => about?,
    };
    let age = (SystemTime::UNIX_EPOCH + now).duration_since(about.modified()?).unwrap_or_default();
    Ok(about.is_file().then(|| (age, about.len(), entry.path())))
}

/// One is no reason to keep the others.
fn left(path: &Path, error: &io::Error) {
    warn!(file = %path.display(), %error, "a reply that could not be read could not be forgotten");
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(ledger: &Path) -> Vec<String> {
        let entries = fs::read_dir(beside(ledger, ENDING)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn one_is_kept_for_a_day_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.db");
        let (first, second) = (PurchaseId::new(), PurchaseId::new());
        let path = keep(&ledger, first, b"<html>", KEEP).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"<html>");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let parent = path.parent().unwrap().metadata().unwrap();
        assert_eq!(parent.permissions().mode() & 0o777, 0o700);
        keep(&ledger, second, b"x", KEEP + Duration::from_secs(1)).unwrap();
        tidy(&ledger, KEEP * 2 - Duration::from_secs(1)).unwrap();
        assert_eq!(names(&ledger).len(), 2);
        tidy(&ledger, KEEP * 2).unwrap();
        assert_eq!(names(&ledger), [second.to_string()]);
    }

    #[test]
    fn what_is_no_file_of_ours_keeps_none_of_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.db");
        keep(&ledger, PurchaseId::new(), b"x", Duration::ZERO).unwrap();
        let within = beside(&ledger, ENDING);
        fs::create_dir(within.join("a folder")).unwrap();
        std::os::unix::fs::symlink("nowhere", within.join("a link")).unwrap();
        // Removing the first fails; that must not keep the second.
        tidy(&ledger, KEEP * 20_000 * 2).unwrap();
        assert_eq!(names(&ledger), ["a folder", "a link"]);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.db");
        let large = vec![0; usize::try_from(MOST_BYTES / 4).unwrap()];
        let ids: Vec<_> = (0..6_u32).map(|_| PurchaseId::new()).collect();
        for (second, id) in (1..).zip(&ids) {
            keep(&ledger, *id, &large, Duration::from_secs(second)).unwrap();
        }
        let mut latest: Vec<_> = ids[2..].iter().map(ToString::to_string).collect();
        latest.sort_unstable();
        assert_eq!(names(&ledger), latest);
    }
}
