//! Builds the parts from settings and hands them to the pipeline: the only file that may name
//! everything, and one that decides nothing.

mod account;
mod alone;
mod begin;
mod books;
mod current;
mod page;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tower::util::BoxCloneSyncService;
use url::Url;

pub use alone::{asking, window_alone};
pub use begin::{Ends, Starting, begin, own_addresses, prepare};
pub use current::Current;

use crate::access::jwt::Jwt;
use crate::access::roll::Roll;
use crate::access::token::Secret;
use crate::access::{Access, Door};
use crate::billing::summary::Books;
use crate::clock;
use crate::config::{self, Config, Key, Mode, Target};
use crate::downstream::body::Memory;
use crate::downstream::host::Hosts;
use crate::downstream::rate::Limiter;
use crate::downstream::{self, DownstreamConfig};
use crate::jobs::{self, Jobs, reading};
use crate::media::Videos;
use crate::metrics::Metrics;
use crate::pipeline::{self, Public};
use crate::purchase::credit::Credit;
use crate::purchase::idempotency::Running;
use crate::purchase::{self, Terms};
use crate::redact::Redactor;
use crate::reports::Reports;
use crate::routes::{self, Handlers, catalog, openapi};
use crate::sandbox::{self, Sandbox};
use crate::server::{self, Crowd};
use crate::store::{Binding, KeyId, Limits, Refusals, Store};
use crate::upstream::client::Client;
use crate::upstream::keyring::Ring;
use crate::upstream::media::Media;
use crate::upstream::window::Window;
use crate::upstream::{self, Ask, Reply};
use crate::validate::ChatRules;

/// Videos are dear and slow: their replies are kept at least this long.
const KEEP_VIDEOS: Duration = Duration::from_secs(7 * 86_400);

/// How often [`App::tidy`] is due.
pub const TIDY_EVERY: Duration = Duration::from_secs(60);

/// What outlives a change of settings.
#[derive(Clone)]
pub struct Lasting {
    /// Counts since the start of the process.
    pub metrics: Arc<Metrics>,
    /// Knows the gateway's keys, those before a change of settings included.
    pub redactor: Redactor,
    /// Purchases, jobs, members, and what was sent to the gateway.
    pub store: Store,
    /// Whether the gateway's account is the ledger's.
    pub binding: Binding,
    /// Who may call.
    pub access: Arc<Access>,
    /// The purchases that are under way.
    pub running: Running,
    /// Who was refused for free, and when.
    pub refusals: Arc<Refusals>,
    /// What the account's balance covers.
    pub credit: Credit,
    /// The jobs and who watches them.
    pub jobs: Jobs,
    /// The account's window.
    pub window: Arc<Window>,
    /// Who is connected.
    pub crowd: Arc<Crowd>,
    /// What payloads take in memory.
    pub bodies: Arc<Memory>,
    /// The names that we answer to.
    pub hosts: Arc<ArcSwap<Hosts>>,
    /// Cancelled when `server.drain` is over.
    pub cut: CancellationToken,
    /// The sandbox with its socket's address, where it is in use.
    pub sandbox: Option<(Sandbox, SocketAddr)>,
}

/// The gate as settings describe it, ready to be served by any number of cores.
pub struct App {
    downstream: Arc<DownstreamConfig>,
    handlers: Arc<Handlers>,
    gateway: Gateway,
    /// The gateway as whatever is no purchase asks it.
    polls: BoxCloneSyncService<Ask, Reply, upstream::Error>,
    context: purchase::Context,
    books: Books,
    config: Config,
    metrics: Arc<Metrics>,
    crowd: Arc<Crowd>,
}

/// Where the gateway is, and what opens it.
struct Gateway {
    base: Url,
    keys: Vec<Key>,
    ring: Arc<Mutex<Ring>>,
    window: Arc<Window>,
    redactor: Redactor,
    /// How many with other keys or another address there were before.
    generation: u64,
}

impl App {
    /// Builds the gate; `own` are the addresses of this machine that it answers under.
    ///
    /// # Errors
    /// Settings that only the system can refuse: no trust anchors, an unreadable `page.dir`.
    pub fn new(config: Config, own: Vec<IpAddr>, lasting: &Lasting) -> io::Result<Self> {
        let app = Self::build(config, own, lasting, None)?;
        app.apply(lasting);
        Ok(app)
    }

    /// Builds the gate anew from other settings, and changes nothing that is in use:
    /// [`take_over`](Self::take_over) does. It keeps this gate's books, so that it has nothing to ask.
    ///
    /// # Errors
    /// As [`App::new`].
    pub fn renewed(&self, config: Config, own: Vec<IpAddr>, lasting: &Lasting) -> io::Result<Self> {
        Self::build(config, own, lasting, Some(self))
    }

    fn build(
        config: Config,
        own: Vec<IpAddr>,
        lasting: &Lasting,
        old: Option<&Self>,
    ) -> io::Result<Self> {
        let (base, keys) = gateway(&config.gateway.target, lasting)?;
        let ring = Arc::new(Mutex::new(Ring::new(keys.len())));
        let (window, redactor) = (Arc::clone(&lasting.window), lasting.redactor.clone());
        let mut gateway = Gateway { base, keys, ring, window, redactor, generation: 0 };
        if let Some(old) = old.map(|old| &old.gateway) {
            gateway.generation = old.generation + u64::from(!gateway.is_that_of(old));
        }
        let metrics = Arc::clone(&lasting.metrics);
        let polls = gateway.stack(&config)?;
        let limiter = Arc::new(Limiter::new(&config.limits, Arc::clone(&lasting.refusals)));
        let books = match old {
            Some(old) => old.books.clone(),
            None => account::books(polls.clone(), lasting.credit.clone(), &gateway.keys),
        };
        let origins = page::media_origins(&config, lasting);
        let keys: Arc<[KeyId]> = gateway.keys.iter().map(|key| KeyId(key.id())).collect();
        let media = Media::new(origins.clone(), config.gateway.connect_timeout);
        let handlers = Handlers {
            access: Arc::clone(&lasting.access),
            admit: account::admit(&limiter),
            catalog: catalog::render(&config.catalog, &page::facts(&config, origins, lasting)),
            ledger_name: HeaderValue::try_from(&*lasting.store.name()).map_err(io::Error::other)?,
            openapi: openapi::document(&config.catalog),
            rules: ChatRules {
                catalog: Arc::new(config.catalog.clone()),
                fields: config.gateway.chat_fields.clone(),
            },
            me: account::me(&config, &books, lasting, &limiter),
            spend: account::spend(&config, lasting),
            admin: account::admin(&books, lasting),
            reports: Reports::default(),
            further: account::further(&config, polls.clone()),
            jobs: lasting.jobs.clone(),
            redactor: lasting.redactor.clone(),
            videos: Videos::new(
                media,
                words(&config),
                lasting.jobs.clone(),
                !config.access.allowed_origins.is_empty(),
            ),
            page: page::page(&config),
        };
        let downstream = DownstreamConfig {
            origins: config.access.allowed_origins.clone().into(),
            hosts: Arc::new(Hosts::new(config.server.hosts.iter().cloned(), own)),
            trusted: config.server.trusted_proxies.clone().into(),
            access: Arc::clone(&lasting.access),
            routes: account::routes(&config),
            limiter,
            bodies: (&config.server).into(),
            memory: Arc::clone(&lasting.bodies),
            refusals: Arc::default(),
            metrics: Arc::clone(&metrics),
        };
        let context = purchase::Context {
            ledger: lasting.store.clone(),
            binding: lasting.binding.of_gateway(gateway.generation),
            running: lasting.running.clone(),
            refusals: Arc::clone(&lasting.refusals),
            credit: lasting.credit.clone(),
            jobs: lasting.jobs.clone(),
            keys,
            terms: terms(&config),
            metrics: Arc::clone(&metrics),
            cut: lasting.cut.clone(),
        };
        let crowd = Arc::clone(&lasting.crowd);
        let (handlers, polls) = (Arc::new(handlers), BoxCloneSyncService::new(polls));
        let downstream = Arc::new(downstream);
        Ok(Self { downstream, handlers, gateway, polls, context, books, config, metrics, crowd })
    }

    /// Has what outlives a change of settings go by the settings of this gate.
    fn apply(&self, lasting: &Lasting) {
        let Self { downstream, config, context, .. } = self;
        lasting.jobs.follow(jobs::Setup {
            gateway: self.polls.clone(),
            keys: Arc::clone(&context.keys),
            words: words(config),
            is_public: !config.is_private(),
        });
        lasting.hosts.store(Arc::clone(&downstream.hosts));
        lasting.window.follow(config.gateway.window);
        let (most, trusted) =
            (config.server.max_connections_per_address, downstream.trusted.clone());
        lasting.crowd.follow(most, move |peer| downstream::caller::counted(peer, &trusted));
    }

    /// One core's stack, with connections to the gateway of its own. Its purchases run on `tasks`.
    ///
    /// # Errors
    /// As [`App::new`].
    pub fn core<B>(&self, tasks: TaskTracker) -> io::Result<Public<B>>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<crate::answer::BoxError>,
    {
        let gateway = self.gateway.stack(&self.config)?;
        let purchases = pipeline::purchases(&self.context, tasks, gateway);
        let routes = routes::service(Arc::clone(&self.handlers), purchases);
        Ok(pipeline::downstream(&self.downstream, routes))
    }

    /// Forgets callers who have not come for a while, and replies that were kept for long enough.
    pub fn tidy(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let DownstreamConfig { limiter, refusals, .. } = &*self.downstream;
        let (limiter, refusals) = (Arc::clone(limiter), Arc::clone(refusals));
        let ledger = self.context.ledger.clone();
        async move {
            limiter.tidy();
            refusals.tidy(clock::now());
            if let Err(error) = ledger.forget().await {
                tracing::warn!(%error, "old replies could not be forgotten");
            }
        }
    }

    /// The settings that this gate was built from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How the server treats connections.
    pub fn server(&self) -> server::Settings {
        server::Settings {
            header_timeout: self.config.server.header_timeout,
            idle_timeout: self.config.server.idle_timeout,
            connections: Arc::new(Semaphore::new(self.config.server.max_connections)),
            crowd: Arc::clone(&self.crowd),
            metrics: Arc::clone(&self.metrics),
        }
    }
}

impl Gateway {
    fn stack(
        &self,
        config: &Config,
    ) -> io::Result<
        impl Service<Ask, Response = Reply, Error = upstream::Error, Future: Send>
        + Clone
        + Send
        + Sync
        + use<>,
    > {
        let redactor = self.redactor.clone();
        Ok(pipeline::gateway(upstream::Gateway {
            ring: Arc::clone(&self.ring),
            window: Arc::clone(&self.window),
            max_wait: config.gateway.max_wait,
            transport: Client::new(&self.base, &self.keys, &config.gateway, redactor)?,
        }))
    }
}

/// The account's window, which goes on with what `store` remembers. After `shutdown` nothing queues for
/// it.
pub async fn window(store: Store, config: &Config, shutdown: CancellationToken) -> Arc<Window> {
    let window = Window::new(store, config.gateway.window, shutdown);
    window.restore().await;
    window
}

/// Who may call: nobody is let in whom `mode` does not name, whatever else fails. `secret` is needed
/// where there are members only, who are let in once their list is [read](Access::open).
///
/// # Errors
/// That of `secret`; a file of keys that cannot be used.
pub fn access(
    mode: &Mode,
    store: Store,
    secret: impl FnOnce() -> io::Result<Secret>,
    metrics: Arc<Metrics>,
) -> io::Result<Arc<Access>> {
    let door = match mode {
        Mode::Open => Door::Open,
        Mode::Members => Door::Members(Roll::new(store, secret()?)),
        Mode::Jwt(settings) => Door::Jwt(Jwt::new(settings)?),
    };
    Ok(Arc::new(Access::new(door, metrics)))
}

/// A sandbox as the settings want it.
pub fn sandbox(config: &Config) -> Sandbox {
    Sandbox::new(sandbox::Settings {
        seed: config.sandbox.seed,
        balance: config.sandbox.balance,
        job_time: config.sandbox.job_time,
        ..sandbox::Settings::default()
    })
}

fn gateway(target: &Target, lasting: &Lasting) -> io::Result<(Url, Vec<Key>)> {
    match (target, &lasting.sandbox) {
        (Target::Live { base_url, keys }, _) => Ok((base_url.clone(), keys.clone())),
        (Target::Sandbox, Some((sandbox, address))) => {
            let base = Url::parse(&format!("http://{address}")).map_err(io::Error::other)?;
            Ok((base, sandbox.keys().into_iter().map(Key::new).collect()))
        }
        (Target::Sandbox, None) => Err(io::Error::other("the sandbox is not running")),
    }
}

/// What purchases are made under.
pub fn terms(config: &Config) -> Terms {
    let (gateway, budget) = (&config.gateway, &config.budget);
    Terms {
        limits: Limits {
            total_day: budget.total.day,
            total_month: budget.total.month,
            caller_day: budget.caller.day,
            caller_month: budget.caller.month,
        },
        balance_floor: gateway.balance_floor,
        dedupe_window: config.purchase.dedupe_window,
        keep_chats: config.purchase.keep_replies,
        keep_videos: config.purchase.keep_replies.max(KEEP_VIDEOS),
        patience: gateway.max_wait + gateway.chat_timeout.max(gateway.video_timeout),
    }
}

fn words(config: &Config) -> reading::Words {
    let config::Jobs { finished, failed, result } = config.jobs.clone();
    reading::Words { finished, failed, result }
}
