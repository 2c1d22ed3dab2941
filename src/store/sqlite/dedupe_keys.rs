//! Finds purchases by their idempotency key.
//!
//! The digests of keys are random, so each new one would change another page of their index. The
//! latest ones wait in memory instead, and are written in the order of the index, several to a page.
//! Each is in the row of its purchase, too, where a start finds those that were waiting.

use std::collections::BTreeMap;
use std::ops::Bound;

use rusqlite::{Connection, params};

use super::Result;
use super::statements::Statements;
use crate::store::Digest;

/// How many keys are written at once: as many as a transaction may add.
const SLICE: usize = 256;
/// A start reads the purchases since the oldest key that waits: so many for each that may wait.
const MAX_AGE: usize = 4;

/// Tells keys apart: the purchase has the whole digest.
type ShortKey = [u8; 16];

/// Only one process lets keys wait. Others find them in the rows of the latest purchases, and write
/// their own at once. Each process changes only what waits in its own memory or is in the index, so
/// both may have an earlier purchase that has given up its key: the row decides.
pub(super) struct DedupeKeys {
    max_waiting: usize,
    may_wait: bool,
    /// The numbers of their purchases.
    waiting: BTreeMap<ShortKey, i64>,
    /// What this transaction has changed in `waiting`.
    changes: Vec<(ShortKey, Option<i64>)>,
    /// All keys are written in turn, from the one after this on.
    last_written: Option<ShortKey>,
    is_overdue: bool,
}

impl DedupeKeys {
    pub(super) fn new(max_waiting: usize) -> Self {
        Self {
            max_waiting,
            may_wait: false,
            waiting: BTreeMap::new(),
            changes: Vec::new(),
            last_written: None,
            is_overdue: false,
        }
    }

    /// Lets keys wait. Requires the ledger's lock.
    pub(super) fn let_wait(&mut self) {
        self.may_wait = true;
    }

    /// Returns what `read` finds under the number of the purchase that may have this key.
    pub(super) fn find<T>(
        &self,
        statements: &Statements<'_>,
        key: &Digest,
        read: impl Fn(i64) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let short = shortened(key);
        let latest = if self.may_wait {
            self.waiting.get(&short).copied()
        } else {
            let later = "SELECT number FROM purchases
                WHERE number > coalesce((SELECT keys_through FROM identity), 0) AND key = ?";
            statements.first(later, [key], |row| row.get(0))?
        };
        if let Some(number) = latest
            && let Some(found) = read(number)?
        {
            return Ok(Some(found));
        }
        let indexed = "SELECT number FROM dedupe_keys WHERE key = ?";
        let indexed = statements.first(indexed, [short], |row| row.get(0))?;
        indexed.map_or(Ok(None), read)
    }

    pub(super) fn add(
        &mut self,
        statements: &Statements<'_>,
        key: &Digest,
        number: i64,
    ) -> Result<()> {
        let key = shortened(key);
        if self.may_wait {
            self.changes.push((key, self.waiting.insert(key, number)));
            return Ok(());
        }
        write(statements, key, number)
    }

    pub(super) fn remove(
        &mut self,
        statements: &Statements<'_>,
        key: &Digest,
        number: i64,
    ) -> Result<()> {
        let key = shortened(key);
        if self.waiting.get(&key) == Some(&number) {
            self.changes.push((key, self.waiting.remove(&key)));
        }
        let remove = "DELETE FROM dedupe_keys WHERE key = ? AND number = ?";
        statements.run(remove, params![key, number])?;
        Ok(())
    }

    /// Whether [`write_next`](Self::write_next) should be called.
    pub(super) fn are_due(&self) -> bool {
        self.waiting.len() > self.max_waiting || self.is_overdue && !self.waiting.is_empty()
    }

    pub(super) fn write_next(&mut self, statements: &Statements<'_>) -> Result<()> {
        let from = self.last_written.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range((from, Bound::Unbounded)).take(SLICE);
        let next: Vec<_> = next.map(|(key, number)| (*key, *number)).collect();
        for (key, number) in &next {
            write(statements, *key, *number)?;
            self.changes.push((*key, self.waiting.remove(key)));
        }
        self.last_written = next.get(SLICE - 1).map(|(key, _)| *key);
        Ok(())
    }

    /// Records up to which purchase the index has all keys. `latest` is the last purchase.
    pub(super) fn advance(&mut self, statements: &Statements<'_>, latest: i64) -> Result<()> {
        if !self.may_wait {
            return Ok(());
        }
        let complete = self.waiting.values().min().map_or(latest, |oldest| oldest - 1);
        let age = usize::try_from(latest - complete).unwrap_or(usize::MAX);
        self.is_overdue = age > self.max_waiting.saturating_mul(MAX_AGE);
        statements.run("UPDATE identity SET keys_through = ?", [complete])?;
        Ok(())
    }

    /// Writes the keys that were waiting when the last server ended.
    pub(super) fn recover(&mut self, connection: &Connection) -> Result<()> {
        connection.execute(
            "INSERT INTO dedupe_keys (key, number)
             SELECT substr(key, 1, 16), number FROM purchases
             WHERE number > coalesce((SELECT keys_through FROM identity), 0) AND key IS NOT NULL
             ORDER BY 1
             ON CONFLICT DO UPDATE SET number = excluded.number WHERE excluded.number > number",
            [],
        )?;
        self.clear();
        self.let_wait();
        Ok(())
    }

    pub(super) fn committed(&mut self) {
        self.changes.clear();
    }

    pub(super) fn rolled_back(&mut self) {
        for (key, number) in self.changes.drain(..).rev() {
            match number {
                Some(number) => self.waiting.insert(key, number),
                None => self.waiting.remove(&key),
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

/// An earlier purchase has given up the key.
fn write(statements: &Statements<'_>, key: ShortKey, number: i64) -> Result<()> {
    let write = "INSERT INTO dedupe_keys (key, number) VALUES (?, ?)
        ON CONFLICT DO UPDATE SET number = excluded.number WHERE excluded.number > number";
    statements.run(write, params![key, number])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::schema;

    const MAX_WAITING: usize = 1_000;

    fn file() -> Connection {
        let mut file = Connection::open_in_memory().unwrap();
        schema::migrate(&mut file).unwrap();
        file.execute("INSERT INTO identity VALUES (1, 'ledger', zeroblob(16), '', 0, 0)", [])
            .unwrap();
        file
    }

    fn waiting() -> DedupeKeys {
        let mut keys = DedupeKeys::new(MAX_WAITING);
        keys.let_wait();
        keys
    }

    /// The key of a purchase. Those of later purchases are not larger.
    fn key(number: i64) -> Digest {
        *blake3::hash(&number.to_be_bytes()).as_bytes()
    }

    fn find(keys: &DedupeKeys, statements: &Statements<'_>, number: i64) -> Option<i64> {
        keys.find(statements, &key(number), |found| Ok(Some(found))).unwrap()
    }

    fn keys_through(file: &Connection) -> i64 {
        file.query_row("SELECT keys_through FROM identity", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn index_is_complete_as_recorded_after_each_transaction() {
        let file = file();
        let statements = Statements::new(&file);
        let (mut keys, mut latest) = (waiting(), 0);
        for transaction in 0..3_000 {
            file.execute_batch("BEGIN").unwrap();
            let added = latest + 1..=latest + 1 + transaction % 9;
            for number in added.clone() {
                keys.add(&statements, &key(number), number).unwrap();
            }
            if keys.are_due() {
                keys.write_next(&statements).unwrap();
            }
            keys.advance(&statements, *added.end()).unwrap();
            if transaction % 5 == 0 {
                file.execute_batch("ROLLBACK").unwrap();
                keys.rolled_back();
                assert_eq!(find(&keys, &statements, latest + 1), None);
            } else {
                file.execute_batch("COMMIT").unwrap();
                keys.committed();
                latest = *added.end();
            }
            assert!(keys.waiting.len() <= MAX_WAITING + 9, "{} wait", keys.waiting.len());
            let through = keys_through(&file);
            let oldest = keys.waiting.values().min().copied().unwrap_or(i64::MAX);
            assert!(through < oldest, "{oldest} is not in the index through {through}");
            assert!(latest - through < 6 * 1_000, "{through} of {latest}");
            let count = "SELECT count(*) FROM dedupe_keys";
            let written: usize = file.query_row(count, [], |row| row.get(0)).unwrap();
            assert_eq!(i64::try_from(written + keys.waiting.len()).unwrap(), latest);
        }
        for number in 1..=latest {
            assert_eq!(find(&keys, &statements, number), Some(number));
        }
    }

    #[test]
    fn few_keys_among_many_purchases_do_not_wait_for_ever() {
        let file = file();
        let statements = Statements::new(&file);
        let mut keys = waiting();
        keys.advance(&statements, 50_000).unwrap();
        assert_eq!(keys_through(&file), 50_000, "without a key");
        keys.add(&statements, &key(50_001), 50_001).unwrap();
        for (latest, is_due) in [(54_000, false), (54_001, true)] {
            keys.advance(&statements, latest).unwrap();
            assert_eq!((keys_through(&file), keys.are_due()), (50_000, is_due));
        }
        keys.write_next(&statements).unwrap();
        keys.advance(&statements, 54_002).unwrap();
        assert_eq!((keys_through(&file), keys.are_due()), (54_002, false));
    }

    #[test]
    fn rollback_restores_the_purchase_that_gave_up_its_key() {
        let file = file();
        let statements = Statements::new(&file);
        let mut keys = waiting();
        keys.add(&statements, &key(1), 1).unwrap();
        keys.committed();
        keys.remove(&statements, &key(1), 1).unwrap();
        keys.add(&statements, &key(1), 2).unwrap();
        assert_eq!(find(&keys, &statements, 1), Some(2));
        keys.rolled_back();
        assert_eq!(find(&keys, &statements, 1), Some(1));
        keys.remove(&statements, &key(1), 2).unwrap();
        assert_eq!(find(&keys, &statements, 1), Some(1), "not of this purchase");
    }
}
