//! Finds the secret that keys the hashes of tokens and cookies, or makes it beside the ledger.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;
use zeroize::Zeroizing;

use crate::access::SecretFault;
use crate::access::token::{self, Secret};
use crate::config::{Config, SecretText, Store};
use crate::store;

const FILE: &str = "tollgate.secret";
const LARGEST: u64 = 4_096;

/// Returns the secret of the settings, or of the file beside the ledger, which is created unless tokens depend
/// on a lost one ([`SecretFault`]), or a random one if the ledger is in memory. No error repeats it.
pub(crate) fn secret(config: &Config) -> io::Result<Secret> {
    if let Store::Sqlite(ledger) = &config.store
        && is_missing(config)
        && store::Store::is_keyed(ledger)
    {
        return Err(io::Error::other(SecretFault::Lost));
    }
    secret_or_new(config).map_err(io::Error::other)
}

/// As [`secret`], but a lost one is replaced, which invalidates the tokens that were made with it.
pub(super) fn secret_or_new(config: &Config) -> Result<Secret, String> {
    if let Some(given) = &config.secret {
        return Ok(Secret::new(given.expose().as_bytes()));
    }
    let Some(path) = file(config) else {
        return Secret::random().map_err(|error| error.to_string());
    };
    let found = find_or_make(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(Secret::new(found.expose().as_bytes()))
}

pub(super) fn is_missing(config: &Config) -> bool {
    file(config).is_some_and(|path| matches!(path.try_exists(), Ok(false)))
}

pub(super) fn file(config: &Config) -> Option<PathBuf> {
    match (&config.secret, &config.store) {
        (None, Store::Sqlite(ledger)) => Some(ledger.with_file_name(FILE)),
        (Some(_), _) | (None, Store::Memory) => None,
    }
}

pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whoever comes first makes it, and everybody reads it.
fn find_or_make(path: &Path) -> Result<SecretText, String> {
    let unmade =
        |error| format!("the secret cannot be made ({error}); set TOLLGATE_SECRET instead");
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(path).and_then(|()| File::open(path)).map_err(unmade)?
        }
        found => found.map_err(|error| error.to_string())?,
    };
    read(&file)
}

fn read(mut file: &File) -> Result<SecretText, String> {
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() || about.len() > LARGEST {
        return Err("expected a small file with the secret".to_owned());
    }
    if about.permissions().mode() & 0o077 != 0 {
        return Err("others than its owner can read or change the secret; chmod 600 it".to_owned());
    }
    let mut text = Zeroizing::new(String::new());
    // It may be one that cannot be read as text; the error says no more than that.
    file.read_to_string(&mut text).map_err(|error| error.to_string())?;
    SecretText::new(&text).map_err(str::to_owned)
}

/// Nobody ever sees a part of it: it gets its name when it is on the disk, and one alone gets it.
fn make(path: &Path) -> io::Result<()> {
    let folder = folder_of(path);
    let draft = folder.join(format!(".{FILE}.{}", Uuid::now_v7()));
    let named = write(&draft).and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft).ok();
    match named {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => File::open(folder)?.sync_all(),
    }
}

fn write(draft: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    writeln!(file, "{}", &**token::random()?)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn all_who_come_at_once_get_the_same_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let found: Vec<_> = thread::scope(|scope| {
            let one = || scope.spawn(|| find_or_make(&path).unwrap());
            let all: Vec<_> = (0..16).map(|_| one()).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let kept = fs::read_to_string(&path).unwrap();
        assert!(found.iter().all(|secret| secret.expose() == kept.trim_end()));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_until_it_is_closed_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let made = find_or_make(&path).unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(find_or_make(&path).unwrap_err().contains("chmod 600"), "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(find_or_make(&path).unwrap() == made);
    }

    #[test]
    fn a_file_with_no_secret_in_it_is_left_as_it_is_and_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        for content in [&b"hunter2"[..], b"", b"\xff\xfe", &[b'x'; 10_000]] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let why = find_or_make(&path).unwrap_err();
            assert!(!why.contains("hunter2"), "{why}");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        let nowhere = folder.path().join("nowhere").join(FILE);
        assert!(find_or_make(&nowhere).unwrap_err().contains("TOLLGATE_SECRET"));
    }

    #[test]
    fn what_the_settings_give_comes_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let beside = Store::Sqlite(folder.path().join("ledger.db"));
        let long = "a secret of 0123456789abcdef0123456789";
        let given = Config {
            secret: Some(SecretText::new(long).unwrap()),
            store: beside.clone(),
            ..Config::default()
        };
        let hash = |config: &Config| token::hash(&secret(config).unwrap(), "tg_a");
        assert_eq!(hash(&given), token::hash(&Secret::new(long.as_bytes()), "tg_a"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        let made = Config { store: beside, ..Config::default() };
        assert_eq!(hash(&made), hash(&made));
        let memory = Config { store: Store::Memory, ..Config::default() };
        assert_ne!(hash(&memory), hash(&memory));
    }
}
