//! Finds the purchase that a retry repeats.

use std::time::Duration;

use super::column::{nanos, read};
use super::ledger::Ledger;
use crate::clock;
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
/// A purchase with a key has no fingerprint, but perhaps a challenge.
const FIND_BY_CHALLENGE: &str = find!("fingerprint = ?1");
const FIND_BY_NUMBER: &str = find!("purchases.number = ?1");
/// The purchases that may be the same. An earlier process on a file did not count later steps of the clock,
/// so what it has ended is also found by the wall clock.
const LIKE: &str =
    "SELECT number, id, state, CASE WHEN ended_steady < ?3 AND ended_at > ended_steady
        AND ended_at <= ?5 THEN ended_at ELSE ended_steady END, delivered FROM purchases
    WHERE fingerprint = ?1 AND (ended_at IS NULL OR ended_steady >= ?2
        OR (ended_steady < ?3 AND ended_at >= ?4 AND ended_at <= ?5))";

impl Ledger {
    /// Returns the expired purchase that has to give up the key, if there is one.
    pub(super) fn find_earlier(
        &self,
        reservation: &Reservation,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let is_late = self.is_late_attempt(reservation)?;
        let judged = match &reservation.dedupe_key {
            DedupeKey::IdempotencyKey { key, payload } => {
                let found = self.find_by_key(key, payload, now)?;
                self.or_by_challenge(found, reservation, payload, now)?
            }
            DedupeKey::Quote { key, others, payload } => {
                let found = self.find_by_quote((key, others), payload, now)?;
                self.or_by_challenge(found, reservation, payload, now)?
            }
            DedupeKey::Fingerprint(like) => self.find_duplicate(like, now)?.map_or(Ok(None), Err),
        };
        Ok(match judged {
            Ok(_) if reservation.replay_only => Err(ReserveError::NothingToReplay),
            Ok(_) if is_late => Err(ReserveError::Superseded),
            judged => judged,
        })
    }

    fn find_by_key(
        &self,
        key: &Digest,
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        self.find_keyed(FIND_BY_KEY, key, payload, now)
    }

    /// Returns `found`, unless that is nothing and another purchase has the same challenge.
    fn or_by_challenge(
        &self,
        found: Result<Option<i64>, ReserveError>,
        reservation: &Reservation,
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let (Ok(_), Some(challenge)) = (&found, &reservation.requires.challenge) else {
            return Ok(found);
        };
        let Err(paid) = self.find_keyed(FIND_BY_CHALLENGE, challenge, payload, now)? else {
            return Ok(found);
        };
        // Unlike a challenge, a key is of one endpoint.
        let sql = "SELECT count(*) FROM purchases WHERE fingerprint = ? AND model = ?";
        let is_same: i64 = self.db.one(sql, params![challenge, reservation.model], read)?;
        Ok(Err(if is_same == 0 { ReserveError::KeyReused } else { paid }))
    }

    fn find_keyed(
        &self,
        sql: &str,
        digest: &Digest,
        payload: &Digest,
        now: Duration,
    ) -> Result<Result<Option<i64>, ReserveError>> {
        let found = |row: &Row<'_>| Ok((FoundPurchase::read(row, now)?, row.get(9)?));
        let found: Option<(FoundPurchase, Digest)> = self.db.first(sql, [digest], found)?;
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
        let (steady, last_refusal) = (self.steady(), self.last_refusal(duplicate)?);
        let (mut latest, mut is_ahead) = (None, false);
        // A running purchase decides; else the one that ended last.
        let since = |now: Duration| now.saturating_sub(duplicate.within);
        // Servers that share a ledger count the steps together.
        let is_shared = self.db.dialect().is_shared();
        let counted_since = clock::steps_counted_since().filter(|_| !is_shared).map_or(-1, nanos);
        let values = params![duplicate.fingerprint, since(steady), counted_since, since(now), now];
        self.db.all(LIKE, values, |row| {
            let (number, id, state, ended, is_delivered): (i64, _, _, Option<Duration>, _) =
                read(row)?;
            let is_same = match ended {
                None => !duplicate.separate_from.contains(&id),
                // Before the last start, the clock was ahead.
                Some(ended) if ended > steady && duplicate.within.is_zero() => false,
                Some(ended) => {
                    is_ahead |= ended > steady;
                    let end = (state, ended.min(steady), is_delivered);
                    rules::is_duplicate(duplicate, id, end, last_refusal)
                }
            };
            if is_same {
                let ended = ended.map_or(Duration::MAX, |ended| ended.min(steady));
                latest = latest.max(Some((ended, number)));
            }
            Ok(())
        })?;
        if is_ahead {
            // It counts as just ended.
            let end = "UPDATE purchases SET ended_steady = ?2
                WHERE fingerprint = ?1 AND ended_steady > ?2";
            self.db.run(end, params![duplicate.fingerprint, steady])?;
        }
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
    let Some(body) = row.get(8)? else { return Ok(EarlierReply::Kept { bytes }) };
    Ok(EarlierReply::Read(KeptReply { status: row.get(6)?, is_json: row.get(7)?, body }))
}
