//! Facts about requests that all servers know for a while: free refusals, attempts with a key, and the changes
//! of admins.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::column::{read, upsert};
use super::ledger::Ledger;
use crate::clock;
use crate::ledger::engine::{Result, Row, Sql, params};
use crate::ledger::writer::Durability;
use crate::ledger::{
    ChangeNote, DedupeKey, Digest, DuplicateCheck, Reservation, Store, StoreOp, Unavailable,
};

/// How late an attempt may come. Networks and front-ends give up sooner.
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);
/// No duplicate is looked for longer than this.
const RETENTION: Duration = Duration::from_secs(86_400);
const MAX_PER_CALLER: i64 = 256;
const MAX_NOTES: i64 = 100_000;

const REFUSAL: &str = "refusal";
const ATTEMPT: &str = "attempt";
const CHANGE: &str = "change";
/// Selects a note that is younger than a time.
const FIND: &str =
    "SELECT at, attempt, payload, answer FROM notes WHERE kind = ? AND id = ? AND at > ?";

impl Store {
    /// Remembers, without waiting, that a request was refused for free, so that its retry does not join an
    /// earlier purchase.
    pub fn note_refusal(&self, caller: Arc<str>, of: Digest) {
        if self.inner.gate.is_retry_queue_full.load(Ordering::Relaxed) {
            return;
        }
        let since_boot = Arc::clone(&self.inner.since_boot);
        let called = since_boot();
        self.notify(StoreOp::NoteRefusal(&of), Durability::Buffered, move |ledger| {
            // The database may have been down for a while.
            let delay = since_boot().saturating_sub(called).as_secs();
            let at = ledger.steady().saturating_sub(Duration::from_secs(delay));
            ledger.note((REFUSAL, &of), &caller, (at, 0))
        });
    }

    /// Remembers, without waiting, an attempt that the ledger could not judge.
    pub fn note_attempt(&self, reservation: &Reservation) {
        if self.inner.gate.is_retry_queue_full.load(Ordering::Relaxed) {
            return;
        }
        let reservation = reservation.clone();
        self.notify("note_attempt", Durability::Buffered, move |ledger| {
            ledger.is_late_attempt(&reservation).map(drop)
        });
    }

    /// Begins an admin's change with a key, unless it has begun before. Returns what is known of it then.
    pub async fn begin_change(
        &self,
        caller: Arc<str>,
        id: Digest,
        payload: Digest,
        within: Duration,
    ) -> Result<Option<ChangeNote>, Unavailable> {
        let begin = move |ledger: &Ledger| {
            let since = ledger.steady().saturating_sub(within);
            let note = |row: &Row<'_>| Ok(ChangeNote { payload: row.get(2)?, answer: row.get(3)? });
            let known = ledger.db.first(FIND, params![CHANGE, id, since], note)?;
            if known.is_none() {
                let of = "UPDATE notes SET payload = ?, answer = NULL WHERE kind = ? AND id = ?";
                ledger.note((CHANGE, &id), &caller, (ledger.steady(), 0))?;
                ledger.db.run(of, params![payload, CHANGE, id])?;
            }
            Ok(known)
        };
        self.run("begin_change", Durability::Synced, begin).await
    }

    /// Keeps the answer to a change that has begun. Without an answer, nothing was changed, and it may begin
    /// again. It is retried until it succeeds.
    pub fn end_change(&self, id: Digest, answer: Option<Vec<u8>>) {
        self.notify("end_change", Durability::Synced, move |ledger| {
            match &answer {
                Some(answer) => {
                    let keep = "UPDATE notes SET answer = ? WHERE kind = ? AND id = ?";
                    ledger.db.run(keep, params![&answer[..], CHANGE, id])
                }
                None => ledger
                    .db
                    .run("DELETE FROM notes WHERE kind = ? AND id = ?", params![CHANGE, id]),
            }
            .map(drop)
        });
    }
}

impl Ledger {
    /// Returns when the request of a retry may last have been refused. Before this process had the ledger,
    /// requests failed because no server listened.
    pub(super) fn last_refusal(&self, retry: &DuplicateCheck) -> Result<Option<Duration>> {
        let Some(ids) = &retry.refused_as else { return Ok(None) };
        let (mut last, now) = (self.opened_at(), self.steady());
        for id in ids {
            let at: Option<Duration> = self.db.first(FIND, params![REFUSAL, id, -1_i64], read)?;
            // A later time is of another clock, before the last start.
            last = last.max(at.filter(|at| *at <= now).unwrap_or_default());
        }
        Ok(Some(last))
    }

    /// Notes an attempt with a key. Returns whether a later one came before: its caller may have been told
    /// that nothing was bought, and may have bought something else. An attempt without a number is the
    /// first, and a lookup comes after it.
    pub(super) fn is_late_attempt(&self, reservation: &Reservation) -> Result<bool> {
        let Reservation { attempt, caller, .. } = reservation;
        let DedupeKey::IdempotencyKey { key, .. } = &reservation.dedupe_key else {
            return Ok(false);
        };
        let since = self.steady().saturating_sub(MAX_DELAY);
        let latest = self.db.first(FIND, params![ATTEMPT, key, since], |row| row.get::<u32>(1))?;
        let latest = latest.unwrap_or_default();
        if *attempt >= latest.max(1) {
            self.note((ATTEMPT, key), caller, (self.steady(), *attempt))?;
        }
        Ok(*attempt < latest)
    }

    fn note(
        &self,
        (kind, id): (&str, &Digest),
        caller: &str,
        (at, attempt): (Duration, u32),
    ) -> Result<()> {
        upsert!(self.db, notes (kind: kind, id: id) { caller: caller, at: at, attempt: attempt })?;
        // An admin's changes are few, and must not be made twice.
        let trim = "DELETE FROM notes WHERE caller = ?1 AND kind <> 'change' AND at <
            (SELECT at FROM notes WHERE caller = ?1 AND kind <> 'change'
                ORDER BY at DESC LIMIT 1 OFFSET ?2)";
        self.db.run(trim, params![caller, MAX_PER_CALLER - 1]).map(drop)
    }
}

/// Dates the notes of earlier processes on a file as new: they did not count later steps of the clock.
pub(super) fn recover(ledger: &Ledger) -> Result<()> {
    let Some(counted_since) = clock::steps_counted_since() else { return Ok(()) };
    let values = [ledger.steady(), counted_since];
    ledger.db.run("UPDATE notes SET at = ?1 WHERE at < ?2", values).map(drop)
}

pub(super) fn purge(ledger: &Ledger) -> Result<()> {
    let before = ledger.steady().saturating_sub(RETENTION);
    let trim = "DELETE FROM notes WHERE at < ?1 OR at <
        (SELECT at FROM notes ORDER BY at DESC LIMIT 1 OFFSET ?2)";
    ledger.db.run(trim, params![before, MAX_NOTES]).map(drop)
}
