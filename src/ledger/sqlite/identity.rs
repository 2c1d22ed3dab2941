//! Gives a ledger its public name, which changes when purchases may have been lost.
//!
//! Each start writes a new nonce into the ledger and into its lock file. The lock file also has the
//! number of the latest purchase and, after a clean stop, the size and time of the ledger.
//!
//! Another file at the same path, or an old copy, disagrees with the lock file and is renamed. If the
//! whole folder was put back, it disagrees with the lock file's copy outside of it, the mark. A power
//! failure can lose purchases, too, so the ledger records the boot id of its last start.
//!
//! Invariant: a ledger keeps its name only if it has every purchase that was sold under it. If that
//! is not certain, it is renamed, which costs callers one extra question.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::schema::FileKind;
use crate::ledger::engine::{Engine, Sql, params};
use crate::ledger::engine::{Result, StoreError};
use crate::ledger::name::new_name;
use crate::ledger::schema::IS_RUNNING;
use crate::ledger::tables::Ledger;
use crate::ledger::writer::Durability;
use crate::ledger::{Cause, Reason, Store, Unavailable};
use crate::sync::lock;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The process ended, but the system did not, so the file has all that was written to it.
const NOT_CLOSED: &str = "it was not closed cleanly";
const OTHER_COPY: &str = "its lock file belongs to another copy";

pub(super) type Nonce = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileStamp {
    pub(super) size: u64,
    /// In nanoseconds since 1970-01-01 UTC.
    pub(super) modified: i64,
    pub(super) inode: u64,
}

/// The ledger's state as its lock file records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LedgerState {
    pub(super) nonce: Nonce,
    pub(super) latest_number: i64,
    /// The file as the last server closed it; `None` while one has it, and after a crash.
    pub(super) closed: Option<FileStamp>,
    /// The last server found a fault.
    pub(super) must_check: bool,
}

#[derive(Clone, Debug)]
struct StoredIdentity {
    name: Arc<str>,
    nonce: Nonce,
    boot: String,
    latest_number: i64,
    has_running: bool,
}

#[derive(Clone, Debug)]
pub(super) struct LedgerIdentity {
    pub(super) name: Arc<str>,
    pub(super) state: LedgerState,
    pub(super) suspect_reason: Option<&'static str>,
    pub(super) may_lack_purchases: bool,
    /// A server had it, and did not close it cleanly or left no mark.
    pub(super) may_be_old: bool,
    pub(super) boot: String,
}

impl LedgerIdentity {
    /// Compares a ledger with the state that its lock file and its mark have. `found` is the ledger
    /// before it was opened, unless it has a write-ahead log. Writes nothing.
    pub(super) fn read(
        connection: &Connection,
        kind: FileKind,
        (recorded, marked): (Option<LedgerState>, Option<LedgerState>),
        found: Option<FileStamp>,
        now: Duration,
    ) -> rusqlite::Result<Self> {
        let is_ledger = matches!(kind, FileKind::Ledger(_));
        let stored = if is_ledger { stored(connection)? } else { None };
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        let latest_number = stored.as_ref().map_or(0, |stored| stored.latest_number);
        let nonce = Uuid::now_v7().into_bytes();
        let state = LedgerState { nonce, latest_number, closed: None, must_check: false };
        let suspicion = match &stored {
            Some(stored) => suspicion(stored, recorded, marked, &boot, found),
            None if is_ledger && recorded.is_some() => Some((OTHER_COPY, false)),
            None if is_ledger && has_purchases(connection)? => {
                Some(("its identity is missing", false))
            }
            // It is new, or a command made it: no server has had it.
            None => None,
        };
        let may_be_old = stored.is_some() && (suspicion.is_some() || marked.is_none());
        let may_lack_purchases = suspicion.is_some_and(|(_, forgets)| forgets);
        let name = match stored {
            Some(stored) if !may_lack_purchases => stored.name,
            Some(_) => new_name(now),
            None => new_name(Duration::ZERO),
        };
        let suspect_reason = suspicion.map(|(why, _)| why);
        Ok(Self { name, state, suspect_reason, may_lack_purchases, may_be_old, boot })
    }

    /// Whether a check may wait until the ledger is in use: the end of a process damages no file.
    pub(super) fn can_check_later(&self) -> bool {
        self.suspect_reason == Some(NOT_CLOSED)
    }

    /// Requires that no purchase is running.
    pub(super) fn save(&self, db: &dyn Engine) -> Result<()> {
        let write = "INSERT INTO identity (number, name, nonce, boot, ended_through)
            VALUES (1, ?, ?, ?, (SELECT coalesce(max(number), 0) FROM purchases))
            ON CONFLICT (number) DO UPDATE SET name = excluded.name, nonce = excluded.nonce,
                boot = excluded.boot, ended_through = excluded.ended_through";
        db.run(write, params![self.name, self.state.nonce, self.boot])?;
        Ok(())
    }
}

impl Store {
    /// Renames the ledger, because it lacks purchases.
    pub async fn rename(&self) -> Result<(), Unavailable> {
        let name = new_name(self.now());
        let kept = Arc::clone(&name);
        let rename = move |ledger: &Ledger| {
            ledger.db.run("UPDATE identity SET name = ?", [&*kept])?;
            // Links end with the name.
            ledger.db.run("UPDATE members_version SET version = version + 1", ())?;
            ledger.db.renamed(&kept);
            Ok(())
        };
        self.run("rename", Durability::Synced, rename).await?;
        *lock(&self.inner.name) = name;
        Ok(())
    }
}

/// Refuses a file whose content was replaced while a server has it.
pub(super) fn ensure_nonce(connection: &Connection, nonce: &Nonce) -> Result<(), StoreError> {
    let query = "SELECT nonce = ? FROM identity";
    let is_same: Option<bool> =
        connection.query_row(query, [nonce], |row| row.get(0)).optional()?;
    if is_same == Some(true) {
        return Ok(());
    }
    let why = "the ledger's content was replaced while the server was running";
    Err(StoreError::Permanent(Unavailable(Reason::new(Cause::Replaced, why))))
}

/// Returns why the file is suspect, if it is, and whether purchases may be missing.
fn suspicion(
    stored: &StoredIdentity,
    recorded: Option<LedgerState>,
    marked: Option<LedgerState>,
    boot: &str,
    found: Option<FileStamp>,
) -> Option<(&'static str, bool)> {
    let Some(LedgerState { nonce, latest_number, closed, must_check }) = recorded else {
        return Some(("its lock file is missing or empty", true));
    };
    if stored.nonce != nonce {
        return Some((OTHER_COPY, true));
    }
    if stored.latest_number < latest_number {
        return Some(("it lacks purchases that were sold", true));
    }
    if marked.is_some_and(|marked| is_older(stored, closed.is_some(), marked)) {
        return Some(("its folder was put back from an earlier time", true));
    }
    if let Some(closed) = closed {
        // A copy from elsewhere: the original may have sold meanwhile.
        if found.is_some_and(|found| found.inode != closed.inode) {
            return Some(("it is a copy", true));
        }
        // A copy of a running server's file, put back, has purchases that have ended since.
        let changed = ("it was written after the last server closed it", stored.has_running);
        return (Some(closed) != found).then_some(changed);
    }
    if boot.is_empty() || stored.boot != boot {
        return Some(("the system went down while it was open", true));
    }
    Some((if must_check { "the last server found a fault" } else { NOT_CLOSED }, false))
}

/// Returns whether the ledger is older than its mark. A mark may be too old: another account of this
/// machine may have had the ledger meanwhile, with a mark of its own.
fn is_older(stored: &StoredIdentity, is_closed: bool, marked: LedgerState) -> bool {
    // A nonce begins with the time of its start.
    stored.nonce < marked.nonce
        || stored.latest_number < marked.latest_number
        || (stored.nonce == marked.nonce && marked.closed.is_some() && !is_closed)
}

fn stored(connection: &Connection) -> rusqlite::Result<Option<StoredIdentity>> {
    let query = format!(
        "SELECT name, nonce, boot, (SELECT coalesce(max(number), 0) FROM purchases),
            EXISTS (SELECT 1 FROM purchases WHERE {IS_RUNNING})
        FROM identity"
    );
    let read = |row: &rusqlite::Row<'_>| {
        Ok(StoredIdentity {
            name: row.get(0)?,
            nonce: row.get(1)?,
            boot: row.get(2)?,
            latest_number: row.get(3)?,
            has_running: row.get(4)?,
        })
    };
    connection.query_row(&query, [], read).optional()
}

fn has_purchases(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM purchases)", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::schema::newest_version;
    use crate::ledger::sqlite::schema;

    fn stored() -> StoredIdentity {
        StoredIdentity {
            name: "durable-0".into(),
            nonce: [1; 16],
            boot: "today".to_owned(),
            latest_number: 7,
            has_running: false,
        }
    }

    #[test]
    fn name_changes_only_when_purchases_may_be_missing() {
        let stamp = |written, inode| Some(FileStamp { size: 4_096, modified: written, inode });
        let (same, other, copy) = (stamp(5, 9), stamp(6, 9), stamp(5, 10));
        let state = |nonce, latest, closed| {
            Some(LedgerState {
                nonce: [nonce; 16],
                latest_number: latest,
                closed,
                must_check: false,
            })
        };
        // The lock, the boot and the file decide whether it is checked, and gets another name.
        for (recorded, boot, found, is_checked, forgets) in [
            (state(1, 7, same), "today", same, false, false),
            (state(1, 7, same), "tomorrow", same, false, false),
            (state(1, 7, same), "tomorrow", other, true, false),
            (state(1, 7, same), "today", copy, true, true),
            (state(1, 7, same), "today", None, true, false),
            (state(1, 7, None), "today", same, true, false),
            (state(1, 6, None), "today", same, true, false),
            (state(1, 7, None), "tomorrow", same, true, true),
            (state(1, 7, None), "", same, true, true),
            (state(1, 8, None), "today", same, true, true),
            (state(1, 8, same), "today", same, true, true),
            (state(2, 7, same), "today", same, true, true),
            (state(2, 7, None), "today", same, true, true),
            (None, "today", same, true, true),
        ] {
            let suspicion = suspicion(&stored(), recorded, None, boot, found);
            let judged = (suspicion.is_some(), suspicion.is_some_and(|(_, forgets)| forgets));
            assert_eq!(judged, (is_checked, forgets), "{recorded:?} {boot} {found:?}");
        }
    }

    #[test]
    fn ledger_that_is_older_than_its_mark_gets_a_new_name() {
        let stamp = Some(FileStamp { size: 4_096, modified: 5, inode: 9 });
        let state = |nonce, latest_number, closed| LedgerState {
            nonce: [nonce; 16],
            latest_number,
            closed,
            must_check: false,
        };
        for (closed, marked, forgets) in [
            (None, state(1, 7, None), false),
            (stamp, state(1, 7, stamp), false),
            (stamp, state(1, 7, None), false),
            (stamp, state(0, 5, stamp), false),
            (None, state(1, 8, None), true),
            (stamp, state(1, 8, stamp), true),
            (None, state(2, 7, None), true),
            (stamp, state(2, 7, None), true),
            (None, state(1, 7, stamp), true),
        ] {
            let recorded = Some(state(1, 7, closed));
            let suspicion = suspicion(&stored(), recorded, Some(marked), "today", stamp);
            let is_forgotten = suspicion.is_some_and(|(_, forgets)| forgets);
            assert_eq!(is_forgotten, forgets, "{closed:?} {marked:?}");
        }
    }

    #[test]
    fn restored_copy_with_running_purchases_gets_a_new_name() {
        let written = |written| Some(FileStamp { size: 4_096, modified: written, inode: 9 });
        let stored = StoredIdentity { has_running: true, ..stored() };
        let recorded = Some(LedgerState {
            nonce: [1; 16],
            latest_number: 7,
            closed: written(5),
            must_check: false,
        });
        let suspicion = suspicion(&stored, recorded, None, "today", written(6));
        assert!(suspicion.is_some_and(|(_, forgets)| forgets));
    }

    #[test]
    fn ledger_that_no_server_had_is_not_suspect() {
        let mut file = Connection::open_in_memory().unwrap();
        schema::migrate(&mut file).unwrap();
        let newest = FileKind::Ledger(newest_version());
        let state =
            LedgerState { nonce: [1; 16], latest_number: 7, closed: None, must_check: false };
        for (kind, recorded, reason) in
            [(newest, None, None), (newest, Some(state), Some(OTHER_COPY))]
        {
            let identity =
                LedgerIdentity::read(&file, kind, (recorded, None), None, Duration::ZERO).unwrap();
            assert_eq!(identity.suspect_reason, reason, "{kind:?}");
        }
    }

    #[test]
    fn ledger_with_purchases_but_no_identity_is_suspect() {
        let mut file = Connection::open_in_memory().unwrap();
        schema::migrate(&mut file).unwrap();
        let newest = FileKind::Ledger(newest_version());
        let sale = "INSERT INTO purchases
            (id, at, day, month, caller, service, model, price_micros, state)
            VALUES (zeroblob(16), 0, 0, 0, 'ann', 'chat', 'm', 0, 'held')";
        file.execute_batch(sale).unwrap();
        let identity =
            LedgerIdentity::read(&file, newest, (None, None), None, Duration::ZERO).unwrap();
        assert_eq!(identity.suspect_reason, Some("its identity is missing"));
    }

    #[test]
    fn missing_boot_id_changes_the_name() {
        let unknown = StoredIdentity { boot: String::new(), ..stored() };
        let recorded =
            Some(LedgerState { nonce: [1; 16], latest_number: 7, closed: None, must_check: false });
        assert!(suspicion(&unknown, recorded, None, "", None).is_some_and(|(_, forgets)| forgets));
    }
}
