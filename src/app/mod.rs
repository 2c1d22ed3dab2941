//! Builds all parts from the settings. This module may use every other, and makes no decisions.

pub mod embed;
mod handlers;
mod start;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::{BoxFuture, OptionFuture};
use http::HeaderValue;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

#[cfg(feature = "openapi")]
pub use handlers::openapi;
use handlers::{handlers, route_table};
pub use start::{Shutdown, open, own_addresses, prepare, prepare_on, sandbox};

use crate::access::Authenticator;
use crate::access::quote::QuoteSigner;
use crate::account::alerts::{self, InstanceSources, Watched};
use crate::account::checkpoints::CheckpointKeeper;
use crate::account::summary::BillingSummary;
use crate::account::webhooks::Webhooks;
use crate::api::ops::readings::readings;
use crate::api::{Handlers, Routes};
use crate::clock;
use crate::config::{self, Key, Settings, Target};
use crate::edge::tls::Tls;
use crate::edge::{AddressLimits, ConnectionSettings};
use crate::gate::cross_site::Origins;
use crate::gate::host::Hosts;
use crate::gate::memory::RequestMemory;
use crate::gate::pipeline::{self, HttpStack};
use crate::gate::rate::Limiter;
use crate::gate::{DownstreamConfig, RefusalLog};
use crate::gateway::client::Client;
use crate::gateway::rate_limit::RateLimit;
use crate::gateway::redact::Redactor;
use crate::gateway::sandbox::Sandbox;
use crate::gateway::{self, GatewayService, KeyRing, ScriptedClient, SendAttempt};
use crate::ledger::{AccountBinding, Budgets, Digest, KeyId, SpendLimit, Store, configured};
use crate::metrics::{Metrics, Readings};
use crate::purchase::idempotency::RunningPurchases;
use crate::purchase::{self, PurchaseTerms, Purchases};
use crate::video::pictures::Pictures;
use crate::video::{self, JobRegistry};

/// Replies to videos are kept at least this long, because videos are expensive and slow.
const KEEP_VIDEOS: Duration = Duration::from_secs(7 * 86_400);

/// How long a request waits for a ledger that is still being opened, unless `store.wait` is longer.
const MAX_OPENING: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct SharedState {
    pub metrics: Arc<Metrics>,
    pub refusal_log: Arc<RefusalLog>,
    /// Includes the keys from before a reload.
    pub redactor: Redactor,
    pub store: Store,
    pub binding: AccountBinding,
    pub access: Arc<Authenticator>,
    pub running: RunningPurchases,
    pub clock_steps: Arc<clock::StepDetector>,
    pub jobs: JobRegistry,
    pub rate_limit: Arc<RateLimit>,
    pub address_limits: Arc<AddressLimits>,
    pub memory: RequestMemory,
    /// Cancelled when [`open`] ends.
    pub ledger_opened: CancellationToken,
    pub hosts: Arc<ArcSwap<Hosts>>,
    /// `None` before the first settings apply.
    pub watched: Arc<ArcSwapOption<Watched>>,
    pub drain_expired: CancellationToken,
    pub sandbox: Option<(Sandbox, SocketAddr)>,
    pub own_addresses: Vec<IpAddr>,
    /// `None` if callers come over plain HTTP.
    pub tls: Option<Tls>,
    /// The fingerprint of the secret; `None` if neither members nor agents may call.
    pub secret: Option<Digest>,
    /// The issuer whose users call, if any.
    pub issuer: Option<Arc<str>>,
    /// Gives the ledger to the users of `issuer`.
    pub new_issuer: bool,
    /// `None` unless `mcp.enabled` is set.
    pub quotes: Option<Arc<QuoteSigner>>,
    /// `None` without a ledger on disk.
    pub pictures: Option<Arc<Pictures>>,
    pub webhooks: Webhooks,
    /// Sends to the gateway instead of the HTTP client, in tests.
    pub scripted_client: Option<ScriptedClient>,
}

/// The proxy for one version of the settings, from which each core builds its stack.
pub struct App {
    pub settings: Settings,
    pub shared: SharedState,
    downstream: Arc<DownstreamConfig>,
    handlers: Arc<Handlers>,
    gateway: GatewayAccount,
    /// The gateway for requests that are not purchases.
    polls: GatewayService,
    context: purchase::PurchaseContext,
    pub summary: BillingSummary,
}

struct GatewayAccount {
    base: Url,
    keys: Vec<Key>,
    ring: Arc<Mutex<KeyRing>>,
    /// Incremented by a reload with other keys or another address.
    generation: u64,
}

impl App {
    pub fn new(settings: Settings, shared: SharedState) -> io::Result<Self> {
        let app = Self::build(settings, shared, None)?;
        app.apply();
        Ok(app)
    }

    /// Builds an app with other settings. It has no effect until [`replace`](Self::replace).
    pub fn with_settings(&self, settings: Settings) -> io::Result<Self> {
        Self::build(settings, self.shared.clone(), Some(self))
    }

    fn build(settings: Settings, shared: SharedState, old: Option<&Self>) -> io::Result<Self> {
        let gateway = GatewayAccount::new(&settings, &shared, old.map(|old| &old.gateway))?;
        let polls = gateway.stack(&settings, &shared)?;
        let limiter = Arc::new(Limiter::new(&settings.limits, shared.store.clone()));
        let summary = match old {
            Some(old) => old.summary.clone(),
            None => {
                let ledger = (shared.store.clone(), shared.binding.clone());
                let rate_limit = Arc::clone(&shared.rate_limit);
                BillingSummary::new(polls.clone(), &gateway.keys, ledger, rate_limit)
            }
        };
        let handlers = handlers(&settings, &shared, &limiter, &summary, polls.clone())?;
        let own = shared.own_addresses.clone();
        let downstream = DownstreamConfig {
            origins: Origins::new(&settings.access.allowed_origins, shared.access.has_cookies()),
            hosts: Arc::new(Hosts::new(settings.server.hosts.iter().cloned(), own)),
            trusted_proxies: settings.server.trusted_proxies.clone().into(),
            access: Arc::clone(&shared.access),
            routes: Arc::new(route_table(&settings, shared.quotes.is_some())),
            limiter,
            server: settings.server.clone(),
            ledger_opened: shared.ledger_opened.clone(),
            max_opening: settings.store_wait.max(MAX_OPENING),
            hsts: hsts(&settings.server),
            names_login: settings.issuer().is_some(),
            memory: shared.memory.clone(),
            refusal_log: Arc::clone(&shared.refusal_log),
            metrics: Arc::clone(&shared.metrics),
        };
        let keys = gateway.keys.iter().map(|key| KeyId(key.id())).collect();
        let context = purchase::PurchaseContext {
            ledger: shared.store.clone(),
            rate_limit: Arc::clone(&shared.rate_limit),
            binding: shared.binding.for_generation(gateway.generation),
            running: shared.running.clone(),
            jobs: shared.jobs.clone(),
            keys,
            terms: terms(&settings),
            metrics: Arc::clone(&shared.metrics),
            drain_expired: shared.drain_expired.clone(),
        };
        let (downstream, handlers) = (Arc::new(downstream), Arc::new(handlers));
        Ok(Self { settings, shared, downstream, handlers, gateway, polls, context, summary })
    }

    fn apply(&self) {
        let Self { settings, shared, downstream, .. } = self;
        shared.jobs.reconfigure(video::PollerSetup {
            gateway: self.polls.clone(),
            keys: Arc::clone(&self.context.keys),
            status_words: settings.jobs.clone(),
            trusts_failures: matches!(settings.gateway.target, Target::Sandbox),
            is_public: !settings.is_local_only(),
        });
        shared.hosts.store(Arc::clone(&downstream.hosts));
        shared.watched.store(Some(Arc::new(self.watched())));
        shared.rate_limit.reconfigure(settings.gateway.rate_limit);
        shared.webhooks.reconfigure(settings);
        if shared.store.is_shared() {
            let (deadlines, rate_period) = configured::deadlines(settings);
            shared.store.set_deadlines(deadlines, rate_period);
            shared.store.note_rules(rules(settings));
        }
        let max = settings.server.max_connections_per_address;
        shared.address_limits.reconfigure(max, Arc::clone(&downstream.trusted_proxies));
    }

    /// Puts these settings into effect. If the keys or the gateway's address differ from the `old`
    /// ones, the billing summary is requested at once, because the account may have changed.
    pub fn replace(&self, old: &Self) {
        self.apply();
        let is_changed = !self.gateway.is_same_account(&old.gateway);
        self.summary.replace_gateway(self.polls.clone(), &self.gateway.keys, is_changed);
        if is_changed {
            self.context.binding.recheck();
        }
    }

    /// Polls the account's balance and rate limit, and records checkpoints for reconciliation.
    pub fn watch_account(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let polling = self.summary.run();
        let purchase::PurchaseContext { ledger, binding, .. } = &self.context;
        let is_live = matches!(self.settings.gateway.target, Target::Live { .. });
        let keeper = is_live.then(|| CheckpointKeeper::new(ledger.clone(), binding.clone()));
        let keeping = keeper.map(|keeper| keeper.run(self.summary.subscribe()));
        let keeping = OptionFuture::from(keeping);
        let store = self.shared.store.clone();
        async move {
            // The gateway is not asked if no slot of the rate limit can be recorded.
            if !store.is_unusable() {
                futures_util::join!(polling, keeping);
            }
        }
    }

    /// Builds a stack with its own connections to the gateway. Its purchases run on `tasks`.
    pub fn core(&self, tasks: TaskTracker) -> io::Result<Arc<HttpStack>> {
        let gateway = self.gateway.stack(&self.settings, &self.shared)?;
        let purchases = Purchases::new(self.context.clone(), gateway, tasks);
        let routes = Routes { handlers: Arc::clone(&self.handlers), purchases };
        Ok(Arc::new(HttpStack { config: Arc::clone(&self.downstream), routes }))
    }

    /// Deletes rate-limit state of idle callers, and expired replies. Logs that the clock was set.
    pub fn tidy(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let DownstreamConfig { limiter, refusal_log: refusals, .. } = &*self.downstream;
        let (limiter, refusals) = (Arc::clone(limiter), Arc::clone(refusals));
        let access = Arc::clone(&self.shared.access);
        let (ledger, pictures) = (self.context.ledger.clone(), self.shared.pictures.clone());
        let clock_steps = Arc::clone(&self.shared.clock_steps);
        async move {
            if let Some(seconds) = clock_steps.take_step() {
                tracing::warn!(seconds, "system clock was set");
            }
            limiter.evict_idle();
            refusals.flush(clock::now());
            access.flush_log(clock::now());
            if !ledger.is_unusable()
                && let Err(error) = ledger.purge_expired().await
            {
                tracing::warn!(%error, "expired replies not deleted");
            }
            OptionFuture::from(pictures.map(Pictures::purge_expired)).await;
        }
    }

    /// Delivers events to webhooks, and raises alerts, until the future is dropped.
    pub fn report_events(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (webhooks, metrics) = (self.shared.webhooks.clone(), Arc::clone(&self.shared.metrics));
        alerts::run(self.instance(), webhooks, metrics)
    }

    /// Returns the source of [`Readings`], which also follows later reloads.
    pub fn readings(&self) -> impl Fn() -> BoxFuture<'static, Readings> + Send + Sync + use<> {
        readings(self.instance(), Arc::clone(&self.shared.rate_limit))
    }

    fn instance(&self) -> InstanceSources {
        let SharedState { store, watched, tls, .. } = self.shared.clone();
        InstanceSources { store, summary: self.summary.clone(), watched, tls }
    }

    fn watched(&self) -> Watched {
        Watched {
            mode: self.settings.gateway.target.name(),
            budgets: self.context.terms.limits,
            keys: Arc::clone(&self.gateway.ring),
            key_ids: Arc::clone(&self.context.keys),
            balance_alert: self.settings.alerts.balance,
        }
    }

    /// Returns the settings of callers' connections.
    pub fn server(&self) -> ConnectionSettings {
        ConnectionSettings {
            address_limits: Arc::clone(&self.shared.address_limits),
            tls: self.shared.tls.clone(),
            metrics: Arc::clone(&self.shared.metrics),
            ..ConnectionSettings::new(&self.settings.server)
        }
    }
}

impl GatewayAccount {
    fn new(settings: &Settings, shared: &SharedState, old: Option<&Self>) -> io::Result<Self> {
        let (base, keys) = match (&settings.gateway.target, &shared.sandbox) {
            (Target::Live { base_url, keys }, _) => (base_url.clone(), keys.clone()),
            (Target::Sandbox, Some((sandbox, address))) => {
                let base = Url::parse(&format!("http://{address}")).map_err(io::Error::other)?;
                (base, sandbox.keys().into_iter().map(Key::new).collect())
            }
            (Target::Sandbox, None) => return Err(io::Error::other("the sandbox is not running")),
        };
        let ring = Arc::new(Mutex::new(KeyRing::new(keys.len())));
        let mut gateway = Self { base, keys, ring, generation: 0 };
        if let Some(old) = old {
            gateway.generation = old.generation + u64::from(!gateway.is_same_account(old));
        }
        Ok(gateway)
    }

    fn is_same_account(&self, other: &Self) -> bool {
        let ids = |keys: &[Key]| keys.iter().map(Key::id).collect::<Vec<_>>();
        self.base == other.base && ids(&self.keys) == ids(&other.keys)
    }

    fn stack(&self, settings: &Settings, shared: &SharedState) -> io::Result<GatewayService> {
        if let Some(client) = &shared.scripted_client {
            return Ok(self.stack_with(client.clone(), settings, shared));
        }
        let redactor = shared.redactor.clone();
        let client = Client::new(&self.base, &self.keys, &settings.gateway, redactor)?;
        Ok(self.stack_with(client, settings, shared))
    }

    fn stack_with(
        &self,
        client: impl SendAttempt,
        settings: &Settings,
        shared: &SharedState,
    ) -> GatewayService {
        pipeline::gateway(gateway::Gateway {
            key_ring: Arc::clone(&self.ring),
            rate_limit: Arc::clone(&shared.rate_limit),
            max_wait: settings.gateway.max_wait,
            metrics: Arc::clone(&shared.metrics),
            client,
        })
    }
}

fn hsts(server: &config::ServerConfig) -> Option<HeaderValue> {
    let value = format!("max-age={}", server.hsts.as_secs());
    HeaderValue::try_from(value).ok().filter(|_| !server.hsts.is_zero())
}

pub fn terms(settings: &Settings) -> PurchaseTerms {
    let (gateway, budget) = (&settings.gateway, &settings.budget);
    PurchaseTerms {
        limits: Budgets {
            total: budget.total,
            caller: budget.caller,
            token: SpendLimit::NONE,
            balance_floor: gateway.balance_floor,
            thresholds: alerts::thresholds(settings),
        },
        dedupe_window: settings.purchase.dedupe_window,
        keep_chats: settings.purchase.keep_replies,
        keep_videos: settings.purchase.keep_replies.max(KEEP_VIDEOS),
        join_timeout: gateway.max_wait + gateway.chat_timeout.max(gateway.video_timeout),
        keep_prompts: settings.jobs.keep_prompts,
    }
}

/// Returns the fingerprint of the settings by which servers that share a ledger should agree.
fn rules(settings: &Settings) -> Digest {
    let PurchaseTerms { limits, dedupe_window, keep_chats, .. } = terms(settings);
    let budgets = (limits.total, limits.caller, limits.balance_floor);
    let rules = (budgets, settings.gateway.rate_limit, dedupe_window, keep_chats);
    blake3::hash(format!("{rules:?}").as_bytes()).into()
}

/// Returns the rate limit for a command that asks the gateway directly.
pub async fn standalone_rate_limit(
    store: Store,
    settings: &config::GatewayConfig,
) -> Arc<RateLimit> {
    let rate_limit = RateLimit::new(store, settings.rate_limit, CancellationToken::new());
    rate_limit.restore().await;
    rate_limit.assume_default();
    rate_limit
}

/// Returns a client of the gateway at `base` for a command that asks it directly.
pub fn standalone_gateway(
    settings: &config::GatewayConfig,
    base: &Url,
    keys: &[Key],
    rate_limit: Arc<RateLimit>,
) -> io::Result<GatewayService> {
    let metrics = Arc::new(Metrics::default());
    let redactor = Redactor::new(Arc::clone(&metrics));
    if let Target::Live { keys: all, .. } = &settings.target {
        // The gateway may echo a key other than the one in the request.
        redactor.add_keys(all);
    }
    Ok(pipeline::gateway(gateway::Gateway {
        key_ring: Arc::new(Mutex::new(KeyRing::new(keys.len()))),
        rate_limit,
        max_wait: settings.max_wait,
        metrics,
        client: Client::new(base, keys, settings, redactor)?,
    }))
}

#[cfg(test)]
mod tests;
