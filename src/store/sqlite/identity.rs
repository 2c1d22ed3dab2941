//! Says which ledger a file is: its public name, which changes whenever purchases may have been forgotten.
//!
//! Each start writes a new nonce into the file and into the lock file beside it. The lock file also keeps the number
//! of the latest purchase, and, after a clean end, the size and time of the file. Another file under the same path,
//! or an earlier copy of this one, disagrees with the lock file, and gets another name. A power cut can forget
//! purchases too, so the file has the boot id of its last start.
//!
//! Invariant: a file keeps its name only if it has every purchase that was ever sold under it. What cannot be told
//! gets another name, which costs callers no more than a question.

use std::fs;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Fault;
use super::schema::Kind;
use crate::store::Unavailable;

/// Another one for each boot of the system.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The first version that has the table `identity`.
const SINCE: i64 = 4;

/// Random bytes that a start of a server is known by.
pub(super) type Nonce = [u8; 16];

/// A file as it lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// In bytes.
    pub(super) size: u64,
    /// When it was last written, in nanoseconds since 1970-01-01 UTC.
    pub(super) written: i64,
    /// Another one for each copy of the file.
    pub(super) inode: u64,
}

/// What the lock file says of the ledger beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Of the last start.
    pub(super) nonce: Nonce,
    /// The number of the latest purchase that was set aside.
    pub(super) latest: i64,
    /// The file as the last server closed it; none while one has it, and after a crash.
    pub(super) closed: Option<Stamp>,
}

/// What the file says of itself.
#[derive(Clone, Debug)]
struct Stored {
    name: Arc<str>,
    nonce: Nonce,
    boot: String,
    latest: i64,
    /// Whether a purchase in it has not ended.
    is_under_way: bool,
}

/// The ledger as a new server takes it over.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    /// Public.
    pub(super) name: Arc<str>,
    /// Of this start, and the latest purchase.
    pub(super) mark: Mark,
    /// Why the whole file has to be checked, if it has to.
    pub(super) doubt: Option<&'static str>,
    /// Whether purchases may be missing that an earlier server sold.
    pub(super) forgets: bool,
    boot: String,
}

impl Identity {
    /// Who the file is, now that a new server has its lock, which says `marked`. `found` is the file before it
    /// was opened, where it has no write-ahead log. Nothing is written yet.
    pub(super) fn of(
        connection: &Connection,
        kind: Kind,
        marked: Option<Mark>,
        found: Option<Stamp>,
    ) -> Result<Self, String> {
        let stored = stored(connection, kind).map_err(|error| error.to_string())?;
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        let latest = stored.as_ref().map_or(0, |stored| stored.latest);
        let mark = Mark { nonce: random()?, latest, closed: None };
        let new_name = || random::<8>().map(|bytes| format!("durable-{}", hex(&bytes)).into());
        let (name, doubt, forgets) = match (stored, marked) {
            (None, _) if kind == Kind::Empty => (new_name()?, None, false),
            (None, _) => (new_name()?, Some("no server of this version has had it"), false),
            (Some(stored), marked) => {
                let doubt = doubt(&stored, marked, &boot, found);
                let forgets = doubt.is_some_and(|doubt| doubt.forgets);
                let name = if forgets { new_name()? } else { stored.name };
                (name, doubt.map(|doubt| doubt.why), forgets)
            }
        };
        Ok(Self { name, mark, doubt, forgets, boot })
    }

    /// Notes in the file that this server has it.
    pub(super) fn open(&self, connection: &Connection) -> Result<(), Fault> {
        connection.execute(
            "INSERT OR REPLACE INTO identity (number, name, nonce, boot) VALUES (1, ?, ?, ?)",
            params![self.name, self.mark.nonce, self.boot],
        )?;
        Ok(())
    }
}

/// Refuses a file whose content was exchanged under the server that has it.
pub(super) fn must_be(connection: &Connection, nonce: &Nonce) -> Result<(), Fault> {
    let query = "SELECT nonce = ? FROM identity";
    let is_same: Option<bool> =
        connection.query_row(query, [nonce], |row| row.get(0)).optional()?;
    if is_same == Some(true) {
        return Ok(());
    }
    Err(Fault::Lasting(Unavailable("the ledger's content was replaced under the server".into())))
}

/// Why a file is not simply the one that the last server closed.
#[derive(Clone, Copy)]
struct Doubt {
    why: &'static str,
    /// Whether purchases may be missing.
    forgets: bool,
}

fn doubt(stored: &Stored, marked: Option<Mark>, boot: &str, found: Option<Stamp>) -> Option<Doubt> {
    let Some(Mark { nonce, latest, closed }) = marked else {
        return Some(Doubt { why: "its lock file is not there, or is empty", forgets: true });
    };
    if stored.nonce != nonce {
        return Some(Doubt { why: "its lock file belongs to another copy", forgets: true });
    }
    if stored.latest < latest {
        return Some(Doubt { why: "it lacks purchases that were sold", forgets: true });
    }
    if let Some(closed) = closed {
        // A copy that lies elsewhere, or was put back: the original may have sold meanwhile.
        if found.is_some_and(|found| found.inode != closed.inode) {
            return Some(Doubt {
                why: "it is a copy of what the last server closed",
                forgets: true,
            });
        }
        let why = "it was written after the last server closed it";
        // A copy of a running server's file, put back, has purchases under way that have ended since.
        let forgets = stored.is_under_way;
        return (Some(closed) != found).then_some(Doubt { why, forgets });
    }
    if boot.is_empty() || stored.boot != boot {
        return Some(Doubt { why: "the system went down while it was open", forgets: true });
    }
    Some(Doubt { why: "it was not closed", forgets: false })
}

fn stored(connection: &Connection, kind: Kind) -> rusqlite::Result<Option<Stored>> {
    if !matches!(kind, Kind::Ledger(version) if version >= SINCE) {
        return Ok(None);
    }
    let query = "SELECT name, nonce, boot, (SELECT coalesce(max(number), 0) FROM purchases),
            EXISTS (SELECT 1 FROM purchases WHERE ended_at IS NULL)
        FROM identity";
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Stored {
            name: row.get(0)?,
            nonce: row.get(1)?,
            boot: row.get(2)?,
            latest: row.get(3)?,
            is_under_way: row.get(4)?,
        })
    };
    connection.query_row(query, [], read).optional()
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Stored {
        Stored {
            name: "durable-0".into(),
            nonce: [1; 16],
            boot: "today".to_owned(),
            latest: 7,
            is_under_way: false,
        }
    }

    #[test]
    fn name_changes_only_when_purchases_may_be_missing() {
        let stamp = |written, inode| Some(Stamp { size: 4_096, written, inode });
        let (same, other, copy) = (stamp(5, 9), stamp(6, 9), stamp(5, 10));
        let mark = |nonce, latest, closed| Some(Mark { nonce: [nonce; 16], latest, closed });
        // What the lock says, the boot, the file: whether it is checked, and gets another name.
        for (marked, boot, found, is_checked, forgets) in [
            (mark(1, 7, same), "today", same, false, false),
            (mark(1, 7, same), "tomorrow", same, false, false),
            (mark(1, 7, same), "tomorrow", other, true, false),
            (mark(1, 7, same), "today", copy, true, true),
            (mark(1, 7, same), "today", None, true, false),
            (mark(1, 7, None), "today", same, true, false),
            (mark(1, 6, None), "today", same, true, false),
            (mark(1, 7, None), "tomorrow", same, true, true),
            (mark(1, 7, None), "", same, true, true),
            (mark(1, 8, None), "today", same, true, true),
            (mark(1, 8, same), "today", same, true, true),
            (mark(2, 7, same), "today", same, true, true),
            (mark(2, 7, None), "today", same, true, true),
            (None, "today", same, true, true),
        ] {
            let doubt = doubt(&stored(), marked, boot, found);
            let judged = (doubt.is_some(), doubt.is_some_and(|doubt| doubt.forgets));
            assert_eq!(judged, (is_checked, forgets), "{marked:?} {boot} {found:?}");
        }
    }

    #[test]
    fn copy_with_purchases_under_way_that_was_put_back_gets_another_name() {
        let written = |written| Some(Stamp { size: 4_096, written, inode: 9 });
        let stored = Stored { is_under_way: true, ..stored() };
        let marked = Some(Mark { nonce: [1; 16], latest: 7, closed: written(5) });
        assert!(doubt(&stored, marked, "today", written(6)).is_some_and(|doubt| doubt.forgets));
    }

    #[test]
    fn name_is_never_kept_without_a_boot_id() {
        let unknown = Stored { boot: String::new(), ..stored() };
        let marked = Some(Mark { nonce: [1; 16], latest: 7, closed: None });
        assert!(doubt(&unknown, marked, "", None).is_some_and(|doubt| doubt.forgets));
    }
}
