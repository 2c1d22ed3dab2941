//! Builds all parts from the settings. This module may use every other, and makes no decisions.

mod agents;
mod alerts;
mod catalog;
pub mod changes;
#[cfg(feature = "mcp")]
pub mod embed;
pub mod issuer;
pub mod ledger;
mod ops;
mod page;
mod readiness;
mod readings;
pub mod secret;
pub mod settings;
mod start;
mod videos;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::OptionFuture;
use http::{HeaderValue, Method};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

pub use readiness::starting;
use readings::Watched;
pub use start::{Shutdown, open, own_addresses, prepare, prepare_on, sandbox};

use crate::access::Authenticator;
use crate::access::quote::QuoteSigner;
use crate::account::checkpoints::CheckpointKeeper;
use crate::account::summary::BillingSummary;
use crate::account::webhooks::Webhooks;
use crate::api::catalog::PriceList;
use crate::api::passthrough::Passthrough;
use crate::api::people::People;
use crate::api::reports::Reports;
use crate::api::reports::me::MeReport;
use crate::api::reports::queue::ReportQueue;
use crate::api::validate::ChatRules;
use crate::api::{Handlers, Routes, endpoints};
use crate::clock;
use crate::config::{self, AccessMode, Key, Settings, Target};
use crate::edge::tls::Tls;
use crate::edge::{self, AddressLimits};
use crate::gate::cross_site::Origins;
use crate::gate::host::Hosts;
use crate::gate::memory::RequestMemory;
use crate::gate::pipeline::{self, HttpStack};
use crate::gate::rate::Limiter;
use crate::gate::route::RouteTable;
use crate::gate::{DownstreamConfig, RefusalLog};
use crate::gateway::client::Client;
use crate::gateway::rate_limit::RateLimit;
use crate::gateway::redact::Redactor;
use crate::gateway::sandbox::Sandbox;
use crate::gateway::{self, GatewayService, KeyRing, ScriptedClient, SendAttempt};
use crate::ledger::{AccountBinding, Budgets, Digest, KeyId, SpendLimit, Store};
use crate::metrics::Metrics;
use crate::purchase::idempotency::RunningPurchases;
use crate::purchase::ledger_name::LedgerName;
use crate::purchase::{self, PurchaseTerms, Purchases};
use crate::video::media::Videos;
use crate::video::pictures::Pictures;
use crate::video::{self, JobRegistry};

/// Replies to videos are kept at least this long, because videos are expensive and slow.
const KEEP_VIDEOS: Duration = Duration::from_secs(7 * 86_400);

/// How long a request waits for a ledger that is still being opened, unless `store.wait` is longer.
const MAX_OPENING: Duration = Duration::from_secs(5);
pub const TIDY_INTERVAL: Duration = Duration::from_secs(60);
/// How long the last responses may take after `server.drain`.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the ledger may take to close after that.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
            kept: videos::kept(settings, shared),
        });
        shared.hosts.store(Arc::clone(&downstream.hosts));
        shared.watched.store(Some(Arc::new(self.watched())));
        shared.rate_limit.reconfigure(settings.gateway.rate_limit);
        shared.webhooks.reconfigure(settings);
        if shared.store.is_shared() {
            let (deadlines, rate_period) = ledger::deadlines(settings);
            shared.store.set_deadlines(deadlines, rate_period);
            shared.store.note_rules(ledger::rules(settings));
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
        let jobs = self.shared.jobs.clone();
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
            jobs.tidy_videos().await;
        }
    }

    pub fn server(&self) -> edge::ConnectionSettings {
        edge::ConnectionSettings {
            header_timeout: self.settings.server.header_timeout,
            idle_timeout: self.settings.server.idle_timeout,
            connections: Arc::new(Semaphore::new(self.settings.server.max_connections)),
            address_limits: Arc::clone(&self.shared.address_limits),
            tls: self.shared.tls.clone(),
            streams: self.settings.server.streams,
            metrics: Arc::clone(&self.shared.metrics),
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

/// Returns the endpoints that the settings switch on.
fn route_table(settings: &Settings, has_mcp: bool) -> RouteTable {
    let added = settings.gateway.passthrough.iter().cloned();
    let served = endpoints::Served {
        mcp: has_mcp,
        login_metadata: settings.issuer().is_some(),
        oidc: matches!(settings.access.mode, AccessMode::Oidc(_)),
        own_tokens: settings.access.mode.has_own_tokens(),
    };
    endpoints::route_table(added.map(|one| (one.method, one.path)), served)
}

/// Returns the OpenAPI document of these settings.
#[cfg(feature = "openapi")]
pub fn openapi(settings: &Settings, has_mcp: bool) -> io::Result<bytes::Bytes> {
    let (routes, prefix) = (route_table(settings, has_mcp), &settings.server.prefix);
    crate::api::openapi::document(&routes, &settings.catalog, prefix)
}

fn handlers(
    settings: &Settings,
    shared: &SharedState,
    limiter: &Arc<Limiter>,
    summary: &BillingSummary,
    gateway: GatewayService,
) -> io::Result<Handlers> {
    let media = videos::media(settings, shared);
    let are_shared = !settings.access.allowed_origins.is_empty();
    let sold = settings.gateway.passthrough.iter().filter(|one| one.method == Method::POST);
    let prices = sold.map(|one| (one.path.clone(), one.price)).collect();
    let fields = settings.gateway.chat_fields.clone();
    let rules = ChatRules { catalog: Arc::new(settings.catalog.clone()), fields };
    Ok(Handlers {
        access: Arc::clone(&shared.access),
        refusal_log: Arc::clone(&shared.refusal_log),
        prefix: settings.server.prefix.clone(),
        public_url: settings.server.public_url.clone(),
        catalog: PriceList::new(
            settings.catalog.clone(),
            settings.page.default_model.clone(),
            catalog::catalog_facts(settings, shared),
            (settings.access.may_buy.clone(), Some(shared.store.name())),
        ),
        may_buy: settings.access.may_buy.clone(),
        on_sale: settings.names_on_sale().into_iter().map(Box::from).collect(),
        ledger_name: LedgerName::new(shared.store.clone())?,
        #[cfg(feature = "openapi")]
        openapi: openapi(settings, shared.quotes.is_some())?,
        #[cfg(feature = "mcp")]
        mcp: agents::mcp(settings, shared, &rules),
        rules,
        me: me_report(settings, shared, (limiter, summary)),
        people: People { store: shared.store.clone(), access: Arc::clone(&shared.access) },
        reports: Reports {
            store: shared.store.clone(),
            summary: summary.clone(),
            caller_budget: settings.budget.caller,
            // In open mode, an address identifies a caller only on this machine.
            identifies_callers: settings.access.mode != AccessMode::Open
                || settings.is_local_only(),
            queue: ReportQueue::default(),
        },
        passthrough: Passthrough::new(gateway, prices),
        jobs: shared.jobs.clone(),
        redactor: shared.redactor.clone(),
        videos: Videos::new(media, settings.jobs.clone(), shared.jobs.clone(), are_shared),
        page: page::page(settings),
        pictures: page::picture_host(settings, shared),
    })
}

fn me_report(
    settings: &Settings,
    shared: &SharedState,
    (limiter, summary): (&Arc<Limiter>, &BillingSummary),
) -> MeReport {
    MeReport {
        mode: match settings.gateway.target {
            Target::Sandbox => "sandbox",
            Target::Live { .. } => "live",
        },
        access: settings.access.mode.name(),
        shows_balance: settings.access.mode == AccessMode::Open && settings.is_local_only(),
        budgets: terms(settings).limits,
        limiter: Arc::clone(limiter),
        rate_limit: Arc::clone(&shared.rate_limit),
        summary: summary.clone(),
        store: shared.store.clone(),
    }
}

#[cfg(test)]
mod tests;
