//! Reads the secret for token and cookie hashes, or creates it beside the ledger.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tracing::warn;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::access::SecretError;
use crate::access::token::{self, Secret};
use crate::config::{SecretText, Settings};
use crate::ledger::{Digest, SecretRecord, Store};

pub const FILE_NAME: &str = "tollgate.secret";
const MAX_SIZE: u64 = 4_096;

/// Returns the secret of the settings or of the file beside the ledger; random for one in memory. A
/// missing file is created unless tokens depend on the old one.
pub fn secret(settings: &Settings) -> io::Result<Secret> {
    if is_missing(settings) && settings.store.path().is_some_and(Store::needs_token_secret) {
        return Err(io::Error::other(SecretError::Lost));
    }
    secret_or_new(settings).map_err(io::Error::other)
}

/// Like [`secret`], but replaces a lost secret, which invalidates the tokens made with it.
pub fn secret_or_new(settings: &Settings) -> Result<Secret, String> {
    if let Some(secret) = &settings.secret {
        return Ok(Secret::new(secret.expose().as_bytes()));
    }
    let Some(path) = path_of(settings) else {
        return Secret::random().map_err(|error| error.to_string());
    };
    let found = read_or_create(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(Secret::new(found.expose().as_bytes()))
}

/// Records the secret in the ledger, which refuses one that differs from what members or other
/// servers depend on.
pub async fn record(store: &Store, fingerprint: Digest) -> Result<(), SecretError> {
    match store.record_secret(fingerprint).await {
        Ok(SecretRecord::Accepted) => Ok(()),
        Ok(SecretRecord::OtherOfMembers) => Err(SecretError::Mismatch),
        Ok(SecretRecord::OtherOfServers) => Err(SecretError::OfServers),
        Err(error) => {
            warn!(%error, "failed to record token secret fingerprint");
            Ok(())
        }
    }
}

pub fn is_missing(settings: &Settings) -> bool {
    path_of(settings).is_some_and(|path| matches!(path.try_exists(), Ok(false)))
}

pub fn path_of(settings: &Settings) -> Option<PathBuf> {
    let ledger = settings.store.path().filter(|_| settings.secret.is_none())?;
    Some(ledger.with_file_name(FILE_NAME))
}

pub fn parent_dir(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn read_or_create(path: &Path) -> Result<SecretText, String> {
    let create_error =
        |error| format!("cannot create the secret ({error}); set TOLLGATE_SECRET instead");
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(path).and_then(|()| File::open(path)).map_err(create_error)?
        }
        found => found.map_err(|error| error.to_string())?,
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > MAX_SIZE {
        return Err("expected a small file with the secret".to_owned());
    }
    if metadata.mode() & 0o077 != 0 {
        return Err("other users can read or change the secret; chmod 600 it".to_owned());
    }
    let mut text = Zeroizing::new(String::new());
    file.read_to_string(&mut text).map_err(|error| error.to_string())?;
    SecretText::new(&text).map_err(str::to_owned)
}

/// Returns what users other than the owner can do with a file, if it is not private.
pub fn exposure(path: &Path) -> Option<&'static str> {
    let file = fs::metadata(path).ok()?;
    // A file that root has made readable for a service's group is private to the service.
    let is_for_service = file.uid() == 0 && file.gid() != 0;
    let others = file.mode() & if is_for_service { 0o037 } else { 0o077 };
    match (others & 0o044 != 0, others & 0o022 != 0) {
        (true, true) => Some("read and change the file"),
        (true, false) => Some("read the file"),
        (false, true) => Some("change the file"),
        (false, false) => None,
    }
}

pub fn is_writable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.mode() & 0o022 != 0)
}

/// Writes a temporary file and links it to `path`, so that no process reads a part of it.
fn create(path: &Path) -> io::Result<()> {
    let folder = parent_dir(path);
    let temporary = folder.join(format!(".{FILE_NAME}.{}", Uuid::now_v7()));
    let linked = write(&temporary).and_then(|()| fs::hard_link(&temporary, path));
    fs::remove_file(&temporary).ok();
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => File::open(folder)?.sync_all(),
    }
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", &**token::random()?)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    use super::*;
    use crate::config::StoreConfig;

    #[test]
    fn concurrent_readers_get_the_same_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let found: Vec<_> = thread::scope(|scope| {
            let one = || scope.spawn(|| read_or_create(&path).unwrap());
            let all: Vec<_> = (0..16).map(|_| one()).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let kept = fs::read_to_string(&path).unwrap();
        assert!(found.iter().all(|secret| secret.expose() == kept.trim_end()));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn file_that_others_can_read_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let made = read_or_create(&path).unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(read_or_create(&path).unwrap_err().contains("chmod 600"), "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(read_or_create(&path).unwrap() == made);
    }

    #[test]
    fn file_without_a_secret_is_neither_changed_nor_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        for content in [&b"hunter2"[..], b"", b"\xff\xfe", &[b'x'; 10_000]] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let why = read_or_create(&path).unwrap_err();
            assert!(!why.contains("hunter2"), "{why}");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        let nowhere = folder.path().join("nowhere").join(FILE_NAME);
        assert!(read_or_create(&nowhere).unwrap_err().contains("TOLLGATE_SECRET"));
    }

    #[test]
    fn secret_of_the_settings_overrides_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let beside = StoreConfig::Sqlite(folder.path().join("ledger.db"));
        let long = "a secret of 0123456789abcdef0123456789";
        let given = Settings {
            secret: Some(SecretText::new(long).unwrap()),
            store: beside.clone(),
            ..Settings::default()
        };
        let hash = |settings: &Settings| token::hash_token(&secret(settings).unwrap(), "tg_a");
        assert_eq!(hash(&given), token::hash_token(&Secret::new(long.as_bytes()), "tg_a"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        let made = Settings { store: beside, ..Settings::default() };
        assert_eq!(hash(&made), hash(&made));
        let memory = Settings { store: StoreConfig::Memory, ..Settings::default() };
        assert_ne!(hash(&memory), hash(&memory));
    }
}
