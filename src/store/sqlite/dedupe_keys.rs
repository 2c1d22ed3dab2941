//! Finds purchases by their idempotency key.
//!
//! The digests of keys are random, so each new one would change another page of its index. The latest
//! ones wait in memory instead, and are written in the order of the index, several to a page. Each
//! is in the row of its purchase, too, where a start finds those that were waiting.

use std::collections::BTreeMap;
use std::ops::Bound;

use rusqlite::{Connection, params};

use super::Result;
use super::statements::Statements;
use super::tracked::Tracked;
use crate::store::Digest;

/// How many keys a transaction writes at most.
const MAX_WRITTEN: usize = 64;

/// Enough to tell keys apart: the purchase has the whole digest.
type ShortKey = [u8; 16];

pub(super) struct DedupeKeys {
    max_waiting: usize,
    /// Whether keys may wait: no other process sells from this ledger.
    may_wait: bool,
    /// Their purchases' numbers.
    waiting: BTreeMap<ShortKey, i64>,
    /// What this transaction has changed in `waiting`.
    changes: Vec<(ShortKey, Option<i64>)>,
    round: Tracked<Round>,
}

/// A walk over all keys that wait, in their order.
#[derive(Clone, Copy, Default)]
struct Round {
    last_written: Option<ShortKey>,
    /// At the end of the round, the index has all purchases up to this one.
    complete_through: i64,
}

impl DedupeKeys {
    pub(super) fn new(max_waiting: usize) -> Self {
        Self {
            max_waiting,
            may_wait: false,
            waiting: BTreeMap::new(),
            changes: Vec::new(),
            round: Tracked::default(),
        }
    }

    /// Lets keys wait. Requires that no other process sells from this ledger.
    pub(super) fn let_wait(&mut self) {
        self.may_wait = true;
    }

    /// Returns the number of the purchase that has or had this key.
    pub(super) fn find(&self, statements: &Statements<'_>, key: &Digest) -> Result<Option<i64>> {
        let key = shortened(key);
        if let Some(number) = self.waiting.get(&key) {
            return Ok(Some(*number));
        }
        let indexed = "SELECT number FROM dedupe_keys WHERE key = ?";
        let indexed = statements.first(indexed, [key], |row| row.get(0))?;
        if indexed.is_some() || self.may_wait {
            return Ok(indexed);
        }
        // It may wait in another process.
        let later = "SELECT number FROM purchases
            WHERE number > coalesce((SELECT keys_through FROM identity), 0)
                AND substr(key, 1, 16) = ?";
        Ok(statements.first(later, [key], |row| row.get(0))?)
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

    /// Writes the next keys if too many wait.
    pub(super) fn write_next(&mut self, statements: &Statements<'_>) -> Result<()> {
        if self.waiting.len() <= self.max_waiting {
            return Ok(());
        }
        let mut round = self.round.get();
        let from = match round.last_written {
            Some(last) => Bound::Excluded(last),
            None => {
                // Keys that come during the round have later purchases.
                round.complete_through = self.waiting.values().copied().max().unwrap_or_default();
                Bound::Unbounded
            }
        };
        let next = self.waiting.range((from, Bound::Unbounded)).take(MAX_WRITTEN);
        let next: Vec<_> = next.map(|(key, number)| (*key, *number)).collect();
        for (key, number) in &next {
            write(statements, *key, *number)?;
            self.changes.push((*key, self.waiting.remove(key)));
        }
        round.last_written = next.get(MAX_WRITTEN - 1).map(|(key, _)| *key);
        if round.last_written.is_none() {
            let through = "UPDATE identity SET keys_through = ?";
            statements.run(through, [round.complete_through])?;
        }
        self.round.set(round);
        Ok(())
    }

    /// Writes the keys that were waiting when the last server ended.
    pub(super) fn recover(&mut self, connection: &Connection) -> Result<()> {
        connection.execute(
            "INSERT OR REPLACE INTO dedupe_keys (key, number)
             SELECT substr(key, 1, 16), number FROM purchases
             WHERE number > coalesce((SELECT keys_through FROM identity), 0) AND key IS NOT NULL
             ORDER BY 1",
            [],
        )?;
        let through =
            "UPDATE identity SET keys_through = (SELECT coalesce(max(number), 0) FROM purchases)";
        connection.execute(through, [])?;
        self.clear();
        self.let_wait();
        Ok(())
    }

    pub(super) fn committed(&mut self) {
        self.changes.clear();
        self.round.commit();
    }

    pub(super) fn rolled_back(&mut self) {
        for (key, number) in self.changes.drain(..).rev() {
            match number {
                Some(number) => self.waiting.insert(key, number),
                None => self.waiting.remove(&key),
            };
        }
        self.round.roll_back();
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.changes.clear();
        self.round = Tracked::default();
    }
}

fn shortened(key: &Digest) -> ShortKey {
    std::array::from_fn(|at| key[at])
}

fn write(statements: &Statements<'_>, key: ShortKey, number: i64) -> Result<()> {
    let write = "INSERT OR REPLACE INTO dedupe_keys (key, number) VALUES (?, ?)";
    statements.run(write, params![key, number])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, Row};

    use super::*;
    use crate::store::sqlite::schema;

    const MAX_WAITING: usize = 100;

    fn file() -> Connection {
        let mut file = Connection::open_in_memory().unwrap();
        schema::migrate(&mut file).unwrap();
        file.execute("INSERT INTO identity VALUES (1, 'ledger', zeroblob(16), '', 0, 0)", [])
            .unwrap();
        file
    }

    /// The key of a purchase. Later purchases have no larger ones.
    fn key(number: i64) -> Digest {
        *blake3::hash(&number.to_be_bytes()).as_bytes()
    }

    #[test]
    fn crash_after_any_transaction_loses_no_key() {
        let file = file();
        let statements = Statements::new(&file);
        let mut keys = DedupeKeys::new(MAX_WAITING);
        keys.let_wait();
        let (mut latest, mut rounds) = (0, 0);
        for transaction in 0..2_000 {
            file.execute_batch("BEGIN").unwrap();
            let added = latest + 1..=latest + 1 + transaction % 3;
            for number in added.clone() {
                keys.add(&statements, &key(number), number).unwrap();
            }
            keys.write_next(&statements).unwrap();
            if transaction % 5 == 0 {
                file.execute_batch("ROLLBACK").unwrap();
                keys.rolled_back();
                assert_eq!(keys.find(&statements, &key(latest + 1)).unwrap(), None);
            } else {
                file.execute_batch("COMMIT").unwrap();
                keys.committed();
                latest = *added.end();
            }
            assert!(keys.waiting.len() <= MAX_WAITING + 3, "{} wait", keys.waiting.len());
            let through = "SELECT keys_through, (SELECT count(*) FROM dedupe_keys) FROM identity";
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let (through, written): (i64, usize) = file.query_row(through, [], read).unwrap();
            rounds = rounds.max(through);
            let first = keys.waiting.values().min().copied().unwrap_or(i64::MAX);
            assert!(through < first, "{first} is not in the index through {through}");
            assert_eq!(i64::try_from(written + keys.waiting.len()).unwrap(), latest);
        }
        assert!(rounds > latest - 5 * 100, "the index is complete through {rounds} of {latest}");
        for number in 1..=latest {
            assert_eq!(keys.find(&statements, &key(number)).unwrap(), Some(number));
        }
    }

    #[test]
    fn rollback_restores_the_purchase_that_gave_up_its_key() {
        let file = file();
        let statements = Statements::new(&file);
        let mut keys = DedupeKeys::new(MAX_WAITING);
        keys.let_wait();
        keys.add(&statements, &key(1), 1).unwrap();
        keys.committed();
        keys.remove(&statements, &key(1), 1).unwrap();
        keys.add(&statements, &key(1), 2).unwrap();
        assert_eq!(keys.find(&statements, &key(1)).unwrap(), Some(2));
        keys.rolled_back();
        assert_eq!(keys.find(&statements, &key(1)).unwrap(), Some(1));
        keys.remove(&statements, &key(1), 2).unwrap();
        assert_eq!(keys.find(&statements, &key(1)).unwrap(), Some(1), "of an earlier purchase");
    }
}
