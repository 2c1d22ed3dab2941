//! Finds the purchase that a retry repeats.

use std::ops::ControlFlow;
use std::time::Duration;

use super::column::nanos;
use super::ledger::Ledger;
use crate::ledger::engine::{Result, Row, Sql, params};
use crate::ledger::rules;
use crate::ledger::{
    DedupeKey, Digest, DuplicateCheck, EarlierReply, ExistingPurchase, KeptReply, Reservation,
    ReserveError,
};

/// Selects what [`FoundPurchase::read`] reads.
macro_rules! find {
    ($condition:literal) => {
        concat!(
            "SELECT purchases.number, id, state, coalesce(cost_micros, price_micros), keep_until,
                length(body), status, is_json, CASE WHEN length(body) <= 16384 THEN body END, payload
            FROM purchases LEFT JOIN replies ON replies.number = purchases.number
            WHERE ",
            $condition
        )
    };
}

const FIND_BY_KEY: &str = find!("key = ?1");
const FIND_BY_NUMBER: &str = find!("purchases.number = ?1");
/// The purchases that may be the same, the latest first.
const LIKE: &str = "SELECT number, id, state, ended_at, delivered FROM purchases
    WHERE fingerprint = ?1 AND (ended_at IS NULL OR ended_at BETWEEN ?2 AND ?3)
    ORDER BY number DESC";

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
        let found: Option<(FoundPurchase, Digest)> = self.db.first(FIND_BY_KEY, [key], found)?;
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
        let (since, until) =
            (now.saturating_sub(duplicate.within), now.saturating_add(duplicate.clock_skew));
        let mut latest = None;
        // One that is running decides; else the one that ended last.
        let values = params![duplicate.fingerprint, nanos(since), nanos(until)];
        self.db.query_while(LIKE, values, |row| {
            let (number, id) = (row.get::<i64>(0)?, row.get(1)?);
            let (state, ended) = (row.get(2)?, row.get(3)?);
            let is_separate = duplicate.separate_from.contains(&id);
            match ended {
                None if !is_separate => {
                    latest = Some((Duration::MAX, number));
                    return Ok(ControlFlow::Break(()));
                }
                Some(ended) if rules::is_duplicate(duplicate, id, (state, ended, row.get(4)?)) => {
                    latest = latest.max(Some((ended, number)));
                }
                None | Some(_) => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let Some((_, number)) = latest else { return Ok(None) };
        let read = |row: &Row<'_>| FoundPurchase::read(row, now);
        let found = self.db.first(FIND_BY_NUMBER, [number], read)?;
        Ok(found.map(|found| ReserveError::Duplicate(found.purchase)))
    }

    pub(super) fn clear_dedupe_key(&self, number: i64) -> Result<()> {
        let clear =
            "UPDATE purchases SET key = NULL, payload = NULL, fingerprint = NULL WHERE number = ?";
        self.db.run(clear, [number])?;
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
        let state = row.get(2)?;
        let keep_until = row.get(4)?;
        let is_expired = rules::is_key_expired(state, keep_until, now);
        let is_reply_expired = rules::is_reply_expired(state, keep_until, now);
        let purchase = ExistingPurchase {
            id: row.get(1)?,
            state,
            cost: row.get(3)?,
            reply: if is_reply_expired { EarlierReply::NotKept } else { reply(row)? },
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
