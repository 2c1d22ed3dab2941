//! Queries for reports: purchases and what was spent.

use std::iter;
use std::time::Duration;

use tokio_postgres::Row;

use super::column::{self, Read, nanos, signed};
use super::handle::PostgresStore;
use super::step::statement;
use crate::store::{LedgerTotals, PurchaseId, PurchaseRecord, SpendRow, Unavailable, ZoneOffsets};

/// Selects the columns that [`read_purchase`] reads.
macro_rules! select_purchases {
    ($from:literal) => {
        concat!(
            "SELECT id, at, caller, service, model, coalesce(cost_micros, price_micros), state,
                ended_at FROM ",
            $from
        )
    };
}

const SINCE: &str = select_purchases!("purchases WHERE at >= $1 ORDER BY at, number");
const UNKNOWN: &str =
    select_purchases!("purchases WHERE state = 'unknown' ORDER BY at DESC, number DESC LIMIT $1");
const PURCHASE: &str = select_purchases!("purchases WHERE id = $1");
const TOTALS: &str = "SELECT count(*), coalesce(sum(price_micros), 0)::bigint,
        (SELECT count(*) FROM jobs WHERE state = 'open'),
        (SELECT min(at) FROM jobs WHERE state = 'open'),
        pg_database_size(current_database())
    FROM purchases WHERE state = 'unknown'";
/// Sorts by bytes, as SQLite does.
const SPEND: &str = "SELECT caller,
        (at + 1000000000 * ($5::bigint[])[1 + width_bucket(at, $4::bigint[])]) / 86400000000000
            AS local_day,
        service, model,
        count(*),
        coalesce(sum(cost_micros), 0)::bigint,
        coalesce(sum(price_micros) FILTER (WHERE state = 'unknown'), 0)::bigint,
        coalesce(sum(price_micros) FILTER (WHERE state IN ('held', 'sent')), 0)::bigint,
        coalesce(sum(cost_micros * replays), 0)::bigint,
        group_name
    FROM purchases
    WHERE at >= $1 AND state <> 'released' AND ($2::text IS NULL OR caller = $2)
    GROUP BY caller, local_day, service, model, group_name
    ORDER BY caller COLLATE \"C\", local_day, service COLLATE \"C\", model COLLATE \"C\",
        group_name COLLATE \"C\" NULLS FIRST LIMIT $3";

impl PostgresStore {
    pub(in crate::store) async fn purchases_since(
        &self,
        since: Duration,
    ) -> Result<Vec<PurchaseRecord>, Unavailable> {
        let find = statement!(SINCE, nanos(since));
        self.query(&self.lanes().reports, find, read_purchase).await
    }

    pub(in crate::store) async fn unknown_purchases(
        &self,
        most: usize,
    ) -> Result<Vec<PurchaseRecord>, Unavailable> {
        let find = statement!(UNKNOWN, signed(most));
        self.query(&self.lanes().reports, find, read_purchase).await
    }

    pub(in crate::store) async fn totals(&self) -> Result<LedgerTotals, Unavailable> {
        let totals = self.query_one(&self.lanes().reports, statement!(TOTALS), |row| {
            Ok(LedgerTotals {
                unknown: column::count(row, 0)?,
                unknown_price: column::money(row, 1)?,
                open_jobs: column::count(row, 2)?,
                oldest_job_at: column::moment_or_none(row, 3)?,
                bytes: Some(column::count(row, 4)?),
            })
        });
        totals.await?.ok_or_else(|| Unavailable("the database sent no totals".into()))
    }

    pub(in crate::store) async fn purchase(
        &self,
        id: PurchaseId,
    ) -> Result<Option<PurchaseRecord>, Unavailable> {
        self.query_one(&self.lanes().reports, statement!(PURCHASE, id.0), read_purchase).await
    }

    pub(in crate::store) async fn spend(
        &self,
        caller: Option<String>,
        since: Duration,
        zone: ZoneOffsets,
        most: usize,
    ) -> Result<Vec<SpendRow>, Unavailable> {
        let times: Vec<_> = zone.changes.iter().map(|(at, _)| nanos(*at)).collect();
        let seconds = zone.changes.iter().map(|(_, seconds)| *seconds);
        let seconds: Vec<_> = iter::once(zone.first).chain(seconds).collect();
        let groups = statement!(SPEND, nanos(since), caller, signed(most), times, seconds);
        self.query(&self.lanes().reports, groups, |row| {
            Ok(SpendRow {
                caller: column::get(row, 0)?,
                day: column::count(row, 1)?,
                service: column::service(row, 2)?,
                model: column::get(row, 3)?,
                count: column::count(row, 4)?,
                charged: column::money(row, 5)?,
                unknown: column::money(row, 6)?,
                held: column::money(row, 7)?,
                saved: column::money(row, 8)?,
                group: column::get(row, 9)?,
            })
        })
        .await
    }
}

pub(super) fn read_purchase(row: &Row) -> Read<PurchaseRecord> {
    Ok(PurchaseRecord {
        id: column::id(row, 0)?,
        at: column::moment(row, 1)?,
        ended_at: column::moment_or_none(row, 7)?,
        caller: column::get(row, 2)?,
        service: column::service(row, 3)?,
        model: column::get(row, 4)?,
        price: column::money(row, 5)?,
        state: column::state(row, 6)?,
    })
}
