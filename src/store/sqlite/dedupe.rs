//! Finds the purchase that a retry repeats.

use std::time::Duration;

use rusqlite::{Row, params};

use super::Result;
use super::column::{self, Sql, nanos};
use super::ledger::Ledger;
use super::statements::Statements;
use crate::store::rules;
use crate::store::{Digest, DuplicateCheck, ExistingPurchase, ReserveError};

impl Ledger {
    /// Returns the expired purchase that has to give up the key, if there is one.
    pub(super) fn find_by_key(
        statements: &Statements<'_>,
        key: &Digest,
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let find = "SELECT number, id, state, coalesce(cost_micros, price_micros), keep_until,
                (SELECT length(body) FROM replies WHERE replies.number = purchases.number), payload
            FROM purchases WHERE key = ?";
        let found = |row: &Row<'_>| Ok((FoundPurchase::read(row, now)?, row.get(6)?));
        let found: Option<(FoundPurchase, Digest)> = statements.first(find, [key], found)?;
        let Some((found, first)) = found else { return Ok(Ok(None)) };
        Ok(if found.is_expired {
            Ok(Some(found.number))
        } else if first != *payload {
            Err(ReserveError::KeyReused)
        } else {
            Err(ReserveError::Duplicate(found.purchase))
        })
    }

    /// Like [`find_by_key`](Self::find_by_key), but a purchase with one of the `others` counts, too.
    pub(super) fn find_by_quote(
        statements: &Statements<'_>,
        (key, others): (&Digest, &[Digest]),
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let own = Self::find_by_key(statements, key, payload, now)?;
        for other in others.iter().filter(|_| own.is_ok()) {
            if let Err(found) = Self::find_by_key(statements, other, payload, now)? {
                return Ok(Err(found));
            }
        }
        Ok(own)
    }

    pub(super) fn find_duplicate(
        &self,
        statements: &Statements<'_>,
        duplicate: &DuplicateCheck,
        now: Duration,
    ) -> Result<Option<ReserveError>> {
        let running = "SELECT number, id, state, price_micros, keep_until, NULL FROM purchases
            WHERE fingerprint = ? AND ended_at IS NULL";
        let read = |row: &Row<'_>| FoundPurchase::read(row, now);
        if let Some(found) = statements.first(running, [duplicate.fingerprint], read)? {
            return Ok(Some(ReserveError::Duplicate(found.purchase)));
        }
        let mut ended = self.connection.prepare_cached(
            "SELECT number, id, state, coalesce(cost_micros, price_micros), keep_until,
                (SELECT length(body) FROM replies WHERE replies.number = purchases.number),
                ended_at, delivered
             FROM purchases WHERE fingerprint = ? AND ended_at BETWEEN ? AND ?
             ORDER BY ended_at DESC, number DESC",
        )?;
        let (since, until) =
            (now.saturating_sub(duplicate.within), now.saturating_add(duplicate.clock_skew));
        let mut ended = ended.query(params![duplicate.fingerprint, nanos(since), nanos(until)])?;
        while let Some(row) = ended.next()? {
            let FoundPurchase { purchase, .. } = read(row)?;
            let end = (purchase.state, column::moment(row, 6)?, row.get(7)?);
            if rules::is_duplicate(duplicate, end) {
                return Ok(Some(ReserveError::Duplicate(purchase)));
            }
        }
        Ok(None)
    }

    pub(super) fn clear_dedupe_key(&self, number: i64) -> Result<()> {
        let clear =
            "UPDATE purchases SET key = NULL, payload = NULL, fingerprint = NULL WHERE number = ?";
        self.connection.run(clear, [number])?;
        Ok(())
    }
}

/// An earlier purchase with the same key or fingerprint.
struct FoundPurchase {
    number: i64,
    purchase: ExistingPurchase,
    is_expired: bool,
}

impl FoundPurchase {
    fn read(row: &Row<'_>, now: Duration) -> rusqlite::Result<Self> {
        let (state, reply_bytes) = (column::state(row, 2)?, row.get::<_, Option<usize>>(5)?);
        let is_expired = rules::is_expired(state, column::moment_or_none(row, 4)?, now);
        let purchase = ExistingPurchase {
            id: column::id(row, 1)?,
            state,
            cost: column::money(row, 3)?,
            reply_bytes: reply_bytes.filter(|_| !is_expired),
        };
        Ok(Self { number: row.get(0)?, purchase, is_expired })
    }
}
