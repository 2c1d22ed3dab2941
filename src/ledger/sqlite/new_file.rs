//! A new file for a ledger that comes from another store.
//!
//! It has another name until it is complete, so that no server finds a part of it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::backup::publish;
use super::file::{self, Purpose};
use super::identity::LedgerState;
use super::ledger_file::{LedgerFile, OpenMode};
use super::lock::{Lock, file_stamp, with_suffix};
use super::{LockHolder, OpenError, canonical_path};
use crate::clock::since_boot;
use crate::ledger::engine::{Sql, WriterEngine, params};
use crate::ledger::tables::read;
use crate::ledger::writer::CommandGate;
use crate::ledger::{Clock, Reason};

const PARTIAL_SUFFIX: &str = ".importing";

pub(in crate::ledger) struct NewFile {
    pub(in crate::ledger) path: PathBuf,
    partial: PathBuf,
    /// Keeps servers from creating a ledger there.
    lock: Lock,
}

impl NewFile {
    /// Makes an empty ledger. Refuses a path where anything is.
    pub(in crate::ledger) fn create(
        path: &Path,
        clock: Clock,
    ) -> Result<(Self, Box<dyn WriterEngine>), OpenError> {
        let path = canonical_path(path);
        file::ensure_not_truncated(&path)?;
        let lock = Lock::acquire(&path, LockHolder::Command, Duration::ZERO)?;
        if path.symlink_metadata().is_ok() {
            let why =
                "it exists, and a copy overwrites nothing: name another file, or move it away";
            return Err(OpenError::unusable(&path, why));
        }
        let partial = with_suffix(&path, PARTIAL_SUFFIX);
        // From an earlier copy that has failed.
        for old in ["", "-wal", "-shm"].map(|suffix| with_suffix(&partial, suffix)) {
            match fs::remove_file(&old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(OpenError::unusable(&old, Reason::at(&old, error)));
                }
                Ok(()) | Err(_) => {}
            }
        }
        file::create(&partial)?;
        let connection = file::open(&partial, Purpose::Shared)?;
        let db = LedgerFile::new(
            connection,
            OpenMode::Write,
            (clock, Arc::new(since_boot)),
            &CommandGate::opened(),
        );
        let db = db.map_err(OpenError::at(&partial))?;
        Ok((Self { path, partial, lock }, Box::new(db)))
    }

    /// Names and commits the ledger, checks it, and has it on the disk. Returns what puts it in place.
    pub(in crate::ledger) fn complete(
        self,
        db: Box<dyn WriterEngine>,
        name: &str,
    ) -> Result<impl FnOnce() -> Result<(), Reason>, Reason> {
        let Self { path, partial, mut lock } = self;
        let nonce = Uuid::now_v7().into_bytes();
        let latest = "SELECT coalesce(max(number), 0) FROM purchases";
        let latest_number: i64 = db.one(latest, (), read)?;
        let identity = "INSERT INTO identity (number, name, nonce, boot, ended_through)
            VALUES (1, ?, ?, '', ?)";
        db.run(identity, params![name, nonce, latest_number])?;
        db.commit(None)?;
        let file = LedgerFile::of(&*db).ok_or("it is not a file")?;
        file::check_integrity(file.connection())?;
        // The last connection empties the write-ahead log.
        db.close(true, true);
        file_stamp(&partial).ok_or("its write-ahead log could not be emptied")?;
        File::open(&partial)?.sync_all()?;
        Ok(move || {
            // Before the file is there: a server that finds it without this would rename the ledger.
            let state = LedgerState { nonce, latest_number, closed: None, must_check: false };
            lock.write_new(&partial, state)?;
            publish(&partial, &path)
        })
    }
}
