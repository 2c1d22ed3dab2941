//! `tollgate backup`: copies the ledger while a server sells from it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{CommandError, Exit, ledger};
use crate::access::secret_file;
use crate::clock::iso8601;
use crate::config::{Settings, StoreConfig};
use crate::ledger::{Backup, Reason, Store};

pub(super) fn backup(
    settings: &Settings,
    (target, with_secret): (&Path, bool),
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    if let StoreConfig::Postgres(_) = settings.store {
        let why = "the ledger is in PostgreSQL: back it up with pg_dump, or with your provider's \
                   backups (docs/guide/fleet.md)";
        return Err(CommandError::usage(why));
    }
    let path = ledger::existing_path(settings)?;
    let folder = secret_file::parent_dir(target);
    if !folder.is_dir() {
        return Err(format!("there is no folder {}: create it first", folder.display()).into());
    }
    let secret = secret_file::path_of(settings).filter(|secret| secret.exists());
    let copy_of_secret = match (&secret, with_secret) {
        (Some(secret), true) => {
            let copy = folder.join(secret.file_name().unwrap_or_default());
            copy_secret(secret, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
            Some(copy)
        }
        (None, true) => {
            let why = "--with-secret: there is no tollgate.secret beside the ledger; the secret is \
                       TOLLGATE_SECRET, or no token has needed one so far";
            return Err(CommandError::usage(why));
        }
        (_, false) => None,
    };
    let copied = Store::back_up(path, target).map_err(|error| {
        copy_of_secret.iter().for_each(|copy| _ = fs::remove_file(copy));
        // Names the file, which may be the copy.
        Reason::from(error).to_string()
    })?;
    let Backup { bytes, purchases, latest_at } = copied;
    let latest = latest_at.map(|at| format!(", the last of {}", iso8601(at))).unwrap_or_default();
    let shown = target.display();
    writeln!(out, "{shown}: {bytes} bytes, checked; {purchases} purchases{latest}")?;
    match (&copy_of_secret, &secret) {
        (Some(copy), _) => writeln!(out, "{}: members' tokens need it", copy.display())?,
        (None, Some(secret)) => {
            writeln!(out, "keep {} with it: members' tokens need it", secret.display())?;
        }
        (None, None) => {}
    }
    Ok(Exit::Done)
}

fn copy_secret(from: &Path, to: &Path) -> io::Result<()> {
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut File::open(from)?, &mut copy)?;
    copy.sync_all()
}
