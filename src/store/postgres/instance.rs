//! The life of an instance: it registers, beats, and is buried by others when its lease is over.
//!
//! Its own view of the lease is narrower than theirs, so no purchase becomes unknown while its owner
//! may still decide anything about it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};
use uuid::Uuid;

use super::clock_jumps::{self, ClockComparison, ClockReading, first_row};
use super::column::{self, nanos};
use super::events::unknown_data;
use super::flush::PreparedConnection;
use super::lanes::Lanes;
use super::schema::{self, after_loss, new_name};
use super::settle;
use super::shared::{LastBeat, Shared};
use super::step::{Need, Statement, Step, Value, statement};
use super::turns;
use crate::clock;
use crate::store::{PurchaseId, PurchaseState, Reason, Settlement};
use crate::sync::lock;

const BEAT: Duration = Duration::from_secs(2);
const SWEEP: Duration = Duration::from_secs(10);
/// An open purchase of this instance that is older, and that it does not have in hand, was lost.
const SWEEP_AGE: Duration = Duration::from_secs(30);
/// Slots that a lost connection has left behind were answered before now, if they were sent.
const SWEEP_SLOTS: &str = "UPDATE slots SET replied = greatest(at, {now})
    WHERE (owner = $1 OR NOT EXISTS (SELECT 1 FROM instances WHERE id = slots.owner AND ended IS NULL))
        AND replied IS NULL AND at < {now} - $2::bigint AND NOT id = ANY($3::uuid[])";
const DOUBT_RETENTION: Duration = Duration::from_secs(120);

/// Whether a ledger was moved is asked here once more: an instance that was declared dead joins again.
/// The secret is that of the former number (`$6`).
const REGISTER: &str = "INSERT INTO instances (kind, name, pid, version, began, until, secret)
    SELECT $1::text, $2::text, $3::bigint, $4::int, {clock}, {clock} + 15000000000,
        (SELECT secret FROM instances WHERE id = $6::bigint) FROM store
    WHERE ($5::boolean OR moved_to IS NULL) AND NOT EXISTS (SELECT 1 FROM imports) RETURNING id";
/// Computes the name of a ledger that had the name `$known` before it lost commits.
macro_rules! renamed {
    ($known:literal) => {
        concat!(
            "CASE WHEN store.name = ",
            $known,
            " THEN ",
            new_name!("{now}"),
            " ELSE store.name END"
        )
    };
}

/// Renames the ledger, too, if it has forgotten a heartbeat (`$2`) that it had committed: then it may
/// have forgotten purchases. The first instance that notices renames it: others find another name than
/// that of their last heartbeat (`$5`).
const BEAT_SQL: &str = concat!(
    "WITH beaten AS (
  UPDATE instances SET until = {clock} + 15000000000, beat = beat + 1, rules = $4::bytea
  WHERE id = $1 AND ended IS NULL RETURNING beat
), lost AS (
  SELECT beat FROM beaten WHERE beat <= $2::bigint
), renamed AS (
  UPDATE store SET name = ",
    renamed!("$5::text"),
    " FROM lost RETURNING store.name
), ",
    after_loss!("lost", "$3::bigint"),
    "
SELECT beat, {now}, coalesce(renamed.name, store.name), {clock}, clock_moved,
  (SELECT count(*) FROM instances WHERE id <> $1 AND ended IS NULL AND until >= {clock} AND rules <> $4::bytea),
  CASE WHEN renamed.name IS NOT NULL THEN setval(of, nextval(of) + 1000000) END
FROM beaten, rate_limit, instance_numbers, store LEFT JOIN renamed ON true"
);
const NAME: &str = "SELECT name FROM store";
const IS_LISTED: &str = "SELECT 1 FROM instances WHERE id = $1";
/// The same, if the database has forgotten the instance itself.
const RENAME: &str = concat!(
    "WITH renamed AS (
  UPDATE store SET name = ",
    renamed!("$2::text"),
    " RETURNING store.name
), ",
    after_loss!("renamed", "$1::bigint"),
    "
SELECT name, setval(of, nextval(of) + 1000000) FROM renamed, instance_numbers"
);
/// Those that did not sign off, and whether their lease is valid.
pub(super) const LIVING: &str =
    "SELECT id, name, until >= {clock} FROM instances WHERE ended IS NULL ORDER BY id";
const EXPIRED: &str = "SELECT id FROM instances
    WHERE ended IS NULL AND until < {clock} AND id <> $1 ORDER BY id LIMIT 1";
const LOST: &str = "SELECT id, state FROM purchases
    WHERE (owner = $1 OR NOT EXISTS (SELECT 1 FROM instances WHERE id = owner AND ended IS NULL))
        AND ended_at IS NULL AND at < {now} - $2::bigint AND NOT id = ANY($3::uuid[])";

/// Ends an instance whose lease is over, or (`$2`) the own one, with all that it left open. A
/// transaction of that instance which is under way keeps it alive until the next attempt.
///
/// Others must have been able to beat, too. So the burial fails more than two seconds after the
/// database has answered a heartbeat of this instance (`$3`).
///
/// Unsent purchases are released, sent ones become unknown. Its slots count as answered when nothing
/// that it wrote can still arrive.
pub(super) const BURY: &str = concat!(
    "
WITH t AS MATERIALIZED (SELECT {now} AS now),
dead AS MATERIALIZED (
  SELECT id FROM instances
  WHERE id = $1 AND ended IS NULL AND ($2::boolean OR until < {clock})
    AND coalesce({clock} < $3::bigint + 2000000000, true) FOR UPDATE SKIP LOCKED
), ended AS (
  UPDATE instances SET ended = {clock} FROM dead WHERE instances.id = dead.id
), left_open AS (
  UPDATE purchases SET state = CASE state WHEN 'held' THEN 'released' ELSE 'unknown' END,
    ended_at = t.now,
    key = CASE state WHEN 'held' THEN NULL ELSE key END,
    payload = CASE state WHEN 'held' THEN NULL ELSE payload END,
    fingerprint = CASE state WHEN 'held' THEN NULL ELSE fingerprint END
  FROM t, dead WHERE owner = dead.id AND ended_at IS NULL
  RETURNING purchases.id, state, caller, model, group_name, token, day, month, price_micros
), released AS (
  SELECT caller, group_name, token, day, month, sum(price_micros)::bigint AS micros
  FROM left_open WHERE state = 'released' GROUP BY caller, group_name, token, day, month
), counted AS (
  UPDATE spent SET micros = spent.micros - less.micros
  FROM (
    SELECT s.scope, c.unit, c.period, sum(micros)::bigint AS micros
    FROM released, LATERAL (VALUES ('total'), ('caller ' || caller), ('group ' || group_name),
      ('token ' || token)) AS s(scope),
      LATERAL (VALUES ('day', day), ('month', month)) AS c(unit, period)
    WHERE s.scope IS NOT NULL
    GROUP BY s.scope, c.unit, c.period
  ) less
  WHERE spent.scope = less.scope AND spent.unit = less.unit AND spent.period = less.period
), credited AS (
  UPDATE account SET committed = committed - (SELECT sum(micros) FROM released)::bigint
  WHERE EXISTS (SELECT 1 FROM released)
), answered AS (
  UPDATE slots SET replied = greatest(at, t.now) + CASE WHEN $2::boolean THEN 0 ELSE 15000000000 END
  FROM t, dead WHERE owner = dead.id AND replied IS NULL
), orphaned AS (
  UPDATE jobs SET poller = NULL FROM dead WHERE poller = dead.id AND state = 'open'
), gone AS (
  DELETE FROM waiting USING dead WHERE owner = dead.id
), reported AS (
  INSERT INTO outbox (id, webhook, event, at, due, data)
  SELECT 'evt_' || replace(id::text, '-', ''), webhook, event, t.now, t.now, ",
    unknown_data!("id"),
    "
  FROM t, left_open, webhooks WHERE state = 'unknown' AND event = 'outcome.unknown'
  ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM dead),
  (SELECT count(*) FROM left_open WHERE state = 'released'),
  (SELECT count(*) FROM left_open WHERE state = 'unknown')"
);

fn registration(shared: &Shared) -> Statement {
    let target = &shared.target;
    let (kind, name) = (target.kind.name(), target.instance_name.clone());
    let process = i64::from(std::process::id());
    let former = shared.number();
    statement!(REGISTER, kind, name, process, schema::NEWEST, target.reads_only, former)
}

/// Enters this process into the list of instances, and returns its number.
pub(super) async fn register(session: &PreparedConnection, shared: &Shared) -> Result<(), Reason> {
    let left = (shared.since_boot)();
    let Statement { sql, values } = registration(shared);
    let rows = session.query(sql, &values).await?;
    let id = rows.first().ok_or("the database gave no number")?.try_get(0)?;
    shared.instance.store(id, Ordering::Relaxed);
    shared.lease.acknowledge(id, left);
    Ok(())
}

/// Ends this instance after its queues are empty, so that nobody has to wait for its lease.
pub(super) fn farewell(shared: &Shared) -> Step {
    shared.lease.end();
    let stamp = shared.clock.stamp();
    Step { stamp, ..burial(shared.number(), None) }
}

/// What the answer to a heartbeat says.
#[derive(Clone, Copy, Debug)]
struct Heartbeat {
    /// By the database's clock, in nanoseconds.
    answered_at: i64,
    /// Whether that clock has jumped ahead.
    has_jumped: bool,
}

/// Returns the step that ends another instance after this heartbeat, or the own one.
fn burial(instance: i64, heartbeat: Option<Heartbeat>) -> Step {
    let answered_at = heartbeat.map(|heartbeat| heartbeat.answered_at);
    let bury = statement!(BURY, instance, heartbeat.is_none(), answered_at);
    Step::new(Need::Counting, vec![bury]).ending_slots()
}

/// Beats, buries and sweeps until `stop`.
pub(super) async fn pulse(shared: Arc<Shared>, lanes: Lanes, mut stop: watch::Receiver<bool>) {
    let mut ticks = interval(BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_sweep = clock::now();
    // Beats wait for nothing else: a stalled connection must not let the lease end.
    let mut cleaning = None::<JoinHandle<()>>;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.buried.notified() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let heartbeat = beat(&shared, &lanes).await;
        if cleaning.as_ref().is_none_or(JoinHandle::is_finished) {
            let is_sweep_due = last_sweep.elapsed() >= SWEEP;
            if is_sweep_due {
                last_sweep = clock::now();
            }
            let (shared, lanes) = (Arc::clone(&shared), lanes.clone());
            cleaning = Some(tokio::spawn(clean_up(shared, lanes, heartbeat, is_sweep_due)));
        }
    }
}

/// Does what a heartbeat has found to do. Without an answer to it, nobody is declared dead: others may
/// wait for theirs, too.
async fn clean_up(
    shared: Arc<Shared>,
    lanes: Lanes,
    heartbeat: Option<Heartbeat>,
    is_sweep_due: bool,
) {
    if let Some(heartbeat) = heartbeat {
        if heartbeat.has_jumped {
            keep_slots(&shared, &lanes).await;
        }
        if shared.lease.may_bury((shared.since_boot)()) {
            bury_expired(&shared, &lanes, heartbeat).await;
        }
    }
    if is_sweep_due {
        sweep(&shared, &lanes).await;
        sweep_slots(&shared, &lanes).await;
    }
}

async fn beat(shared: &Shared, lanes: &Lanes) -> Option<Heartbeat> {
    let left = (shared.since_boot)();
    let (me, known) = (shared.number(), lock(&shared.last_beat).clone());
    let period = shared.target.rate_period.map(nanos);
    let rules = lock(&shared.rules).map(|rules| rules.to_vec());
    let name_before = Arc::clone(&lock(&shared.name));
    let ledger = known.ledger.to_string();
    let step = Step::plain(statement!(BEAT_SQL, me, known.number, period, rules, ledger));
    let rows = lanes.request(&lanes.pulse, step).await.ok()?;
    let Some(row) = first_row(&rows, 0) else {
        let ask = Step::plain(statement!(IS_LISTED, me));
        // Else the next beat asks again.
        let rows = lanes.request(&lanes.pulse, ask).await.ok()?;
        join_again(shared, lanes, first_row(&rows, 0).is_none()).await;
        return None;
    };
    shared.lease.acknowledge(me, left);
    if let Ok(now) = column::get(row, 1) {
        shared.clock.note(now);
    }
    let name = column::text(row, 2).ok()?;
    // The former name is no news: the sales lane may have learned another one meanwhile.
    if name != name_before {
        *lock(&shared.name) = Arc::clone(&name);
    }
    let number = column::get::<i64>(row, 0).ok()?;
    *lock(&shared.last_beat) = LastBeat { number, ledger: name };
    if number <= known.number {
        shared.metrics.rewinds.inc();
        error!("ledger database lost commits; ledger renamed");
    }
    note_other_rules(shared, column::get(row, 5).ok()?);
    let (database, moved) = (column::get(row, 3).ok()?, column::get(row, 4).ok()?);
    let (reading, now) = (ClockReading { database, moved, asked: left }, (shared.since_boot)());
    let has_jumped = clock_jumps::has_jumped(&shared.last_reading, reading, now);
    if has_jumped {
        // By that clock, all leases are over.
        shared.lease.postpone_burials(now);
    }
    Some(Heartbeat { answered_at: database, has_jumped })
}

/// Notes how many servers go by other rules.
fn note_other_rules(shared: &Shared, servers: i64) {
    let before = shared.metrics.settings_differ.set(servers);
    if before == 0 && servers > 0 {
        warn!(servers, "other servers have other budgets or limits");
    }
}

/// Moves the replies of slots by the jump of the database's clock.
async fn keep_slots(shared: &Shared, lanes: &Lanes) {
    let comparison = ClockComparison::new(&shared.last_reading, shared.since_boot);
    let [compare, move_replies] = comparison.statements();
    let step = Step::new(Need::Plain, vec![compare, statement!(turns::LOCK), move_replies]);
    // If it fails, the next heartbeat or turn finds the jump again.
    if let Ok(rows) = lanes.request(&lanes.marks, step).await {
        let compared = [first_row(&rows, 0), first_row(&rows, 2)];
        comparison.finish(&shared.last_reading, &shared.metrics, compared).ok();
    }
}

/// After a burial, nothing of the old number is decided here any more. If the database has forgotten
/// that number, it may have forgotten purchases, too, so the ledger gets another name.
async fn join_again(shared: &Shared, lanes: &Lanes, is_forgotten: bool) {
    shared.lease.end();
    let left = (shared.since_boot)();
    let old = shared.number();
    let period = shared.target.rate_period.map(nanos);
    let known = lock(&shared.last_beat).ledger.to_string();
    let name = if is_forgotten { statement!(RENAME, period, known) } else { statement!(NAME) };
    let joining = Step::new(Need::Plain, vec![registration(shared), name]);
    let Ok(rows) = lanes.request(&lanes.pulse, joining).await else { return };
    let Some(Ok(id)) = first_row(&rows, 0).map(|row| column::get::<i64>(row, 0)) else {
        error!(instance = old, "instance was declared dead, and its ledger was moved");
        return;
    };
    // Before it may sell: callers that name the former ledger are refused.
    if let Some(Ok(name)) = first_row(&rows, 1).map(|row| column::text(row, 0)) {
        shared.join_ledger(name);
    }
    if is_forgotten {
        shared.metrics.rewinds.inc();
        error!("ledger database lost commits; ledger renamed");
    }
    error!(instance = old, joined_as = id, "instance was declared dead; it joins again");
    shared.instance.store(id, Ordering::Relaxed);
    shared.lease.acknowledge(id, left);
}

async fn bury_expired(shared: &Shared, lanes: &Lanes, heartbeat: Heartbeat) {
    let me = shared.number();
    let find = Step::plain(statement!(EXPIRED, me));
    let Ok(rows) = lanes.request(&lanes.reads, find).await else { return };
    let Some(Ok(instance)) = first_row(&rows, 0).map(|row| column::get::<i64>(row, 0)) else {
        return;
    };
    let burial = burial(instance, Some(heartbeat)).guarded(me);
    let Ok(rows) = lanes.request(&lanes.sales, burial).await else { return };
    let Some(row) = first_row(&rows, 0) else { return };
    let count = |column: usize| column::count(row, column).unwrap_or_default();
    if count(0) == 1 {
        let (released, unknown) = (count(1), count(2));
        let metrics = &shared.metrics;
        metrics.instances_buried.inc();
        metrics.count_buried_purchases(released, unknown);
        warn!(instance, released, unknown, "instance declared dead");
    }
}

/// Ends open purchases of this instance that it does not have in hand, and those of dead numbers. A
/// lost COMMIT left them.
async fn sweep(shared: &Shared, lanes: &Lanes) {
    let (in_hand, doubtful): (Vec<Uuid>, Vec<PurchaseId>) = {
        let mut running = lock(&shared.running);
        running.doubtful.retain(|_, since| since.elapsed() < DOUBT_RETENTION);
        let in_hand = running.purchases.keys().map(|id| id.0).collect();
        (in_hand, running.doubtful.keys().copied().collect())
    };
    let age: Value = Box::new(nanos(SWEEP_AGE));
    let values: Vec<Value> = vec![Box::new(shared.number()), age, Box::new(in_hand)];
    let find = Step::plain(Statement { sql: LOST, values });
    let Ok(rows) = lanes.request(&lanes.reads, find).await else { return };
    for row in rows.iter().flatten() {
        let (Ok(id), Ok(state)) = (column::id(row, 0), column::state(row, 1)) else { continue };
        let is_unsent = state == PurchaseState::Held || doubtful.contains(&id);
        let settlement = if is_unsent { Settlement::Released } else { Settlement::Unknown };
        let state = state.name();
        if lanes.request(&lanes.sales, settle::step(shared, id, &settlement)).await.is_ok() {
            info!(purchase = %id, state, "ended purchase of a lost commit");
        }
    }
}

/// Ends slots of this instance that it does not have in hand, and those of dead numbers.
async fn sweep_slots(shared: &Shared, lanes: &Lanes) {
    let (me, in_hand) = (shared.number(), shared.slots.ids());
    let sweep = statement!(SWEEP_SLOTS, me, nanos(SWEEP_AGE), in_hand);
    // If it fails, the next sweep finds them.
    lanes.request(&lanes.marks, Step::plain(sweep)).await.ok();
}
