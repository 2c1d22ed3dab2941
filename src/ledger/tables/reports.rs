//! Queries for reports and reconciliation: purchases, checkpoints, and the account's keys.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::column::{LossyText, Record, insert, nanos, read, record, select, signed};
use super::ledger::Ledger;
use crate::gateway::contract::money::Usd;
use crate::ledger::engine::{Engine, Result, Sql, ToSqlValue, params};
use crate::ledger::rules::Credit;
use crate::ledger::schema::SqlDialect;
use crate::ledger::sqlite::with_suffix;
use crate::ledger::writer::Durability;
use crate::ledger::{
    AccountCheck, Budgets, Checkpoint, DedupeKey, Evidence, LedgerTotals, MissingSpend, PurchaseId,
    PurchaseRecord, Reservation, SETTLES_WITHIN, Service, Settlement, Snapshot, SpendRow, Store,
    Unavailable, ZoneOffsets,
};

record!(PurchaseRecord {
    id: "id",
    at: "at",
    ended_at: "ended_at",
    caller: "caller",
    service: "service",
    model: "model" as LossyText,
    price: "coalesce(cost_micros, price_micros)",
    state: "state",
});

impl Store {
    pub async fn purchases_since(
        &self,
        since: Duration,
    ) -> Result<Vec<PurchaseRecord>, Unavailable> {
        let find = select::<PurchaseRecord>("FROM purchases WHERE at >= ? ORDER BY number");
        let report = move |db: &dyn Engine| db.all(&find, [since], read);
        let mut rows: Vec<PurchaseRecord> = self.run_report("purchases_since", report).await?;
        // Nearly in order: a clock may have been set back. SQLite would sort all columns.
        rows.sort_by_key(|row| row.at);
        Ok(rows)
    }

    pub async fn unknown_purchases(&self, most: usize) -> Result<Vec<PurchaseRecord>, Unavailable> {
        let find = select::<PurchaseRecord>(
            "FROM purchases WHERE state = 'unknown' ORDER BY at DESC, number DESC LIMIT ?",
        );
        let report = move |db: &dyn Engine| db.all(&find, [signed(most)], read);
        self.run_report("unknown_purchases", report).await
    }

    pub async fn totals(&self) -> Result<LedgerTotals, Unavailable> {
        let totals = "SELECT count(*), CAST(coalesce(sum(price_micros), 0) AS BIGINT),
                (SELECT count(*) FROM jobs WHERE state = 'open'),
                (SELECT min(at) FROM jobs WHERE state = 'open')
            FROM purchases WHERE state = 'unknown'";
        let path = self.inner.path.clone();
        let report = move |db: &dyn Engine| {
            let (unknown, unknown_price, open_jobs, oldest_job_at) = db.one(totals, (), read)?;
            let bytes = file_bytes(&path);
            Ok(LedgerTotals { unknown, unknown_price, open_jobs, oldest_job_at, bytes })
        };
        self.run_report("totals", report).await
    }

    pub async fn purchase(&self, id: PurchaseId) -> Result<Option<PurchaseRecord>, Unavailable> {
        let find = select::<PurchaseRecord>("FROM purchases WHERE id = ?");
        let report = move |db: &dyn Engine| db.first(&find, [id], read);
        self.run_report("purchase", report).await
    }

    /// Returns when a caller made its latest purchase.
    pub async fn latest_purchase_at(
        &self,
        caller: String,
    ) -> Result<Option<Duration>, Unavailable> {
        let latest = "SELECT max(at) FROM purchases WHERE caller = ?";
        let report = move |db: &dyn Engine| db.one(latest, [&*caller], read);
        self.run_report("latest_purchase_at", report).await
    }

    /// Returns spending since a wall-clock time by caller, local day, service and model, in
    /// this order. `None` is all callers. Released purchases are left out.
    pub async fn spend(
        &self,
        caller: Option<String>,
        since: Duration,
        zone: ZoneOffsets,
        most: usize,
    ) -> Result<Vec<SpendRow>, Unavailable> {
        let report = move |db: &dyn Engine| {
            let groups = spend_query(db.dialect(), caller.is_some(), &zone);
            let most = signed(most);
            let mut values: Vec<&dyn ToSqlValue> = vec![&since, &most];
            values.extend(caller.as_ref().map(|caller| caller as &dyn ToSqlValue));
            db.all(&groups, &values[..], |row| {
                Ok(SpendRow {
                    caller: row.get(0)?,
                    day: row.get(1)?,
                    service: row.get(2)?,
                    model: row.get::<LossyText>(3)?.into(),
                    count: row.get(4)?,
                    charged: row.get(5)?,
                    unknown: row.get(6)?,
                    held: row.get(7)?,
                    saved: row.get(8)?,
                    group: row.get(9)?,
                })
            })
        };
        self.run_report("spend", report).await
    }
}

/// Returns the query for one caller (`?3`) or for all of them. The index on callers and times finds
/// both: one of times alone would be written by each purchase.
pub(in crate::ledger) fn spend_query(
    dialect: SqlDialect,
    has_caller: bool,
    zone: &ZoneOffsets,
) -> String {
    let ZoneOffsets { first, changes } = zone;
    let later = changes.iter().rev();
    let case = |(at, seconds): &(Duration, i64)| {
        format!("WHEN at >= {} THEN {seconds}000000000 ", nanos(*at))
    };
    let later: String = later.map(case).collect();
    let ahead = format!("CASE {later}WHEN TRUE THEN {first}000000000 END");
    let which = if has_caller {
        "purchases WHERE caller = ?3 AND"
    } else {
        // SQLite joins in this order only if it is told to.
        match dialect {
            SqlDialect::Sqlite => "callers CROSS JOIN purchases ON caller = name WHERE",
            #[cfg(feature = "postgres")]
            SqlDialect::Postgres => "callers JOIN purchases ON caller = name WHERE",
        }
    };
    format!(
        "WITH RECURSIVE callers (name) AS (
            SELECT min(caller) FROM purchases
            UNION ALL
            SELECT (SELECT min(caller) FROM purchases WHERE caller > name) FROM callers
            WHERE name IS NOT NULL)
        SELECT caller, (at + {ahead}) / 86400000000000 AS local_day, service, model,
            count(*),
            CAST(coalesce(sum(cost_micros), 0) AS BIGINT),
            CAST(sum(CASE WHEN state = 'unknown' THEN price_micros ELSE 0 END) AS BIGINT),
            CAST(sum(CASE WHEN state IN ('held', 'sent') THEN price_micros ELSE 0 END) AS BIGINT),
            CAST(coalesce(sum(cost_micros * replays), 0) AS BIGINT),
            group_name
        FROM {which} at >= ?1 AND state <> 'released'
        GROUP BY caller, local_day, service, model, group_name
        ORDER BY caller, local_day, service, model, coalesce(group_name, '') LIMIT ?2"
    )
}

/// Returns the size of the file and its write-ahead log; `None` in memory.
fn file_bytes(path: &Path) -> Option<u64> {
    let log = fs::metadata(with_suffix(path, "-wal")).map_or(0, |log| log.len());
    Some(fs::metadata(path).ok()?.len() + log)
}

const MAX_CHECKPOINTS: i64 = 1_000;

record!(Snapshot {
    at: "at",
    balance_cents: "balance_cents",
    chats: "chats",
    chat_cents: "chat_cents",
    spent_cents: "spent_cents",
});
record!(Checkpoint {
    snapshot: "at, balance_cents, chats, chat_cents, spent_cents",
    settled_through: "settled",
    last_number: "purchases",
});

impl Store {
    /// Records spending that the ledger lacks as one charged purchase of today. Budgets count it,
    /// and refuse nothing. The balance stays, because the gateway's includes it already.
    pub async fn record_missing_spend(&self, missing: &MissingSpend) -> Result<(), Unavailable> {
        let MissingSpend { id, caller, model, amount } = *missing;
        let unique = *blake3::hash(id.0.as_bytes()).as_bytes();
        let reservation = Reservation {
            id,
            caller: caller.into(),
            service: Service::Other,
            model: model.into(),
            price: amount,
            dedupe_key: DedupeKey::IdempotencyKey { key: unique, payload: unique },
            group: None,
            token: None,
            budgets: Budgets::default(),
            attempt: 0,
            replay_only: false,
            requires: Default::default(),
        };
        let record = move |ledger: &Ledger| {
            let credit = ledger.credit.get();
            ledger.credit.set(Credit::default());
            if let Err(refused) = ledger.reserve(&reservation, None)? {
                return Err(Unavailable(refused.to_string().into()).into());
            }
            let charged =
                Settlement::Charged { cost: amount, reply: None, keep: Duration::ZERO, job: None };
            ledger.settle(id, &charged)?;
            ledger.credit.set(credit);
            Ok(())
        };
        self.run("record_missing_spend", Durability::Synced, record).await
    }

    pub async fn record_checkpoint(&self, snapshot: Snapshot) -> Result<(), Unavailable> {
        self.query("record_checkpoint", move |ledger| record_checkpoint(ledger, snapshot)).await
    }

    pub async fn latest_checkpoint(&self) -> Result<Option<Checkpoint>, Unavailable> {
        self.query("latest_checkpoint", |ledger| latest_checkpoint(&*ledger.db)).await
    }

    pub async fn latest_snapshots(&self, most: usize) -> Result<Vec<Snapshot>, Unavailable> {
        let latest = select::<Snapshot>("FROM checkpoints ORDER BY number DESC LIMIT ?");
        let find = move |ledger: &Ledger| ledger.db.all(&latest, [signed(most)], read);
        self.query("latest_snapshots", find).await
    }

    pub async fn unknown_after(&self, number: u64) -> Result<u64, Unavailable> {
        let count = "SELECT count(*) FROM purchases WHERE number > ? AND state = 'unknown'";
        let report = move |db: &dyn Engine| db.one(count, [number], read);
        self.run_report("unknown_after", report).await
    }

    /// Returns what the purchases after this number cost at most.
    pub async fn spend_after(&self, number: u64) -> Result<Usd, Unavailable> {
        let sum = "SELECT CAST(coalesce(sum(coalesce(cost_micros, price_micros)), 0) AS BIGINT)
            FROM purchases WHERE number > ? AND state <> 'released'";
        let report = move |db: &dyn Engine| db.one(sum, [signed(number)], read);
        self.run_report("spend_after", report).await
    }

    /// Returns every purchase after `settled`, in order, and the earlier ones that may still
    /// change.
    ///
    /// These are unknown ones, and charged videos whose end, or whose job's failure, is later
    /// than `refundable` (wall-clock time since the Unix epoch).
    pub async fn evidence(
        &self,
        settled: u64,
        refundable: Duration,
    ) -> Result<Vec<Evidence>, Unavailable> {
        let rows = format!(
            "SELECT {}, number, assumed, unrecognised = 0, job_state FROM purchases
            LEFT JOIN (SELECT purchase, state AS job_state, status_at FROM jobs) AS jobs
                ON purchase = id
            WHERE number > ?1 OR state = 'unknown'
                OR (state = 'charged' AND service = 'video'
                    AND CASE WHEN job_state = 'failed' THEN status_at ELSE ended_at END > ?2)
            ORDER BY number",
            PurchaseRecord::COLUMNS
        );
        let report = move |db: &dyn Engine| {
            db.all(&rows, params![signed(settled), refundable], |row| {
                let (purchase, number, is_assumed, is_account_confirmed, job) = read(row)?;
                Ok(Evidence { purchase, number, is_assumed, is_account_confirmed, job })
            })
        };
        self.run_report("evidence", report).await
    }

    /// Returns whether these key ids are the ledger's: none is recorded yet, or at least one
    /// is. `keys` must not be empty.
    pub async fn check_account(
        &self,
        keys: Vec<String>,
        how: AccountCheck,
    ) -> Result<bool, Unavailable> {
        let compare = move |ledger: &Ledger| {
            let db = &*ledger.db;
            let recorded = "SELECT id FROM account_keys WHERE retired IS NULL";
            let recorded: Vec<String> = db.all(recorded, (), read)?;
            let is_same = recorded.is_empty() || keys.iter().any(|key| recorded.contains(key));
            if how == AccountCheck::Compare {
                return Ok(is_same);
            }
            if !is_same && how == AccountCheck::Record {
                return Ok(false);
            }
            if !is_same {
                let retire = "UPDATE checkpoints SET settled = NULL, purchases = NULL
                    WHERE purchases IS NOT NULL";
                db.run(retire, ())?;
                let retire = "UPDATE account_keys SET retired = ? WHERE retired IS NULL";
                db.run(retire, [ledger.now()])?;
            }
            for key in keys.iter().filter(|key| !is_same || !recorded.contains(key)) {
                insert!(db, account_keys { id: key, noted: ledger.now() }
                    "ON CONFLICT (id) DO UPDATE SET retired = NULL
                    WHERE account_keys.retired IS NOT NULL")?;
            }
            Ok(true)
        };
        self.run("check_account", Durability::Synced, compare).await
    }
}

fn record_checkpoint(ledger: &Ledger, snapshot: Snapshot) -> Result<()> {
    let db = &*ledger.db;
    let before = latest_checkpoint(db)?.map_or(0, |before| before.settled_through);
    let settles = snapshot.at.saturating_sub(SETTLES_WITHIN);
    let find = "SELECT (SELECT min(number) - 1 FROM purchases
                WHERE number > ? AND (ended_at IS NULL OR ended_at > ?)),
            (SELECT coalesce(max(number), 0) FROM purchases)";
    let (settled, number): (Option<i64>, i64) = db.one(find, params![before, settles], read)?;
    insert!(
        db,
        checkpoints {
            at: snapshot.at,
            balance_cents: snapshot.balance_cents,
            chats: signed(snapshot.chats),
            chat_cents: signed(snapshot.chat_cents),
            spent_cents: signed(snapshot.spent_cents),
            settled: settled.unwrap_or(number),
            purchases: number,
        }
    )?;
    let old = "DELETE FROM checkpoints WHERE number <= (SELECT max(number) FROM checkpoints) - ?";
    db.run(old, [MAX_CHECKPOINTS]).map(drop)
}

/// Without numbers, a checkpoint is from an earlier version or another account, and is ignored.
fn latest_checkpoint(db: &dyn Engine) -> Result<Option<Checkpoint>> {
    let latest = "FROM checkpoints WHERE purchases IS NOT NULL ORDER BY number DESC LIMIT 1";
    db.first(&select::<Checkpoint>(latest), (), read)
}
