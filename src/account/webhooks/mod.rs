//! Delivers the events of the ledger's outbox to webhooks, at least once.
//!
//! An event stays in the outbox until a webhook answers with a 2xx. A sender claims it for longer than
//! an attempt takes, so that servers that share a ledger do not send it twice at once.

mod message;
mod schedule;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, info, warn};
use url::Url;

use crate::clock;
use crate::config::{Settings, Target, WebhookConfig, WebhookSecret};
use crate::gateway::contract::event::EventKind;
use crate::gateway::fetch;
use crate::ledger::{OutboxEvent, Store, WebhookId};
use crate::metrics::Metrics;
use crate::sync::{KeyedLimit, KeyedPermit, lock};

/// How long a webhook may take to answer.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than an attempt takes, so that nobody else makes one meanwhile.
const LEASE: Duration = Duration::from_secs(20);
const MAX_AT_ONCE: usize = 4;
/// How often the outbox is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Posts a message: [`fetch::post`], or a closure in a test.
trait PostMessage: Clone + Send + Sync + 'static {
    fn post(
        &self,
        address: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> impl Future<Output = io::Result<StatusCode>> + Send;
}

#[derive(Clone)]
struct Client;

impl PostMessage for Client {
    async fn post(&self, address: &Url, headers: HeaderMap, body: Bytes) -> io::Result<StatusCode> {
        fetch::post(address, headers, body, ATTEMPT_TIMEOUT).await
    }
}

/// The webhooks of a server, kept across reloads. Clones share them.
#[derive(Clone)]
pub struct Webhooks(Arc<Shared>);

struct Shared {
    store: Store,
    metrics: Arc<Metrics>,
    setup: watch::Sender<Arc<Setup>>,
    /// The setup that the ledger knows.
    subscribed: Mutex<Option<Arc<Setup>>>,
    /// The attempts that are under way at each webhook.
    sending: Arc<KeyedLimit<WebhookId>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Setup {
    targets: Vec<Arc<WebhookTarget>>,
    secrets: Vec<WebhookSecret>,
    is_sandbox: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct WebhookTarget {
    id: WebhookId,
    config: WebhookConfig,
}

impl Setup {
    fn new(settings: &Settings) -> Self {
        let target = |config: &WebhookConfig| {
            let (id, config) = (WebhookId::of(config.url.as_str()), config.clone());
            Arc::new(WebhookTarget { id, config })
        };
        Self {
            targets: settings.webhooks.targets.iter().map(target).collect(),
            secrets: settings.webhooks.secrets.clone(),
            is_sandbox: matches!(settings.gateway.target, Target::Sandbox),
        }
    }
}

impl Webhooks {
    pub fn new(settings: &Settings, store: Store, metrics: Arc<Metrics>) -> Self {
        let setup = watch::Sender::new(Arc::new(Setup::new(settings)));
        let (subscribed, sending) = (Mutex::default(), Arc::default());
        Self(Arc::new(Shared { store, metrics, setup, subscribed, sending }))
    }

    /// Puts other settings into effect, soon.
    pub fn reconfigure(&self, settings: &Settings) {
        let new = Setup::new(settings);
        self.0.setup.send_if_modified(|setup| {
            let is_changed = **setup != new;
            if is_changed {
                *setup = Arc::new(new);
            }
            is_changed
        });
    }

    /// Records in the ledger which webhook wants which event, unless the ledger knows it.
    pub async fn subscribe(&self) {
        let setup = Arc::clone(&self.0.setup.borrow());
        if self.is_subscribed(&setup) {
            return;
        }
        let wanted = setup
            .targets
            .iter()
            .flat_map(|target| target.config.events.iter().map(move |kind| (*kind, target.id)));
        // Why a ledger cannot be written is logged there.
        if self.0.store.set_webhooks(wanted.collect()).await.is_ok() {
            *lock(&self.0.subscribed) = Some(setup);
        }
    }

    fn is_subscribed(&self, setup: &Arc<Setup>) -> bool {
        lock(&self.0.subscribed).as_ref().is_some_and(|known| Arc::ptr_eq(known, setup))
    }

    /// Returns whether the ledger knows a webhook that wants this event.
    pub fn wants(&self, kind: EventKind) -> bool {
        let subscribed = lock(&self.0.subscribed);
        let mut targets = subscribed.iter().flat_map(|setup| &setup.targets);
        targets.any(|target| target.config.events.contains(&kind))
    }

    /// Returns once there is a webhook.
    pub async fn configured(&self) {
        let mut setup = self.0.setup.subscribe();
        // The sender lives as long as `self`.
        setup.wait_for(|setup| !setup.targets.is_empty()).await.ok();
    }

    /// Delivers events until the future is dropped.
    pub async fn run(self) {
        self.deliver_with(Client).await;
    }

    async fn deliver_with(&self, client: impl PostMessage) {
        let mut setup = self.0.setup.subscribe();
        let mut attempts = JoinSet::new();
        loop {
            let current = Arc::clone(&setup.borrow_and_update());
            self.subscribe().await;
            for target in &current.targets {
                self.send_due(&mut attempts, &current, target, &client).await;
            }
            let must_poll = !current.targets.is_empty() || !self.is_subscribed(&current);
            tokio::select! {
                changed = setup.changed() => match changed {
                    Ok(()) => {}
                    Err(_) => return,
                },
                Some(_) = attempts.join_next() => {}
                () = sleep(POLL_INTERVAL), if must_poll => {}
            }
        }
    }

    async fn send_due(
        &self,
        attempts: &mut JoinSet<()>,
        setup: &Arc<Setup>,
        target: &Arc<WebhookTarget>,
        client: &impl PostMessage,
    ) {
        let permit = |_| self.0.sending.try_acquire(target.id, MAX_AT_ONCE);
        let permits: Vec<KeyedPermit<_>> = (0..MAX_AT_ONCE).map_while(permit).collect();
        if permits.is_empty() {
            return;
        }
        let due = self.0.store.claim_events(target.id, permits.len(), LEASE).await;
        for (event, permit) in due.unwrap_or_default().into_iter().zip(permits) {
            let (webhooks, setup, target) = (self.clone(), Arc::clone(setup), Arc::clone(target));
            let client = client.clone();
            attempts.spawn(async move {
                webhooks.attempt(&setup, &target, &event, &client).await;
                drop(permit);
            });
        }
    }

    /// Delivers an event of the outbox, or schedules its next attempt.
    async fn attempt(
        &self,
        setup: &Setup,
        target: &WebhookTarget,
        event: &OutboxEvent,
        client: &impl PostMessage,
    ) {
        let failures = usize::try_from(event.attempts).unwrap_or(usize::MAX);
        let wait = self.post(setup, target, (event, failures), client).await;
        let (store, id) = (&self.0.store, Arc::clone(&event.id));
        let recorded = match wait {
            None => store.finish_event(id, target.id).await,
            Some(wait) => store.delay_event(id, target.id, wait).await,
        };
        if let Err(error) = recorded {
            // It is sent again once the lease is over.
            info!(%error, id = &*event.id, "webhook delivery not recorded");
        }
    }

    /// Makes an attempt after `failures`. Returns the wait until the next one, if it is needed.
    async fn post(
        &self,
        setup: &Setup,
        target: &WebhookTarget,
        (event, failures): (&OutboxEvent, usize),
        client: &impl PostMessage,
    ) -> Option<Duration> {
        let (id, kind) = (&*event.id, &*event.event);
        let label = EventKind::from_name(kind).map_or("other", EventKind::name);
        let sent = send(setup, &target.config.url, event, client).await;
        let why = match sent {
            Ok(()) => {
                self.0.metrics.webhook(label, "delivered");
                return None;
            }
            Err(error) => error,
        };
        let webhook = WebhookConfig::origin(&target.config.url);
        let age = self.0.store.now().saturating_sub(event.at);
        let wait = schedule::next_wait(id, failures + 1, age);
        let outcome = if wait.is_some() { "failed" } else { "dropped" };
        self.0.metrics.webhook(label, outcome);
        match wait {
            None => error!(id, event = kind, webhook, error = %why, "webhook event dropped"),
            Some(wait) if failures == 0 => {
                warn!(id, event = kind, webhook, error = %why, ?wait, "webhook failed; will retry");
            }
            Some(wait) => {
                info!(id, event = kind, webhook, error = %why, ?wait, "webhook failed again");
            }
        }
        wait
    }

    /// Sends an event that the ledger cannot take, from memory. A restart forgets it.
    pub async fn send_without_ledger(&self, kind: EventKind, data: String) {
        self.send_from_memory(kind, data, Client).await;
    }

    async fn send_from_memory(&self, kind: EventKind, data: String, client: impl PostMessage) {
        let setup = Arc::clone(&self.0.setup.borrow());
        let event = OutboxEvent::unrecorded(kind, self.0.store.now(), data);
        let wanting = setup.targets.iter().filter(|target| target.config.events.contains(&kind));
        let sending = wanting.map(|target| {
            let (setup, event, client) = (&setup, &event, &client);
            async move {
                let mut failures = 0;
                while let Some(wait) = self.post(setup, target, (event, failures), client).await {
                    sleep(wait).await;
                    failures += 1;
                }
            }
        });
        futures_util::future::join_all(sending).await;
    }
}

/// Sends a message once, to any address.
///
/// # Errors
/// If there is no answer, or another than a 2xx.
async fn send(
    setup: &Setup,
    address: &Url,
    event: &OutboxEvent,
    client: &impl PostMessage,
) -> io::Result<()> {
    let body = message::body(event, setup.is_sandbox)?;
    let headers = message::headers(&event.id, clock::wall(), &body, &setup.secrets)?;
    let status = client.post(address, headers, body).await?;
    if status.is_success() { Ok(()) } else { Err(io::Error::other(format!("answered {status}"))) }
}

/// Sends the event `ping` once, without a ledger.
///
/// # Errors
/// If there is no answer, or another than a 2xx.
pub async fn ping(settings: &Settings, address: &Url) -> io::Result<()> {
    let data = "{}".to_owned();
    let event = OutboxEvent::unrecorded(EventKind::Ping, clock::wall(), data);
    send(&Setup::new(settings), address, &event, &Client).await
}
