//! Builds the parts from settings and hands them to the pipeline: the only file that may name
//! everything, and one that decides nothing.

mod start;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::OptionFuture;
use http::{HeaderValue, Method};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tower::util::BoxCloneSyncService;
use url::Url;

pub use start::{Shutdown, open, own_addresses, prepare, start};

use crate::access::jwt::JwtVerifier;
use crate::access::member_cache::MemberCache;
use crate::access::token::Secret;
use crate::access::{AuthMode, Authenticator};
use crate::billing::checkpoints::CheckpointKeeper;
use crate::billing::summary::BillingSummary;
use crate::clock;
use crate::config::{self, AccessMode, Key, Settings, Target};
use crate::downstream::DownstreamConfig;
use crate::downstream::body::BodyMemory;
use crate::downstream::cross_site::Origins;
use crate::downstream::host::Hosts;
use crate::downstream::rate::Limiter;
use crate::downstream::route::RouteTable;
use crate::jobs::{self, JobRegistry};
use crate::media::Videos;
use crate::metrics::Metrics;
use crate::pipeline::{self, HttpService};
use crate::purchase::idempotency::RunningPurchases;
use crate::purchase::{self, PurchaseTerms};
use crate::redact::Redactor;
use crate::reports::Reports;
use crate::reports::me::MeReport;
use crate::reports::queue::ReportQueue;
use crate::routes::api::Passthrough;
use crate::routes::catalog::{self, CatalogFacts, JobStatusWords, Replay};
use crate::routes::page::Page;
use crate::routes::site::Site;
use crate::routes::{Handlers, Routes, endpoints, openapi};
use crate::sandbox::{self, Sandbox};
use crate::server::{self, AddressLimits};
use crate::store::{AccountBinding, Budgets, KeyId, RecentRefusals, Store};
use crate::upstream::client::Client;
use crate::upstream::fetch::MediaClient;
use crate::upstream::rate_limit::RateLimit;
use crate::upstream::{self, GatewayReply, GatewayRequest, KeyRing};
use crate::validate::ChatRules;

/// Videos are dear and slow: their replies are kept at least this long.
const KEEP_VIDEOS: Duration = Duration::from_secs(7 * 86_400);

pub const TIDY_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct SharedState {
    pub metrics: Arc<Metrics>,
    /// Knows the gateway's keys, those before a change of settings included.
    pub redactor: Redactor,
    pub store: Store,
    /// Whether the gateway's account is the ledger's.
    pub binding: AccountBinding,
    pub access: Arc<Authenticator>,
    pub running: RunningPurchases,
    pub refusals: Arc<RecentRefusals>,
    pub jobs: JobRegistry,
    pub rate_limit: Arc<RateLimit>,
    pub address_limits: Arc<AddressLimits>,
    pub body_memory: Arc<BodyMemory>,
    pub hosts: Arc<ArcSwap<Hosts>>,
    pub drain_expired: CancellationToken,
    /// The sandbox with its socket's address, where it is in use.
    pub sandbox: Option<(Sandbox, SocketAddr)>,
}

/// The gate as settings describe it, ready to be served by any number of cores.
pub struct App {
    pub config: Settings,
    own_addresses: Vec<IpAddr>,
    pub shared: SharedState,
    downstream: Arc<DownstreamConfig>,
    handlers: Arc<Handlers>,
    gateway: GatewayAccount,
    /// The gateway as whatever is no purchase asks it.
    polls: GatewayService,
    context: purchase::PurchaseContext,
    pub summary: BillingSummary,
}

type GatewayService = BoxCloneSyncService<GatewayRequest, GatewayReply, upstream::Error>;

struct GatewayAccount {
    base: Url,
    keys: Vec<Key>,
    ring: Arc<Mutex<KeyRing>>,
    /// How many with other keys or another address there were before.
    generation: u64,
}

impl App {
    pub fn new(config: Settings, own: Vec<IpAddr>, shared: SharedState) -> io::Result<Self> {
        let app = Self::build(config, own, shared, None)?;
        app.apply();
        Ok(app)
    }

    /// Builds the gate anew from other settings, and changes nothing that is in use before it
    /// [takes over](Self::take_over). The billing summary stays, so that nothing has to be asked.
    pub fn with_settings(&self, config: Settings) -> io::Result<Self> {
        Self::build(config, self.own_addresses.clone(), self.shared.clone(), Some(self))
    }

    fn build(
        config: Settings,
        own: Vec<IpAddr>,
        shared: SharedState,
        old: Option<&Self>,
    ) -> io::Result<Self> {
        let gateway = GatewayAccount::new(&config, &shared, old.map(|old| &old.gateway))?;
        let polls = BoxCloneSyncService::new(gateway.stack(&config, &shared)?);
        let limiter = Arc::new(Limiter::new(&config.limits, Arc::clone(&shared.refusals)));
        let summary = match old {
            Some(old) => old.summary.clone(),
            None => {
                let (store, window) = (shared.store.clone(), Arc::clone(&shared.rate_limit));
                BillingSummary::new(polls.clone(), &gateway.keys, store, window)
            }
        };
        let handlers = handlers(&config, &shared, &limiter, &summary, polls.clone())?;
        let downstream = DownstreamConfig {
            origins: Origins::new(&config.access.allowed_origins, shared.access.has_logins()),
            hosts: Arc::new(Hosts::new(config.server.hosts.iter().cloned(), own.clone())),
            trusted_proxies: config.server.trusted_proxies.clone().into(),
            access: Arc::clone(&shared.access),
            routes: routes(&config),
            limiter,
            server: config.server.clone(),
            body_memory: Arc::clone(&shared.body_memory),
            refusal_log: Arc::default(),
            metrics: Arc::clone(&shared.metrics),
        };
        let keys = gateway.keys.iter().map(|key| KeyId(key.id())).collect();
        let context = purchase::PurchaseContext {
            ledger: shared.store.clone(),
            binding: shared.binding.for_generation(gateway.generation),
            running: shared.running.clone(),
            refusals: Arc::clone(&shared.refusals),
            jobs: shared.jobs.clone(),
            keys,
            terms: terms(&config),
            metrics: Arc::clone(&shared.metrics),
            drain_expired: shared.drain_expired.clone(),
        };
        let (downstream, handlers) = (Arc::new(downstream), Arc::new(handlers));
        Ok(Self {
            config,
            own_addresses: own,
            shared,
            downstream,
            handlers,
            gateway,
            polls,
            context,
            summary,
        })
    }

    fn apply(&self) {
        let Self { config, shared, downstream, .. } = self;
        shared.jobs.reconfigure(jobs::PollerSetup {
            gateway: self.polls.clone(),
            keys: Arc::clone(&self.context.keys),
            status_words: config.jobs.clone(),
            is_public: !config.is_local_only(),
        });
        shared.hosts.store(Arc::clone(&downstream.hosts));
        shared.rate_limit.reconfigure(config.gateway.rate_limit);
        let most = config.server.max_connections_per_address;
        shared.address_limits.reconfigure(most, Arc::clone(&downstream.trusted_proxies));
    }

    /// Takes the place of `old`: its settings hold from now on, and its gateway is asked for the billing
    /// summary; at once if the keys or the gateway's address changed, as the account may be another one.
    pub fn replace(&self, old: &Self) {
        self.apply();
        let is_another = !self.gateway.is_same_account(&old.gateway);
        self.summary.replace_gateway(self.polls.clone(), &self.gateway.keys, is_another);
        if is_another {
            self.context.binding.recheck();
        }
    }

    /// Follows the account: its balance, its rate limit, whether it is the ledger's account; and notes a
    /// checkpoint for reconciliation. Play money is never reconciled. It ends with the gate.
    pub fn watch_account(&self) -> impl Future<Output = ()> + Send + 'static {
        let following = self.summary.run();
        let purchase::PurchaseContext { ledger, binding, .. } = &self.context;
        let is_live = matches!(self.config.gateway.target, Target::Live { .. });
        let keeper = is_live.then(|| CheckpointKeeper::new(ledger.clone(), binding.clone()));
        let keeping = keeper.map(|keeper| keeper.run(self.summary.subscribe()));
        let keeping = OptionFuture::from(keeping);
        async {
            futures_util::join!(following, keeping);
        }
    }

    /// One core's stack, with connections to the gateway of its own. Its purchases run on `tasks`.
    pub fn core<B>(&self, tasks: TaskTracker) -> io::Result<HttpService<B>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<crate::response::BoxError>,
    {
        let gateway = self.gateway.stack(&self.config, &self.shared)?;
        let purchases = pipeline::purchases(&self.context, tasks, gateway);
        let routes = Routes { handlers: Arc::clone(&self.handlers), purchases };
        Ok(pipeline::downstream(&self.downstream, routes))
    }

    /// Forgets callers who have not come for a while, and replies that were kept for long enough.
    pub fn tidy(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let DownstreamConfig { limiter, refusal_log: refusals, .. } = &*self.downstream;
        let (limiter, refusals) = (Arc::clone(limiter), Arc::clone(refusals));
        let ledger = self.context.ledger.clone();
        async move {
            limiter.evict_idle();
            refusals.flush(clock::now());
            if let Err(error) = ledger.purge_expired().await {
                tracing::warn!(%error, "old replies could not be forgotten");
            }
        }
    }

    pub fn server(&self) -> server::ConnectionSettings {
        server::ConnectionSettings {
            header_timeout: self.config.server.header_timeout,
            idle_timeout: self.config.server.idle_timeout,
            connections: Arc::new(Semaphore::new(self.config.server.max_connections)),
            address_limits: Arc::clone(&self.shared.address_limits),
            metrics: Arc::clone(&self.shared.metrics),
        }
    }
}

impl GatewayAccount {
    fn new(config: &Settings, shared: &SharedState, old: Option<&Self>) -> io::Result<Self> {
        let (base, keys) = match (&config.gateway.target, &shared.sandbox) {
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

    /// Whether it answers for the same account, as far as the settings tell.
    fn is_same_account(&self, other: &Self) -> bool {
        let ids = |keys: &[Key]| keys.iter().map(Key::id).collect::<Vec<_>>();
        self.base == other.base && ids(&self.keys) == ids(&other.keys)
    }

    fn stack(
        &self,
        config: &Settings,
        shared: &SharedState,
    ) -> io::Result<
        impl Service<GatewayRequest, Response = GatewayReply, Error = upstream::Error, Future: Send>
        + Clone
        + Send
        + Sync
        + use<>,
    > {
        let redactor = shared.redactor.clone();
        Ok(pipeline::gateway(upstream::Gateway {
            key_ring: Arc::clone(&self.ring),
            rate_limit: Arc::clone(&shared.rate_limit),
            max_wait: config.gateway.max_wait,
            client: Client::new(&self.base, &self.keys, &config.gateway, redactor)?,
        }))
    }
}

/// Who may call: nobody is let in whom `mode` does not name, whatever else fails. `secret` is needed
/// where there are members only, who are let in once their list is [read](Authenticator::load).
pub fn access(
    mode: &AccessMode,
    store: Store,
    secret: impl FnOnce() -> io::Result<Secret>,
    metrics: Arc<Metrics>,
) -> io::Result<Arc<Authenticator>> {
    let door = match mode {
        AccessMode::Open => AuthMode::Open,
        AccessMode::Members => AuthMode::Members(MemberCache::new(store, secret()?)),
        AccessMode::Jwt(settings) => AuthMode::Jwt(JwtVerifier::new(settings)?),
    };
    Ok(Arc::new(Authenticator::new(door, metrics)))
}

pub fn sandbox(config: &Settings) -> Sandbox {
    Sandbox::new(sandbox::SandboxSettings {
        seed: config.sandbox.seed,
        balance: config.sandbox.balance,
        job_time: config.sandbox.job_time,
        ..sandbox::SandboxSettings::default()
    })
}

pub fn terms(config: &Settings) -> PurchaseTerms {
    let (gateway, budget) = (&config.gateway, &config.budget);
    PurchaseTerms {
        limits: Budgets {
            total_day: budget.total.day,
            total_month: budget.total.month,
            caller_day: budget.caller.day,
            caller_month: budget.caller.month,
            balance_floor: gateway.balance_floor,
        },
        dedupe_window: config.purchase.dedupe_window,
        keep_chats: config.purchase.keep_replies,
        keep_videos: config.purchase.keep_replies.max(KEEP_VIDEOS),
        join_timeout: gateway.max_wait + gateway.chat_timeout.max(gateway.video_timeout),
    }
}

/// The window of a command that asks the gateway itself, which goes on with what `store` remembers.
pub async fn standalone_rate_limit(
    store: Store,
    settings: &config::GatewayConfig,
) -> Arc<RateLimit> {
    let window = RateLimit::new(store, settings.rate_limit, CancellationToken::new());
    window.restore().await;
    window.assume_default();
    window
}

/// Asks the gateway at `base` with these keys, outside of any gate, when it is their turn in `window`.
pub fn standalone_gateway(
    settings: &config::GatewayConfig,
    base: &Url,
    keys: &[Key],
    window: Arc<RateLimit>,
) -> io::Result<
    impl Service<GatewayRequest, Response = GatewayReply, Error = upstream::Error> + Clone + use<>,
> {
    let ring = Arc::new(Mutex::new(KeyRing::new(keys.len())));
    let redactor = Redactor::new(Arc::new(Metrics::default()));
    if let Target::Live { keys: all, .. } = &settings.target {
        // The gateway may echo another key than the one that it is asked with.
        redactor.add_keys(all);
    }
    let (max_wait, transport) = (settings.max_wait, Client::new(base, keys, settings, redactor)?);
    Ok(pipeline::gateway(upstream::Gateway {
        key_ring: ring,
        rate_limit: window,
        max_wait,
        client: transport,
    }))
}

fn handlers(
    config: &Settings,
    shared: &SharedState,
    limiter: &Arc<Limiter>,
    summary: &BillingSummary,
    gateway: GatewayService,
) -> io::Result<Handlers> {
    let sandbox = shared.sandbox.iter().map(|(_, address)| format!("http://{address}"));
    let origins: Vec<_> = config.page.media_origins.iter().cloned().chain(sandbox).collect();
    let media = MediaClient::new(origins.clone(), config.gateway.connect_timeout);
    let are_shared = !config.access.allowed_origins.is_empty();
    let sold = config.gateway.passthrough.iter().filter(|one| one.method == Method::POST);
    let prices = sold.map(|one| (one.path.clone(), one.price)).collect();
    Ok(Handlers {
        access: Arc::clone(&shared.access),
        catalog: catalog::render(&config.catalog, &catalog_facts(config, origins, shared)),
        ledger_name: HeaderValue::try_from(&*shared.store.name()).map_err(io::Error::other)?,
        openapi: openapi::document(&config.catalog),
        rules: ChatRules {
            catalog: Arc::new(config.catalog.clone()),
            fields: config.gateway.chat_fields.clone(),
        },
        me: me(config, shared, limiter, summary),
        reports: Reports {
            store: shared.store.clone(),
            summary: summary.clone(),
            // In open mode, an address identifies this machine's own users at most.
            identifies_callers: config.access.mode != AccessMode::Open || config.is_local_only(),
            queue: ReportQueue::default(),
        },
        passthrough: Passthrough::new(gateway, prices),
        jobs: shared.jobs.clone(),
        redactor: shared.redactor.clone(),
        videos: Videos::new(media, config.jobs.clone(), shared.jobs.clone(), are_shared),
        page: match &config.page.dir {
            Some(dir) => Page::Site(Site::new(dir.clone(), config.page.fallback.clone())),
            None => Page::built_in(&config.page.title, &config.page.media_origins),
        },
    })
}

fn routes(config: &Settings) -> Arc<RouteTable> {
    let added = config.gateway.passthrough.iter().cloned();
    Arc::new(endpoints::route_table(added.map(|one| (one.method, one.path))))
}

fn me(
    config: &Settings,
    shared: &SharedState,
    limiter: &Arc<Limiter>,
    summary: &BillingSummary,
) -> MeReport {
    MeReport {
        mode: match config.gateway.target {
            Target::Sandbox => "sandbox",
            Target::Live { .. } => "live",
        },
        access: config.access.mode.name(),
        shows_balance: config.access.mode == AccessMode::Open && config.is_local_only(),
        budgets: terms(config).limits,
        limiter: Arc::clone(limiter),
        window: Arc::clone(&shared.rate_limit),
        summary: summary.clone(),
        store: shared.store.clone(),
    }
}

/// What the price list says besides prices.
fn catalog_facts(
    config: &Settings,
    media_origins: Vec<String>,
    shared: &SharedState,
) -> CatalogFacts {
    let sandbox = matches!(config.gateway.target, Target::Sandbox);
    let config::JobsConfig { finished, failed, result } = config.jobs.clone();
    let terms = terms(config);
    CatalogFacts {
        sandbox,
        access: config.access.mode.name(),
        chat_body: config.server.chat_body,
        video_body: config.server.video_body,
        jobs: JobStatusWords { finished, failed, result, media_origins },
        faults: if sandbox { sandbox::SANDBOX_FAULTS.to_vec() } else { Vec::new() },
        replay: Replay {
            chat_seconds: terms.keep_chats.as_secs(),
            video_seconds: terms.keep_videos.as_secs(),
            ledger: String::from(&*shared.store.name()),
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tower::ServiceExt;

    use super::*;
    use crate::upstream::GatewayCall;

    #[tokio::test]
    async fn key_that_is_not_asked_with_is_redacted_too() {
        let keys = ["svc_sk_CANARY_first_key", "svc_sk_CANARY_second_key"];
        let keys = keys.map(|key| Key::new(key.to_owned()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let echo = format!(r#"{{"keyPrefix":"{}"}}"#, keys[1].expose());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", echo.len());
            stream.write_all((head + &echo).as_bytes()).await.unwrap();
        });
        let mut settings = Settings::default().gateway;
        settings.target = Target::Live { base_url: base.clone(), keys: keys.to_vec() };
        let window =
            standalone_rate_limit(Store::in_memory(Arc::new(clock::wall)), &settings).await;
        let gateway = standalone_gateway(&settings, &base, &keys[..1], window).unwrap();
        let reply = gateway.oneshot(GatewayRequest::free(GatewayCall::Billing)).await.unwrap();
        let said = String::from_utf8(reply.body.to_vec()).unwrap();
        assert!(said.contains("keyPrefix") && !said.contains("CANARY"), "{said}");
    }
}
