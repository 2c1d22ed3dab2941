//! The events that wait for webhooks, and the alerts behind them.

use std::sync::Arc;
use std::time::Duration;

use super::column::{self, nanos, signed};
use super::handle::PostgresStore;
use super::step::{Need, Statement, Step, statement};
use crate::contract::event::EventKind;
use crate::store::outbox::event_id;
use crate::store::{Alert, OutboxEvent, Subscription, Unavailable, WebhookId};

const FORGET_WEBHOOKS: &str = "DELETE FROM webhooks WHERE NOT EXISTS (
    SELECT 1 FROM unnest($1::text[], $2::bytea[]) AS wanted(event, webhook)
    WHERE wanted.event = webhooks.event AND wanted.webhook = webhooks.webhook)";
const ADD_WEBHOOKS: &str = "INSERT INTO webhooks (event, webhook)
    SELECT * FROM unnest($1::text[], $2::bytea[]) ON CONFLICT DO NOTHING";
/// The next attempt waits until the lease of the sender is over.
const CLAIM: &str = "UPDATE outbox SET due = {now} + $2::bigint WHERE number IN (
        SELECT number FROM outbox WHERE webhook = $1 AND due <= {now}
        ORDER BY due, number LIMIT $3 FOR UPDATE SKIP LOCKED)
    RETURNING id, event, at, data, attempts";
const DELAY: &str = "UPDATE outbox SET due = {now} + $3::bigint, attempts = attempts + 1
    WHERE id = $1 AND webhook = $2";
const RAISE: &str = "WITH t AS MATERIALIZED (SELECT {now} AS now),
raised AS (
  INSERT INTO alerts (rule, whose, period, at)
  SELECT $1::text, $2::text, $3::bigint, t.now FROM t
  WHERE EXISTS (SELECT 1 FROM webhooks WHERE event = $1::text)
  ON CONFLICT DO NOTHING RETURNING 1
)
INSERT INTO outbox (id, webhook, event, at, due, data)
SELECT $4::text, webhook, event, t.now, t.now, $5::text
FROM t, raised, webhooks WHERE event = $1::text
ON CONFLICT DO NOTHING";

impl PostgresStore {
    pub(in crate::store) async fn set_webhooks(
        &self,
        wanted: Arc<[Subscription]>,
    ) -> Result<(), Unavailable> {
        let events: Vec<_> = wanted.iter().map(|(kind, _)| kind.name()).collect();
        let webhooks: Vec<_> = wanted.iter().map(|(_, webhook)| webhook.0.to_vec()).collect();
        let statements = vec![
            statement!(FORGET_WEBHOOKS, events.clone(), webhooks.clone()),
            statement!(ADD_WEBHOOKS, events, webhooks),
        ];
        self.write_outbox(statements).await
    }

    pub(in crate::store) async fn claim_events(
        &self,
        webhook: WebhookId,
        most: usize,
        lease: Duration,
    ) -> Result<Vec<OutboxEvent>, Unavailable> {
        let claim = statement!(CLAIM, webhook.0.to_vec(), nanos(lease), signed(most));
        let rows = self.run(&self.lanes().marks, Step::plain(claim)).await?;
        let read = |row| {
            Ok(OutboxEvent {
                id: column::text(row, 0)?,
                event: column::text(row, 1)?,
                at: column::moment(row, 2)?,
                data: column::text(row, 3)?,
                attempts: column::count(row, 4)?,
            })
        };
        rows.iter().flatten().map(read).collect()
    }

    pub(in crate::store) async fn finish_event(
        &self,
        id: Arc<str>,
        webhook: WebhookId,
    ) -> Result<(), Unavailable> {
        let delete = "DELETE FROM outbox WHERE id = $1 AND webhook = $2";
        self.write_outbox(vec![statement!(delete, id.to_string(), webhook.0.to_vec())]).await
    }

    pub(in crate::store) async fn delay_event(
        &self,
        id: Arc<str>,
        webhook: WebhookId,
        wait: Duration,
    ) -> Result<(), Unavailable> {
        let delay = statement!(DELAY, id.to_string(), webhook.0.to_vec(), nanos(wait));
        self.write_outbox(vec![delay]).await
    }

    pub(in crate::store) async fn raise_alert(&self, alert: Alert) -> Result<(), Unavailable> {
        let Alert { kind, whose, period, data } = alert;
        let id = event_id(kind, &format!("{whose} {period} {}", self.now().as_nanos()));
        let (whose, data) = (whose.to_string(), data.to_string());
        let raise = statement!(RAISE, kind.name(), whose, signed(period), id, data);
        self.write_outbox(vec![raise]).await
    }

    pub(in crate::store) async fn end_alert(
        &self,
        kind: EventKind,
        whose: Arc<str>,
    ) -> Result<(), Unavailable> {
        let delete = "DELETE FROM alerts WHERE rule = $1 AND whose = $2 AND period = 0";
        self.write_outbox(vec![statement!(delete, kind.name(), whose.to_string())]).await
    }

    async fn write_outbox(&self, statements: Vec<Statement>) -> Result<(), Unavailable> {
        let step = Step::new(Need::Plain, statements);
        self.run(&self.lanes().marks, step).await.map(drop)
    }
}
