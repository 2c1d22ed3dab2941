//! The events that wait for webhooks, and the alerts behind them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::column::{self, nanos};
use super::ledger::Ledger;
use crate::contract::event::EventKind;
use crate::contract::money::Usd;
use crate::ledger::engine::{Engine, Result, Sql, params};
use crate::ledger::outbox::{
    ALERT_RETENTION, EVENT_RETENTION, crossing_event_id, event_id, job_events, unknown_event_id,
};
use crate::ledger::rules::{self, Crossing, ScopeBudget, Today};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Alert, JobState, OutboxEvent, PurchaseId, Reservation, ScopeKind, Store, Subscription,
    Unavailable, WebhookId,
};

const WRITE: &str = "INSERT INTO outbox (id, webhook, event, at, due, data)
    SELECT ?1, webhook, event, ?2, ?2, ?3 FROM webhooks WHERE event = ?4 ON CONFLICT DO NOTHING";
const RAISE: &str = "INSERT INTO alerts (rule, whose, period, at)
    SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM webhooks WHERE event = ?1)
    ON CONFLICT DO NOTHING";
const CLAIM: &str = "UPDATE outbox SET due = ?2 WHERE number IN (
        SELECT number FROM outbox WHERE webhook = ?1 AND due <= ?3 ORDER BY due, number LIMIT ?4)
    RETURNING id, event, at, data, attempts";

/// Ends the leases of the server that had this file before: its first attempts are repeated at once.
pub(super) fn recover(ledger: &Ledger) -> Result<()> {
    let end = "UPDATE outbox SET due = ?1 WHERE due > ?1 AND attempts = 0";
    ledger.db.run(end, [nanos(ledger.now())])?;
    Ok(())
}

impl Store {
    /// Replaces which webhook wants which event, from now on.
    pub async fn set_webhooks(&self, wanted: Arc<[Subscription]>) -> Result<(), Unavailable> {
        let write = move |ledger: &Ledger| {
            let known = ledger.db.all("SELECT event, webhook FROM webhooks", (), |row| {
                Ok((row.get::<String>(0)?, WebhookId(row.get(1)?)))
            })?;
            let is_wanted = |(event, webhook): &(String, WebhookId)| {
                wanted.iter().any(|(kind, one)| kind.name() == event && one == webhook)
            };
            for (event, webhook) in known.iter().filter(|row| !is_wanted(row)) {
                let delete = "DELETE FROM webhooks WHERE event = ? AND webhook = ?";
                ledger.db.run(delete, params![event, webhook.0])?;
            }
            let insert =
                "INSERT INTO webhooks (event, webhook) VALUES (?, ?) ON CONFLICT DO NOTHING";
            for (kind, webhook) in wanted.iter() {
                ledger.db.run(insert, params![kind.name(), webhook.0])?;
            }
            Ok(())
        };
        // Recovery may follow, and reports what has become unknown.
        self.execute("set_webhooks", Durability::Buffered, write).await
    }

    /// Returns events that are due at a webhook, in any order. No other call returns them
    /// during `lease`.
    pub async fn claim_events(
        &self,
        webhook: WebhookId,
        most: usize,
        lease: Duration,
    ) -> Result<Vec<OutboxEvent>, Unavailable> {
        self.query("claim_events", move |ledger| {
            let now = ledger.now();
            let until = nanos(now.saturating_add(lease));
            let values = params![webhook.0, until, nanos(now), column::signed(most)];
            ledger.db.all(CLAIM, values, |row| {
                Ok(OutboxEvent {
                    id: row.get(0)?,
                    event: row.get(1)?,
                    at: column::moment(row, 2)?,
                    data: row.get(3)?,
                    attempts: row.get(4)?,
                })
            })
        })
        .await
    }

    /// Deletes an event that was delivered, or that was given up.
    pub async fn finish_event(&self, id: Arc<str>, webhook: WebhookId) -> Result<(), Unavailable> {
        let delete = "DELETE FROM outbox WHERE id = ? AND webhook = ?";
        self.query("finish_event", move |ledger| {
            ledger.db.run(delete, params![id, webhook.0])?;
            Ok(())
        })
        .await
    }

    /// Counts a failed attempt. The next one is due after `wait`.
    pub async fn delay_event(
        &self,
        id: Arc<str>,
        webhook: WebhookId,
        wait: Duration,
    ) -> Result<(), Unavailable> {
        let delay =
            "UPDATE outbox SET due = ?, attempts = attempts + 1 WHERE id = ? AND webhook = ?";
        self.query("delay_event", move |ledger| {
            let due = nanos(ledger.now().saturating_add(wait));
            ledger.db.run(delay, params![due, id, webhook.0])?;
            Ok(())
        })
        .await
    }

    /// Writes the event of an alert, unless the alert is raised already or no webhook wants it.
    pub async fn raise_alert(&self, alert: Alert) -> Result<(), Unavailable> {
        self.query("raise_alert", move |ledger| raise(&*ledger.db, &alert, ledger.now())).await
    }

    /// Ends an alert without a period, so that it can be raised again.
    pub async fn end_alert(&self, kind: EventKind, whose: Arc<str>) -> Result<(), Unavailable> {
        let delete = "DELETE FROM alerts WHERE rule = ? AND whose = ? AND period = 0";
        self.query("end_alert", move |ledger| {
            ledger.db.run(delete, params![kind.name(), whose])?;
            Ok(())
        })
        .await
    }
}

/// Raises an alert, unless it is raised already or no webhook wants it.
pub(super) fn raise(db: &dyn Engine, alert: &Alert, now: Duration) -> Result<()> {
    let Alert { kind, whose, period, .. } = alert;
    let id = event_id(*kind, &format!("{whose} {period} {}", now.as_nanos()));
    raise_with_id(db, alert, &id, now)
}

fn raise_with_id(db: &dyn Engine, alert: &Alert, id: &str, now: Duration) -> Result<()> {
    let Alert { kind, whose, period, data } = alert;
    let row = params![kind.name(), whose, column::signed(*period), nanos(now)];
    if db.run(RAISE, row)? == 1 {
        db.run(WRITE, params![id, nanos(now), data, kind.name()])?;
    }
    Ok(())
}

/// Reports the budgets of which a purchase has just brought the spending to a threshold. `scopes`
/// do not include it.
pub(super) fn write_crossings(
    db: &dyn Engine,
    reservation: &Reservation,
    scopes: &[ScopeBudget],
    (now, today): (Duration, Today),
) -> Result<()> {
    let Reservation { budgets, price, .. } = reservation;
    if budgets.thresholds.is_none() {
        return Ok(());
    }
    for crossing in rules::crossings(scopes, *price, budgets.thresholds) {
        let whose = match crossing.scope {
            ScopeKind::Total => None,
            ScopeKind::Group => reservation.group.as_deref(),
            ScopeKind::Caller => Some(&*reservation.caller),
            ScopeKind::Token => reservation.token.as_deref(),
        };
        let Crossing { scope, period, percent, limit, spent } = crossing;
        let name = whose.map(|whose| format!(" {whose}")).unwrap_or_default();
        let (scope, in_period) = (scope.name(), period.name());
        let data = json!({
            "scope": scope, "name": whose, "period": in_period, "percent": percent,
            "limit": limit, "limit_micros": limit.as_micros(),
            "spent": spent, "spent_micros": spent.as_micros(),
        });
        let limit = limit.as_micros();
        let alert = Alert {
            kind: EventKind::BudgetThreshold,
            whose: format!("{scope}{name} {in_period} {percent}% of {limit}").into(),
            period: today.number(period),
            data: data.to_string().into(),
        };
        let id = crossing_event_id(reservation.id, &crossing);
        raise_with_id(db, &alert, &id, now)?;
    }
    Ok(())
}

/// Reports a purchase that has just become unknown.
pub(super) fn write_unknown(db: &dyn Engine, id: PurchaseId, now: Duration) -> Result<()> {
    let kind = EventKind::OutcomeUnknown.name();
    let wanted = "SELECT caller, model, price_micros FROM purchases
        WHERE id = ?1 AND EXISTS (SELECT 1 FROM webhooks WHERE event = ?2)";
    let data = db.first(wanted, params![id.0.as_bytes(), kind], |row| {
        let (caller, model, price): (String, String, Usd) =
            (row.get(0)?, row.get(1)?, column::money(row, 2)?);
        Ok(json!({
            "purchase": id.to_string(), "caller": caller, "model": model,
            "price": price, "price_micros": price.as_micros(),
        }))
    })?;
    let Some(data) = data else { return Ok(()) };
    db.run(WRITE, params![unknown_event_id(id), nanos(now), data.to_string(), kind])?;
    Ok(())
}

/// Reports a job that has just reached this state.
pub(super) fn write_job(
    db: &dyn Engine,
    request_id: &str,
    state: JobState,
    now: Duration,
) -> Result<()> {
    let Some([own, openai]) = job_events(state) else { return Ok(()) };
    let wanted = "SELECT model, owner, price_micros FROM jobs
        WHERE request_id = ?1 AND EXISTS (SELECT 1 FROM webhooks WHERE event = ?2 OR event = ?3)";
    let job = db.first(wanted, params![request_id, own.name(), openai.name()], |row| {
        let (model, caller, cost): (String, String, Usd) =
            (row.get(0)?, row.get(1)?, column::money(row, 2)?);
        Ok(json!({
            "request_id": request_id, "model": model, "caller": caller,
            "cost": cost, "cost_micros": cost.as_micros(),
        }))
    })?;
    let Some(job) = job else { return Ok(()) };
    for (kind, data) in [(own, job), (openai, json!({ "id": request_id }))] {
        let values = params![event_id(kind, request_id), nanos(now), data.to_string(), kind.name()];
        db.run(WRITE, values)?;
    }
    Ok(())
}

/// Deletes events that nothing has delivered, and alerts of periods that are over.
pub(super) fn purge(db: &dyn Engine, now: Duration) -> Result<()> {
    let before = |retention| nanos(now.saturating_sub(retention));
    db.run("DELETE FROM outbox WHERE at < ?", [before(EVENT_RETENTION)])?;
    let over = "DELETE FROM alerts WHERE period <> 0 AND at < ?";
    db.run(over, [before(ALERT_RETENTION)])?;
    Ok(())
}
