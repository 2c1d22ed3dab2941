//! Finds purchases by their dedupe key: the digest of an idempotency key, or a fingerprint.
//!
//! Both are random, so each new one would change another page of their index. The latest ones wait
//! in memory instead, and are written in the order of the index, several to a page. Each is in the row
//! of its purchase, too, where a start finds those that were waiting.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

use super::Result;
use crate::store::Digest;
use crate::store::engine::{Engine, Row, Sql, params};

/// How many keys are written at once: as many as a transaction may add.
const SLICE: usize = 256;

/// A start reads the purchases since the oldest key that waits: so many for each that may wait.
const MAX_AGE: i64 = 4;

/// The first half of a digest. The row of the purchase has all of it.
type ShortKey = [u8; 16];

/// A key, and the number of a purchase that has or had it.
type Entry = (ShortKey, i64);

/// The latest indexed purchase with a key before another one.
const INDEXED: &str = "SELECT number FROM dedupe_keys WHERE key = ?1 AND number < ?2
    ORDER BY number DESC LIMIT 1";
/// The same, for a process that does not know what waits in another one.
const INDEXED_OR_WAITING: &str = "SELECT number FROM (
        SELECT number FROM dedupe_keys WHERE key = ?1 AND number < ?2
        UNION ALL
        SELECT number FROM purchase_keys
        WHERE number > coalesce((SELECT keys_through FROM identity), 0) AND number < ?2
            AND key = ?1)
    ORDER BY number DESC LIMIT 1";

/// Only one process lets keys wait, the server. Others write theirs at once.
pub(super) struct DedupeKeys {
    max_waiting: usize,
    may_wait: bool,
    waiting: BTreeSet<Entry>,
    /// Entries that this transaction has added to `waiting` or removed from it.
    changes: Vec<(Entry, Change)>,
    /// All keys are written in turn, from the one after this on.
    last_written: Option<Entry>,
    is_overdue: bool,
}

#[derive(Clone, Copy)]
enum Change {
    Added,
    Removed,
}

impl DedupeKeys {
    pub(super) fn new(max_waiting: usize) -> Self {
        Self {
            max_waiting,
            may_wait: false,
            waiting: BTreeSet::new(),
            changes: Vec::new(),
            last_written: None,
            is_overdue: false,
        }
    }

    /// Lets keys wait. Requires that no other process does.
    pub(super) fn let_wait(&mut self) {
        self.may_wait = true;
    }

    /// Calls `read` with the purchases that may have this key until it breaks: the latest first, except
    /// that those of other processes come after all that wait.
    pub(super) fn search<T>(
        &self,
        db: &dyn Engine,
        key: &Digest,
        mut read: impl FnMut(i64) -> Result<ControlFlow<T>>,
    ) -> Result<Option<T>> {
        let key = shortened(key);
        for (_, number) in self.waiting.range((key, i64::MIN)..=(key, i64::MAX)).rev() {
            if let ControlFlow::Break(found) = read(*number)? {
                return Ok(Some(found));
            }
        }
        let next = if self.may_wait { INDEXED } else { INDEXED_OR_WAITING };
        let mut last = i64::MAX;
        while let Some(number) = db.first(next, params![key, last], |row| row.get(0))? {
            if let ControlFlow::Break(found) = read(number)? {
                return Ok(Some(found));
            }
            last = number;
        }
        Ok(None)
    }

    pub(super) fn add(&mut self, db: &dyn Engine, (key, number): (&Digest, i64)) -> Result<()> {
        let entry = (shortened(key), number);
        if !self.may_wait {
            return write(db, entry);
        }
        self.waiting.insert(entry);
        self.changes.push((entry, Change::Added));
        Ok(())
    }

    pub(super) fn remove(&mut self, db: &dyn Engine, (key, number): (&Digest, i64)) -> Result<()> {
        let entry = (shortened(key), number);
        if self.waiting.remove(&entry) {
            self.changes.push((entry, Change::Removed));
        }
        let remove = "DELETE FROM dedupe_keys WHERE key = ? AND number = ?";
        db.run(remove, params![entry.0, entry.1])?;
        Ok(())
    }

    /// Whether [`write_next`](Self::write_next) should be called.
    pub(super) fn are_due(&self) -> bool {
        self.waiting.len() > self.max_waiting || self.is_overdue && !self.waiting.is_empty()
    }

    pub(super) fn write_next(&mut self, db: &dyn Engine) -> Result<()> {
        let from = self.last_written.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range((from, Bound::Unbounded)).take(SLICE);
        let next: Vec<_> = next.copied().collect();
        for entry in &next {
            write(db, *entry)?;
            self.waiting.remove(entry);
            self.changes.push((*entry, Change::Removed));
        }
        self.last_written = next.get(SLICE - 1).copied();
        Ok(())
    }

    /// Records up to which purchase the index has all keys. `latest` is the last one, and its key was
    /// added.
    pub(super) fn advance(&mut self, db: &dyn Engine, latest: i64) -> Result<()> {
        if !self.may_wait {
            return Ok(());
        }
        let oldest = self.waiting.iter().map(|(_, number)| *number).min();
        let complete = oldest.map_or(latest, |oldest| oldest - 1);
        self.is_overdue = latest - complete > self.max_age();
        db.run("UPDATE identity SET keys_through = ?", [complete])?;
        Ok(())
    }

    fn max_age(&self) -> i64 {
        i64::try_from(self.max_waiting).unwrap_or(i64::MAX).saturating_mul(MAX_AGE)
    }

    /// Lets the keys wait that were waiting when the last server ended. Those of many purchases, after
    /// a migration for example, are written at once.
    pub(super) fn recover(&mut self, db: &dyn Engine) -> Result<()> {
        self.clear();
        self.let_wait();
        let through = "SELECT coalesce((SELECT keys_through FROM identity), 0),
            coalesce((SELECT max(number) FROM purchases), 0)";
        let (through, latest): (i64, i64) =
            db.one(through, (), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let later = "SELECT key, number FROM purchase_keys WHERE number > ?";
        if latest - through <= self.max_age() {
            let entry = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            self.waiting = db.all(later, [through], entry)?.into_iter().collect();
            return Ok(());
        }
        let write =
            format!("INSERT OR IGNORE INTO dedupe_keys (key, number) {later} ORDER BY 1, 2");
        db.run(&write, [through])?;
        db.run("UPDATE identity SET keys_through = ?", [latest])?;
        Ok(())
    }

    pub(super) fn committed(&mut self) {
        self.changes.clear();
    }

    pub(super) fn rolled_back(&mut self) {
        for (entry, change) in self.changes.drain(..).rev() {
            match change {
                Change::Added => self.waiting.remove(&entry),
                Change::Removed => self.waiting.insert(entry),
            };
        }
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.changes.clear();
    }
}

fn shortened(key: &Digest) -> ShortKey {
    std::array::from_fn(|at| key[at])
}

fn write(db: &dyn Engine, entry: Entry) -> Result<()> {
    let write = "INSERT OR IGNORE INTO dedupe_keys (key, number) VALUES (?, ?)";
    db.run(write, params![entry.0, entry.1])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::store::sqlite::engine::SqliteEngine;
    use crate::store::sqlite::schema;

    const MAX_WAITING: usize = 1_000;

    fn file() -> SqliteEngine {
        let mut file = Connection::open_in_memory().unwrap();
        schema::migrate(&mut file).unwrap();
        file.execute("INSERT INTO identity VALUES (1, 'ledger', zeroblob(16), '', 0, 0)", [])
            .unwrap();
        SqliteEngine { connection: file }
    }

    fn waiting() -> DedupeKeys {
        let mut keys = DedupeKeys::new(MAX_WAITING);
        keys.let_wait();
        keys
    }

    /// The key of a purchase. A later one need not be larger.
    fn key(number: i64) -> Digest {
        *blake3::hash(&number.to_be_bytes()).as_bytes()
    }

    fn latest(keys: &DedupeKeys, db: &dyn Engine, key: &Digest) -> Option<i64> {
        keys.search(db, key, |number| Ok(ControlFlow::Break(number))).unwrap()
    }

    #[test]
    fn index_is_complete_as_recorded_after_each_transaction() {
        let file = file();
        let (mut keys, mut last) = (waiting(), 0);
        for transaction in 0..3_000 {
            file.run("BEGIN", ()).unwrap();
            let added = last + 1..=last + 1 + transaction % 9;
            for number in added.clone() {
                keys.add(&file, (&key(number), number)).unwrap();
            }
            if keys.are_due() {
                keys.write_next(&file).unwrap();
            }
            keys.advance(&file, *added.end()).unwrap();
            if transaction % 50 == 0 {
                file.run("ROLLBACK", ()).unwrap();
                keys.rolled_back();
                assert_eq!(latest(&keys, &file, &key(last + 1)), None);
            } else {
                file.run("COMMIT", ()).unwrap();
                keys.committed();
                last = *added.end();
            }
            assert!(keys.waiting.len() <= MAX_WAITING + 9, "{} wait", keys.waiting.len());
            let state = "SELECT keys_through, (SELECT count(*) FROM dedupe_keys) FROM identity";
            let (through, written): (i64, usize) =
                file.one(state, (), |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            let oldest = keys.waiting.iter().map(|(_, number)| *number).min().unwrap_or(i64::MAX);
            assert!(through < oldest, "{oldest} is not in the index through {through}");
            // A start reads four times as many purchases as keys may wait.
            assert!(last - through < 4 * 1_000, "{through} of {last}");
            assert_eq!(i64::try_from(written + keys.waiting.len()).unwrap(), last);
        }
        for number in 1..=last {
            assert_eq!(latest(&keys, &file, &key(number)), Some(number));
        }
    }

    #[test]
    fn few_keys_among_many_purchases_do_not_wait_for_ever() {
        let file = file();
        let mut keys = waiting();
        let through = || -> i64 {
            file.one("SELECT keys_through FROM identity", (), |row| row.get(0)).unwrap()
        };
        keys.advance(&file, 50_000).unwrap();
        assert_eq!(through(), 50_000, "none waits");
        keys.add(&file, (&key(50_001), 50_001)).unwrap();
        for (last, is_due) in [(54_000, false), (54_001, true)] {
            keys.advance(&file, last).unwrap();
            assert_eq!((through(), keys.are_due()), (50_000, is_due));
        }
        keys.write_next(&file).unwrap();
        keys.advance(&file, 54_002).unwrap();
        assert_eq!((through(), keys.are_due()), (54_002, false));
    }

    #[test]
    fn all_purchases_of_a_key_are_found_latest_first_wherever_they_are() {
        let file = file();
        let mut keys = waiting();
        let numbers = |keys: &DedupeKeys| {
            let mut found = Vec::new();
            let note = |number| {
                found.push(number);
                Ok(ControlFlow::<()>::Continue(()))
            };
            keys.search(&file, &key(0), note).unwrap();
            found
        };
        for number in [3, 4] {
            keys.add(&file, (&key(0), number)).unwrap();
        }
        keys.write_next(&file).unwrap();
        keys.add(&file, (&key(1), 5)).unwrap();
        keys.committed();
        for number in [6, 7] {
            keys.add(&file, (&key(0), number)).unwrap();
        }
        assert_eq!(numbers(&keys), [7, 6, 4, 3]);
        keys.rolled_back();
        assert_eq!(numbers(&keys), [4, 3]);
        keys.remove(&file, (&key(0), 4)).unwrap();
        assert_eq!(numbers(&keys), [3]);
        keys.remove(&file, (&key(1), 5)).unwrap();
        assert_eq!(latest(&keys, &file, &key(1)), None);
        keys.rolled_back();
        assert_eq!(latest(&keys, &file, &key(1)), Some(5));
    }
}
