//! What was sent to the gateway in the last day, and the rate limit that it reported.
//!
//! A slot is taken by the database's clock until one period after its reply. [`Fleet`](super::Fleet)
//! grants them to all instances in turn, and a purchase takes one with its hold if no request waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::column::{self, nanos, signed};
use super::handle::PostgresStore;
use super::step::{Need, Statement, Step, statement};
use crate::store::model::SLOT_RETENTION;
use crate::store::{AccountLimit, SlotId, Unavailable};
use crate::sync::lock;

const TAKE: &str = "INSERT INTO slots (id, owner, at) VALUES ($1, $2, {now})";
const REPLIED: &str = "UPDATE slots SET replied = greatest(at, {now}) WHERE id = $1";
const RELEASE: &str = "DELETE FROM slots WHERE id = $1";
/// Those that are running stay. A clock that was wrong may have dated others far ahead.
const PURGE: &str = "DELETE FROM slots WHERE replied IS NOT NULL
    AND ((at < {now} - $1::bigint AND replied < {now} - $1::bigint) OR at > {now} + $1::bigint)";
const RECENT: &str = "WITH t AS MATERIALIZED (SELECT {now} AS now)
    SELECT t.now, replies.at FROM t, LATERAL (
        SELECT id, slots.at AS sent, coalesce(replied, greatest(slots.at, t.now)) AS at FROM slots
        WHERE slots.at <= t.now + $2::bigint
    ) replies WHERE replies.at >= t.now - $1::bigint ORDER BY replies.sent, replies.id";
const RECORD_LIMIT: &str =
    "UPDATE rate_limit SET requests = ($1::bigint[])[1], seconds = ($1::bigint[])[2]";
const RECORDED_LIMIT: &str = "SELECT requests, seconds FROM rate_limit WHERE requests IS NOT NULL";

impl PostgresStore {
    pub(in crate::store) async fn take_slot(&self, slot: SlotId) -> Result<(), Unavailable> {
        self.shared().slots.take([slot]);
        let me = self.shared().number();
        let mut statements = vec![statement!(TAKE, slot.0, me)];
        statements.extend(self.purge_if_due());
        let taken = self.run(&self.lanes().marks, Step::new(Need::Plain, statements).guarded(me));
        taken.await.map(drop)
    }

    pub(in crate::store) fn slot_replied(&self, slot: SlotId) {
        self.shared().slots.give_up(slot);
        let replied = Step::new(Need::Quiet, vec![statement!(REPLIED, slot.0)]);
        self.lanes().notify(&self.lanes().marks, replied);
    }

    pub(in crate::store) fn release_slot(&self, slot: SlotId) {
        self.shared().slots.give_up(slot);
        self.lanes().notify(&self.lanes().marks, Step::plain(statement!(RELEASE, slot.0)));
    }

    /// Deletes the slot of a purchase whose task ended before its step was answered. On another lane,
    /// the release might overtake that step.
    fn release_slot_after_sale(&self, slot: SlotId) {
        self.shared().slots.give_up(slot);
        let release = Step::new(Need::Counting, vec![statement!(RELEASE, slot.0)]).ending_slots();
        self.lanes().notify(&self.lanes().sales, release);
    }

    pub(in crate::store) fn record_rate_limit(&self, limit: AccountLimit) {
        let latest = Arc::clone(&self.shared().latest_rate_limit);
        *lock(&latest) = Some(limit);
        let record = Step::plain(statement!(RECORD_LIMIT, LatestLimit(latest)));
        self.lanes().notify(&self.lanes().marks, record);
    }

    pub(in crate::store) async fn recorded_rate_limit(
        &self,
    ) -> Result<Option<AccountLimit>, Unavailable> {
        self.query_one(&self.lanes().reads, statement!(RECORDED_LIMIT), |row| {
            let (requests, window_seconds) = (column::count(row, 0)?, column::count(row, 1)?);
            Ok(AccountLimit { requests, window_seconds })
        })
        .await
    }

    pub(in crate::store) async fn recent_replies(
        &self,
        within: Duration,
    ) -> Result<Vec<Duration>, Unavailable> {
        let recent = statement!(RECENT, nanos(within), nanos(SLOT_RETENTION));
        self.query(&self.lanes().reads, recent, |row| {
            Ok(column::moment(row, 0)?.saturating_sub(column::moment(row, 1)?))
        })
        .await
    }

    /// Deletes old slots without waiting, once per some new ones.
    pub(super) fn purge_slots_if_due(&self) {
        if let Some(purge) = self.purge_if_due() {
            self.lanes().notify(&self.lanes().marks, Step::plain(purge));
        }
    }

    /// Returns the statement that deletes old slots, once per some new ones.
    pub(super) fn purge_if_due(&self) -> Option<Statement> {
        self.shared().slots.is_purge_due().then(|| statement!(PURGE, nanos(SLOT_RETENTION)))
    }
}

/// The slot that a purchase takes with its hold. It is released if the task ends before the answer.
pub(super) struct UnansweredSlot<'a> {
    store: &'a PostgresStore,
    slot: Option<SlotId>,
}

impl<'a> UnansweredSlot<'a> {
    pub(super) fn new(store: &'a PostgresStore, slot: Option<SlotId>) -> Self {
        store.shared().slots.take(slot);
        Self { store, slot }
    }

    /// Leaves the slot to the caller.
    pub(super) fn answered(mut self) -> Option<SlotId> {
        self.slot.take()
    }
}

impl Drop for UnansweredSlot<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.store.release_slot_after_sale(slot);
        }
    }
}

/// Whichever limit is the latest when it is sent: a retry may run after a newer limit's step.
#[derive(Debug)]
struct LatestLimit(Arc<Mutex<Option<AccountLimit>>>);

impl ToSql for LatestLimit {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let limit = *lock(&self.0);
        let columns = limit.map(|limit| [signed(limit.requests), signed(limit.window_seconds)]);
        columns.map(|columns| columns.to_vec()).to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        <Vec<i64> as ToSql>::accepts(kind)
    }

    to_sql_checked!();
}
