//! The events that wait for webhooks, and the alerts behind them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::column::{Record, insert, read, record, signed};
use super::ledger::Ledger;
use crate::gateway::contract::event::EventKind;
use crate::gateway::contract::money::Usd;
use crate::ledger::engine::{Result, Sql, params};
use crate::ledger::outbox::{
    ALERT_RETENTION, EVENT_RETENTION, crossing_event_id, event_id, job_events, unknown_event_id,
};
use crate::ledger::rules::{self, Crossing, ScopeBudget, Today};
use crate::ledger::writer::Durability;
use crate::ledger::{
    Alert, JobState, OutboxEvent, PurchaseId, Reservation, ScopeKind, Store, Subscription,
    Unavailable, WebhookId,
};

record!(OutboxEvent { id: "id", event: "event", at: "at", data: "data", attempts: "attempts" });

const WRITE: &str = "INSERT INTO outbox (id, webhook, event, at, due, data)
    SELECT ?1, webhook, event, ?2, ?2, ?3 FROM webhooks WHERE event = ?4 ON CONFLICT DO NOTHING";
const RAISE: &str = "INSERT INTO alerts (rule, whose, period, at)
    SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM webhooks WHERE event = ?1)
    ON CONFLICT DO NOTHING";
/// Ends the leases of the server that had this file before: its first attempts are repeated at once.
pub(super) fn recover(ledger: &Ledger) -> Result<()> {
    let end = "UPDATE outbox SET due = ?1 WHERE due > ?1 AND attempts = 0";
    ledger.db.run(end, [ledger.now()]).map(drop)
}

impl Store {
    /// Replaces which webhook wants which event, from now on.
    pub async fn set_webhooks(&self, wanted: Arc<[Subscription]>) -> Result<(), Unavailable> {
        let write = move |ledger: &Ledger| {
            let known: Vec<(String, WebhookId)> =
                ledger.db.all("SELECT event, webhook FROM webhooks", (), read)?;
            for (event, webhook) in known {
                let is_it = |(kind, one): &Subscription| kind.name() == event && *one == webhook;
                if !wanted.iter().any(is_it) {
                    let delete = "DELETE FROM webhooks WHERE event = ? AND webhook = ?";
                    ledger.db.run(delete, params![event, webhook])?;
                }
            }
            for (kind, webhook) in wanted.iter() {
                insert!(ledger.db, webhooks { event: kind, webhook: webhook } "ON CONFLICT DO NOTHING")?;
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
        let claim = format!(
            "UPDATE outbox SET due = ?2 WHERE number IN (
                SELECT number FROM outbox WHERE webhook = ?1 AND due <= ?3 ORDER BY due, number LIMIT ?4)
            RETURNING {}",
            OutboxEvent::COLUMNS
        );
        self.query("claim_events", move |ledger| {
            let now = ledger.now();
            let values = params![webhook, now.saturating_add(lease), now, signed(most)];
            ledger.db.all(&claim, values, read)
        })
        .await
    }

    /// Deletes an event that was delivered, or that was given up.
    pub async fn finish_event(&self, id: Arc<str>, webhook: WebhookId) -> Result<(), Unavailable> {
        let delete = "DELETE FROM outbox WHERE id = ? AND webhook = ?";
        let finish = move |ledger: &Ledger| ledger.db.run(delete, params![id, webhook]).map(drop);
        self.query("finish_event", finish).await
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
            let due = ledger.now().saturating_add(wait);
            ledger.db.run(delay, params![due, id, webhook]).map(drop)
        })
        .await
    }

    /// Writes the event of an alert, unless the alert is raised already or no webhook wants it.
    pub async fn raise_alert(&self, alert: Alert) -> Result<(), Unavailable> {
        let raise = move |ledger: &Ledger| {
            let Alert { kind, whose, period, .. } = &alert;
            let subject = format!("{whose} {period} {}", ledger.now().as_nanos());
            raise(ledger, &alert, &event_id(*kind, &subject))
        };
        self.query("raise_alert", raise).await
    }

    /// Ends an alert without a period, so that it can be raised again.
    pub async fn end_alert(&self, kind: EventKind, whose: Arc<str>) -> Result<(), Unavailable> {
        let delete = "DELETE FROM alerts WHERE rule = ? AND whose = ? AND period = 0";
        let end = move |ledger: &Ledger| ledger.db.run(delete, params![kind, whose]).map(drop);
        self.query("end_alert", end).await
    }
}

/// Raises an alert, unless it is raised already or no webhook wants it.
fn raise(ledger: &Ledger, alert: &Alert, id: &str) -> Result<()> {
    let Alert { kind, whose, period, data } = alert;
    if ledger.db.run(RAISE, params![kind, whose, period, ledger.now()])? == 1 {
        write(ledger, id, *kind, data)?;
    }
    Ok(())
}

/// Writes an event for each webhook that wants it.
fn write(ledger: &Ledger, id: &str, kind: EventKind, data: &str) -> Result<()> {
    ledger.db.run(WRITE, params![id, ledger.now(), data, kind]).map(drop)
}

/// Reports the budgets of which a purchase has just brought the spending to a threshold. `scopes`
/// do not include it.
pub(super) fn write_crossings(
    ledger: &Ledger,
    reservation: &Reservation,
    scopes: &[ScopeBudget],
    today: Today,
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
        raise(ledger, &alert, &id)?;
    }
    Ok(())
}

/// Reports a purchase that has just become unknown.
pub(super) fn write_unknown(ledger: &Ledger, id: PurchaseId) -> Result<()> {
    let kind = EventKind::OutcomeUnknown;
    let wanted = "SELECT caller, model, price_micros FROM purchases
        WHERE id = ?1 AND EXISTS (SELECT 1 FROM webhooks WHERE event = ?2)";
    let found: Option<(String, String, Usd)> = ledger.db.first(wanted, params![id, kind], read)?;
    let Some((caller, model, price)) = found else { return Ok(()) };
    let data = json!({
        "purchase": id.to_string(), "caller": caller, "model": model,
        "price": price, "price_micros": price.as_micros(),
    });
    write(ledger, &unknown_event_id(id), kind, &data.to_string())
}

/// Reports a job that has just reached this state.
pub(super) fn write_job(ledger: &Ledger, request_id: &str, state: JobState) -> Result<()> {
    let Some([own, openai]) = job_events(state) else { return Ok(()) };
    let wanted = "SELECT model, owner, price_micros FROM jobs
        WHERE request_id = ?1 AND EXISTS (SELECT 1 FROM webhooks WHERE event = ?2 OR event = ?3)";
    let found: Option<(String, String, Usd)> =
        ledger.db.first(wanted, params![request_id, own, openai], read)?;
    let Some((model, caller, cost)) = found else { return Ok(()) };
    let data = json!({
        "request_id": request_id, "model": model, "caller": caller,
        "cost": cost, "cost_micros": cost.as_micros(),
    });
    for (kind, data) in [(own, data), (openai, json!({ "id": request_id }))] {
        write(ledger, &event_id(kind, request_id), kind, &data.to_string())?;
    }
    Ok(())
}

/// Deletes events that nothing has delivered, and alerts of periods that are over.
pub(super) fn purge(ledger: &Ledger) -> Result<()> {
    let before = |retention| [ledger.now().saturating_sub(retention)];
    ledger.db.run("DELETE FROM outbox WHERE at < ?", before(EVENT_RETENTION))?;
    let over = "DELETE FROM alerts WHERE period <> 0 AND at < ?";
    ledger.db.run(over, before(ALERT_RETENTION)).map(drop)
}
