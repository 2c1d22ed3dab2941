//! The values of the outbox: the events that wait for webhooks, and the alerts behind them.

use std::sync::Arc;
use std::time::Duration;

use super::rules::Crossing;
use super::{JobState, PurchaseId};
use crate::gateway::contract::event::EventKind;

/// How long an event that no server could deliver stays, such as one for a webhook that is gone.
pub(super) const EVENT_RETENTION: Duration = Duration::from_secs(4 * 86_400);
/// How long it is remembered that a period's alert was raised: longer than any period but `ever`.
pub(super) const ALERT_RETENTION: Duration = Duration::from_secs(62 * 86_400);

/// Identifies a webhook by a hash of its address, which may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WebhookId(pub [u8; 16]);

impl WebhookId {
    pub fn of(address: &str) -> Self {
        let hash = blake3::derive_key("tollgate 2026-11 id of a webhook", address.as_bytes());
        Self(hash.first_chunk().copied().unwrap_or_default())
    }
}

/// An event that one webhook wants.
pub type Subscription = (EventKind, WebhookId);

/// An event that is due at a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEvent {
    /// The same at each attempt and at each webhook.
    pub id: Arc<str>,
    pub event: Arc<str>,
    pub at: Duration,
    /// An object of JSON.
    pub data: Arc<str>,
    /// How many attempts have failed.
    pub attempts: u64,
}

impl OutboxEvent {
    /// Returns an event that is in no outbox.
    pub fn unrecorded(kind: EventKind, at: Duration, data: String) -> Self {
        let id = event_id(kind, &at.as_nanos().to_string()).into();
        Self { id, event: kind.name().into(), at, data: data.into(), attempts: 0 }
    }
}

/// A state that is reported once, until it ends or in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    pub kind: EventKind,
    pub whose: Arc<str>,
    /// Zero: until [`end_alert`](super::Store::end_alert).
    pub period: u64,
    /// An object of JSON.
    pub data: Arc<str>,
}

/// Returns the id of the event of this kind about a subject.
pub(super) fn event_id(kind: EventKind, subject: &str) -> String {
    let mut hash = blake3::Hasher::new_derive_key("tollgate 2026-11 id of an event");
    hash.update(kind.name().as_bytes()).update(&[0]).update(subject.as_bytes());
    format!("evt_{}", &hash.finalize().to_hex()[..32])
}

/// A purchase becomes unknown once, so its id is that of the event.
pub(super) fn unknown_event_id(purchase: PurchaseId) -> String {
    format!("evt_{}", purchase.0.simple())
}

/// Returns the id of the event about a threshold that a purchase has crossed.
pub(super) fn crossing_event_id(purchase: PurchaseId, crossing: &Crossing) -> String {
    let Crossing { scope, period, percent, .. } = crossing;
    format!("{}_{}_{}_{percent}", unknown_event_id(purchase), scope.name(), period.name())
}

/// Returns the two events of a job's end: our own, and OpenAI's.
pub(super) fn job_events(state: JobState) -> Option<[EventKind; 2]> {
    match state {
        JobState::Open => None,
        JobState::Finished => Some([EventKind::JobFinished, EventKind::VideoCompleted]),
        JobState::Failed => Some([EventKind::JobFailed, EventKind::VideoFailed]),
    }
}
