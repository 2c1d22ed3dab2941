//! Reconciliation: checkpoints, evidence, and the account's keys.

use std::time::Duration;

use tokio_postgres::Row;

use super::column::{self, Read, nanos, signed};
use super::handle::PostgresStore;
use super::reports::read_purchase;
use super::step::{Need, Step, statement};
use crate::store::{
    AccountCheck, Checkpoint, Evidence, JobState, SETTLES_WITHIN, Snapshot, Unavailable,
};

const MAX_CHECKPOINTS: i64 = 1_000;

/// Runs under the account's lock: numbers are given under it, so none that is lower appears later.
const RECORD_CHECKPOINT: &str = "
WITH before AS MATERIALIZED (
  SELECT coalesce((SELECT settled FROM checkpoints WHERE purchases IS NOT NULL
    ORDER BY number DESC LIMIT 1), 0) AS settled
), latest AS MATERIALIZED (
  SELECT coalesce(max(number), 0) AS number FROM purchases
), unsettled AS (
  SELECT min(number) AS number FROM purchases
  WHERE number > (SELECT settled FROM before)
    AND (ended_at IS NULL OR ended_at > $1::bigint - $6::bigint)
)
INSERT INTO checkpoints (at, balance_cents, chats, chat_cents, spent_cents, settled, purchases)
SELECT $1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bigint,
  coalesce(unsettled.number - 1, latest.number), latest.number
FROM unsettled, latest";
const TRIM_CHECKPOINTS: &str = "DELETE FROM checkpoints
    WHERE number <= (SELECT max(number) FROM checkpoints) - $1";
/// Without numbers, a checkpoint is of another account, and is ignored.
const LATEST_CHECKPOINT: &str =
    "SELECT at, balance_cents, chats, chat_cents, spent_cents, settled, purchases
    FROM checkpoints WHERE purchases IS NOT NULL ORDER BY number DESC LIMIT 1";
const SNAPSHOTS: &str = "SELECT at, balance_cents, chats, chat_cents, spent_cents
    FROM checkpoints ORDER BY number DESC LIMIT $1";
const UNKNOWN_AFTER: &str =
    "SELECT count(*) FROM purchases WHERE number > $1 AND state = 'unknown'";
const EVIDENCE: &str = "SELECT p.id, p.at, p.caller, p.service, p.model,
        coalesce(p.cost_micros, p.price_micros), p.state, p.ended_at, p.number, p.assumed,
        p.unrecognised, j.state
    FROM purchases AS p LEFT JOIN jobs AS j ON j.purchase = p.id
    WHERE p.number > $1 OR p.state = 'unknown'
        OR (p.state = 'charged' AND p.service = 'video'
            AND CASE WHEN j.state = 'failed' THEN j.status_at ELSE p.ended_at END > $2)
    ORDER BY p.number";
/// Runs under the account's lock, so that two instances do not both find no keys. The rate limit may
/// be the other account's, as checkpoints are.
const CHECK_ACCOUNT: &str = "
WITH recorded AS MATERIALIZED (
  SELECT id FROM account_keys WHERE retired IS NULL
), judged AS MATERIALIZED (
  SELECT NOT EXISTS (SELECT 1 FROM recorded)
    OR EXISTS (SELECT 1 FROM recorded WHERE id = ANY($1::text[])) AS is_same
), dropped AS (
  UPDATE checkpoints SET settled = NULL, purchases = NULL FROM judged
  WHERE purchases IS NOT NULL AND NOT is_same AND $2::text <> 'compare'
), forgotten AS (
  UPDATE rate_limit SET requests = NULL, seconds = NULL FROM judged
  WHERE NOT is_same AND $2::text = 'record'
), retired AS (
  UPDATE account_keys SET retired = {now} FROM judged
  WHERE retired IS NULL AND NOT is_same AND $2::text = 'adopt'
), noted AS (
  INSERT INTO account_keys (id, noted)
  SELECT DISTINCT id, {now} FROM judged, unnest($1::text[]) AS keys(id)
  WHERE (is_same AND $2::text = 'record') OR $2::text = 'adopt'
  ON CONFLICT (id) DO UPDATE SET retired = NULL WHERE account_keys.retired IS NOT NULL
)
SELECT is_same OR $2::text = 'adopt' FROM judged";

impl PostgresStore {
    pub(in crate::store) async fn record_checkpoint(
        &self,
        snapshot: Snapshot,
    ) -> Result<(), Unavailable> {
        let Snapshot { at, balance_cents, chats, chat_cents, spent_cents } = snapshot;
        let record = statement!(
            RECORD_CHECKPOINT,
            nanos(at),
            balance_cents,
            signed(chats),
            signed(chat_cents),
            signed(spent_cents),
            nanos(SETTLES_WITHIN),
        );
        let trim = statement!(TRIM_CHECKPOINTS, MAX_CHECKPOINTS);
        let step = Step::new(Need::Counting, vec![record, trim]);
        self.run(&self.lanes().sales, step).await.map(drop)
    }

    pub(in crate::store) async fn latest_checkpoint(
        &self,
    ) -> Result<Option<Checkpoint>, Unavailable> {
        self.query_one(&self.lanes().reports, statement!(LATEST_CHECKPOINT), |row| {
            Ok(Checkpoint {
                snapshot: read_snapshot(row)?,
                settled_through: column::count(row, 5)?,
                last_number: column::count(row, 6)?,
            })
        })
        .await
    }

    pub(in crate::store) async fn latest_snapshots(
        &self,
        most: usize,
    ) -> Result<Vec<Snapshot>, Unavailable> {
        let find = statement!(SNAPSHOTS, signed(most));
        self.query(&self.lanes().reports, find, read_snapshot).await
    }

    pub(in crate::store) async fn unknown_after(&self, number: u64) -> Result<u64, Unavailable> {
        let count = statement!(UNKNOWN_AFTER, signed(number));
        let counted =
            self.query_one(&self.lanes().reports, count, |row| column::count(row, 0)).await?;
        Ok(counted.unwrap_or_default())
    }

    pub(in crate::store) async fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Result<Vec<Evidence>, Unavailable> {
        let find = statement!(EVIDENCE, signed(settled), nanos(refundable));
        self.query(&self.lanes().reports, find, |row| {
            let has_job = column::get::<Option<&str>>(row, 11)?.is_some();
            let job = || column::named(row, 11, &JobState::ALL, JobState::name);
            Ok(Evidence {
                purchase: read_purchase(row)?,
                number: column::count(row, 8)?,
                is_assumed: column::get(row, 9)?,
                is_account_confirmed: !column::get::<bool>(row, 10)?,
                job: has_job.then(job).transpose()?,
            })
        })
        .await
    }

    pub(in crate::store) async fn check_account(
        &self,
        keys: Vec<String>,
        how: AccountCheck,
    ) -> Result<bool, Unavailable> {
        let name = match how {
            AccountCheck::Compare => "compare",
            AccountCheck::Record => "record",
            AccountCheck::Adopt => "adopt",
        };
        let step = Step::new(Need::Counting, vec![statement!(CHECK_ACCOUNT, keys, name)]);
        let rows = self.run(&self.lanes().sales, step).await?;
        let row = rows.iter().flatten().next();
        row.map_or_else(
            || Err(Unavailable("the database sent no verdict".into())),
            |row| column::get(row, 0),
        )
    }
}

fn read_snapshot(row: &Row) -> Read<Snapshot> {
    Ok(Snapshot {
        at: column::moment(row, 0)?,
        balance_cents: column::get(row, 1)?,
        chats: column::count(row, 2)?,
        chat_cents: column::count(row, 3)?,
        spent_cents: column::count(row, 4)?,
    })
}
