//! Finds the purchase that a retry repeats.

use std::ops::ControlFlow;
use std::time::Duration;

use super::Result;
use super::column;
use super::ledger::Ledger;
use crate::store::engine::{Row, Sql, params};
use crate::store::rules;
use crate::store::{
    DedupeKey, Digest, DuplicateCheck, EarlierReply, ExistingPurchase, KeptReply, Reservation,
    ReserveError,
};

/// Reads an earlier purchase by its number, if it has the key, where one is given.
const READ: &str =
    "SELECT purchases.number, id, state, coalesce(cost_micros, price_micros), keep_until,
        length(body), status, is_json, CASE WHEN length(body) <= 16384 THEN body END, payload
    FROM purchases LEFT JOIN replies USING (number)
    WHERE purchases.number = ?1 AND (?2 IS NULL OR key = ?2)";

/// How many earlier purchases of a fingerprint are read after the first that decides.
const MAX_LOOK_BACK: usize = 16;

impl Ledger {
    /// Returns the expired purchase that has to give up the key, if there is one.
    pub(super) fn find_earlier(
        &self,
        reservation: &Reservation,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let judged = match &reservation.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } => self.find_by_key(key, payload, now)?,
            DedupeKey::Quote { key, others, payload } => {
                self.find_by_quote((key, others), payload, now)?
            }
            DedupeKey::Fingerprint(like) => self.find_duplicate(like, now)?.map_or(Ok(None), Err),
        };
        Ok(match judged {
            Ok(_) if reservation.replay_only => Err(ReserveError::NothingToReplay),
            judged => judged,
        })
    }

    fn find_by_key(
        &self,
        key: &Digest,
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let found = |row: &Row<'_>| Ok((FoundPurchase::read(row, now)?, row.get(9)?));
        let found: Option<(FoundPurchase, Digest)> =
            self.dedupe_keys.borrow().search(&self.db, key, |number| {
                let row = self.db.first(READ, params![number, key], found)?;
                Ok(row.map_or(ControlFlow::Continue(()), ControlFlow::Break))
            })?;
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
    fn find_by_quote(
        &self,
        (key, others): (&Digest, &[Digest]),
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let own = self.find_by_key(key, payload, now)?;
        for other in others.iter().filter(|_| own.is_ok()) {
            if let Err(found) = self.find_by_key(other, payload, now)? {
                return Ok(Err(found));
            }
        }
        Ok(own)
    }

    fn find_duplicate(
        &self,
        duplicate: &DuplicateCheck,
        now: Duration,
    ) -> Result<Option<ReserveError>> {
        let find = "SELECT id, state, ended_at, delivered FROM purchases
            WHERE number = ? AND fingerprint = ?";
        let end = |row: &Row<'_>| {
            let (state, ended) = (column::state(row, 1)?, column::moment_or_none(row, 2)?);
            Ok((column::id(row, 0)?, state, ended, row.get(3)?))
        };
        let fingerprint = &duplicate.fingerprint;
        let (since, until) =
            (now.saturating_sub(duplicate.within), now.saturating_add(duplicate.clock_skew));
        let (mut latest, mut looked_back) = (None, 0);
        let running = self.dedupe_keys.borrow().search(&self.db, fingerprint, |number| {
            let found = self.db.first(find, params![number, fingerprint], end)?;
            let Some((id, state, ended, is_delivered)) = found else {
                return Ok(ControlFlow::Continue(()));
            };
            let Some(ended) = ended else {
                let is_separate = duplicate.separate_from.contains(&id);
                return Ok(if is_separate {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(Some(number))
                });
            };
            let is_duplicate = rules::is_duplicate(duplicate, id, (state, ended, is_delivered));
            if is_duplicate && since <= ended && ended <= until {
                latest = latest.max(Some((ended, number)));
            }
            // The next one began after it had ended. Only if the clock was set back meanwhile, an
            // earlier purchase has a later end.
            looked_back += usize::from(latest.is_some() || ended < since);
            let is_last = looked_back > MAX_LOOK_BACK;
            Ok(if is_last { ControlFlow::Break(None) } else { ControlFlow::Continue(()) })
        })?;
        let Some(number) = running.flatten().or(latest.map(|(_, number)| number)) else {
            return Ok(None);
        };
        let read = |row: &Row<'_>| FoundPurchase::read(row, now);
        let found = self.db.first(READ, params![number, None::<&Digest>], read)?;
        Ok(found.map(|found| ReserveError::Duplicate(found.purchase)))
    }

    pub(super) fn clear_dedupe_key(&self, number: i64) -> Result<()> {
        self.remove_key(number)?;
        let clear =
            "UPDATE purchases SET key = NULL, payload = NULL, fingerprint = NULL WHERE number = ?";
        self.db.run(clear, [number])?;
        Ok(())
    }

    /// Removes a purchase's dedupe key from the index. The row keeps it.
    pub(super) fn remove_key(&self, number: i64) -> Result<()> {
        let key = "SELECT coalesce(key, fingerprint) FROM purchases WHERE number = ?";
        if let Some(Some(key)) = self.db.first(key, [number], |row| row.get(0))? {
            self.dedupe_keys.borrow_mut().remove(&self.db, (&key, number))?;
        }
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
    fn read(row: &Row<'_>, now: Duration) -> Result<Self> {
        let state = column::state(row, 2)?;
        let is_expired = rules::is_expired(state, column::moment_or_none(row, 4)?, now);
        let purchase = ExistingPurchase {
            id: column::id(row, 1)?,
            state,
            cost: column::money(row, 3)?,
            reply: if is_expired { EarlierReply::NotKept } else { reply(row)? },
        };
        Ok(Self { number: row.get(0)?, purchase, is_expired })
    }
}

/// Reads the reply, or only its size if that is large: see the queries.
fn reply(row: &Row<'_>) -> Result<EarlierReply> {
    let Some(bytes) = row.get(5)? else { return Ok(EarlierReply::NotKept) };
    let Some(body) = row.get::<Option<Vec<u8>>>(8)? else {
        return Ok(EarlierReply::Kept { bytes });
    };
    let (status, is_json) = (row.get(6)?, row.get(7)?);
    Ok(EarlierReply::Read(KeptReply { status, is_json, body: body.into() }))
}
