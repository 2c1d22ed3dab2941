//! Builds the parts from settings and hands them to the pipeline: the only file that may name
//! everything, and one that decides nothing.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

use arc_swap::ArcSwap;
use http::Request;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tower::Service;
use url::Url;
use uuid::Uuid;

use crate::account::media::Videos;
use crate::answer::Answer;
use crate::clock;
use crate::config::{Config, Key, Target};
use crate::downstream;
use crate::downstream::host::Hosts;
use crate::downstream::rate::Limiter;
use crate::jobs::Jobs;
use crate::metrics::Metrics;
use crate::pipeline;
use crate::pipeline::{Counter, Gate, Public};
use crate::purchase::Terms;
use crate::purchase::idempotency::Running;
use crate::routes::catalog::{self, Facts, Replay, Words};
use crate::routes::page::{Page, PageSettings};
use crate::routes::{Parts, Routes};
use crate::sandbox;
use crate::sandbox::Sandbox;
use crate::server;
use crate::store::memory::Memory;
use crate::store::sqlite::{OpenError, Sqlite};
use crate::store::{Ledger, Limits};
use crate::upstream::client::Client;
use crate::upstream::keyring::Ring;
use crate::upstream::media::Media;
use crate::validate::ChatRules;

/// Videos are dear and slow: their replies are kept at least this long.
const KEEP_VIDEOS: Duration = Duration::from_secs(7 * 86_400);

/// What outlives a change of settings.
#[derive(Clone)]
pub struct Lasting {
    /// Counts since the start of the process.
    pub metrics: Arc<Metrics>,
    /// Where every purchase is written down.
    pub ledger: Arc<dyn Ledger>,
    /// Names what it remembers: another name once purchases may be forgotten. Public, so no secret.
    pub ledger_name: Arc<str>,
    /// The purchases that are under way.
    pub running: Running,
    /// The sandbox with its socket's address, where it is in use.
    pub sandbox: Option<(Sandbox, SocketAddr)>,
}

/// The gate as settings describe it, ready to be served by any number of cores.
pub struct App {
    gate: Gate,
    parts: Arc<Parts>,
    gateway: Gateway,
    counter: Counter,
    config: Config,
    metrics: Arc<Metrics>,
}

/// Where the gateway is, and what opens it.
struct Gateway {
    base: Url,
    keys: Vec<Key>,
    ring: Arc<Mutex<Ring>>,
}

impl App {
    /// Builds the gate; `own` are the addresses of this machine that it answers under.
    ///
    /// # Errors
    /// Settings that only the system can refuse: no trust anchors, an unreadable `page.dir`.
    pub fn new(config: Config, own: Vec<IpAddr>, lasting: &Lasting) -> io::Result<Self> {
        let (base, keys) = gateway(&config.gateway.target, lasting)?;
        let ring = Arc::new(Mutex::new(Ring::new(keys.len())));
        let gateway = Gateway { base, keys, ring };
        let metrics = Arc::clone(&lasting.metrics);
        let polls = gateway.stack(&config, &metrics)?;
        let origins = media_origins(&config, lasting);
        let media = Media::new(origins.clone(), config.gateway.connect_timeout);
        let parts = Parts {
            catalog: catalog::render(&config.catalog, &facts(&config, origins, lasting)),
            rules: ChatRules {
                catalog: Arc::new(config.catalog.clone()),
                fields: config.gateway.chat_fields.clone(),
            },
            jobs: Jobs::new(polls, TaskTracker::new()),
            videos: Videos::new(media, config.jobs.result.clone()),
            page: page(&config),
        };
        let gate = Gate {
            origins: config.access.allowed_origins.clone().into(),
            hosts: Arc::new(Hosts::new(config.server.hosts.iter().cloned(), own)),
            trusted: config.server.trusted_proxies.clone().into(),
            limiter: Arc::new(Limiter::new(&config.limits)),
            bodies: downstream::body::Limits {
                chat: config.server.chat_body,
                video: config.server.video_body,
                timeout: config.server.body_timeout,
            },
            metrics: Arc::clone(&metrics),
        };
        let counter = Counter {
            ledger: Arc::clone(&lasting.ledger),
            running: lasting.running.clone(),
            terms: terms(&config),
            metrics: Arc::clone(&metrics),
        };
        Ok(Self { gate, parts: Arc::new(parts), gateway, counter, config, metrics })
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
        let gateway = self.gateway.stack(&self.config, &self.metrics)?;
        let purchases = pipeline::purchases(&self.counter, tasks, gateway);
        let routes = Routes::new(Arc::clone(&self.parts), purchases);
        Ok(pipeline::downstream(&self.gate, routes))
    }

    /// Forgets callers who have not come for a while.
    pub fn tidy(&self) {
        self.gate.limiter.tidy();
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
            metrics: Arc::clone(&self.metrics),
        }
    }
}

impl Gateway {
    fn stack(
        &self,
        config: &Config,
        metrics: &Arc<Metrics>,
    ) -> io::Result<
        impl Service<
            crate::upstream::Ask,
            Response = crate::upstream::Reply,
            Error = crate::upstream::Error,
            Future: Send,
        > + Clone
        + Send
        + Sync
        + use<>,
    > {
        let client = Client::new(&self.base, &self.keys, &config.gateway, Arc::clone(metrics))?;
        Ok(pipeline::gateway(config.gateway.max_wait, Arc::clone(&self.ring), client))
    }
}

/// A core's stack that can be exchanged while it is in use: each request takes the one of its moment.
pub struct Current<B>(Arc<ArcSwap<Public<B>>>);

impl<B> Current<B> {
    /// Starts with `stack`.
    pub fn new(stack: Public<B>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(stack)))
    }

    /// Requests from now on are answered by `stack`.
    pub fn exchange(&self, stack: Public<B>) {
        self.0.store(Arc::new(stack));
    }
}

impl<B> Clone for Current<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Service<Request<B>> for Current<B> {
    type Response = Answer;
    type Error = Infallible;
    type Future = <Public<B> as Service<Request<B>>>::Future;

    /// Every layer of the stack is always ready: it refuses rather than making a caller wait.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Public::clone(&self.0.load()).call(request)
    }
}

/// A ledger that ends with the process.
pub fn memory() -> Arc<dyn Ledger> {
    Arc::new(Memory::new(Arc::new(clock::wall)))
}

/// Names a ledger that ends with the process: its purchases are forgotten at the next start.
pub fn memory_name() -> Arc<str> {
    Uuid::now_v7().to_string().into()
}

/// Names a ledger in a file: this file, and no other that may later lie at its place.
pub fn sqlite_name(path: &Path) -> Arc<str> {
    let mut hash = blake3::Hasher::new();
    hash.update(path.as_os_str().as_bytes());
    if let Ok(file) = path.metadata() {
        let born = file.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        hash.update(&file.ino().to_le_bytes());
        hash.update(&born.unwrap_or_default().as_nanos().to_le_bytes());
    }
    format!("durable-{}", &hash.finalize().to_hex()[..16]).into()
}

/// A ledger in a file, to sell from.
///
/// # Errors
/// Another server has it, or it cannot be used.
pub fn sqlite(path: &Path) -> Result<Arc<dyn Ledger>, OpenError> {
    Ok(Arc::new(Sqlite::serve(path, Arc::new(clock::wall))?))
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

fn terms(config: &Config) -> Terms {
    let (gateway, budget) = (&config.gateway, &config.budget);
    Terms {
        limits: Limits {
            total_day: budget.total.day,
            total_month: budget.total.month,
            caller_day: budget.caller.day,
            caller_month: budget.caller.month,
        },
        dedupe_window: config.purchase.dedupe_window,
        keep_chats: config.purchase.keep_replies,
        keep_videos: config.purchase.keep_replies.max(KEEP_VIDEOS),
        patience: gateway.max_wait + gateway.chat_timeout.max(gateway.video_timeout),
    }
}

fn facts(config: &Config, media_origins: Vec<String>, lasting: &Lasting) -> Facts {
    let sandbox = matches!(config.gateway.target, Target::Sandbox);
    let crate::config::Jobs { finished, failed, result } = config.jobs.clone();
    let terms = terms(config);
    Facts {
        sandbox,
        chat_body: config.server.chat_body,
        video_body: config.server.video_body,
        jobs: Words { finished, failed, result, media_origins },
        moods: if sandbox { sandbox::MOODS.to_vec() } else { Vec::new() },
        replay: Replay {
            chat_seconds: terms.keep_chats.as_secs(),
            video_seconds: terms.keep_videos.as_secs(),
            ledger: String::from(&*lasting.ledger_name),
        },
    }
}

fn page(config: &Config) -> Page {
    let page = &config.page;
    match &page.dir {
        Some(dir) => Page::site(dir.clone(), page.fallback.clone()),
        None => Page::built_in(PageSettings {
            title: page.title.clone(),
            media_origins: page.media_origins.clone(),
        }),
    }
}

/// The listed origins, and the sandbox's own.
fn media_origins(config: &Config, lasting: &Lasting) -> Vec<String> {
    let sandbox = lasting.sandbox.iter().map(|(_, address)| format!("http://{address}"));
    config.page.media_origins.iter().cloned().chain(sandbox).collect()
}
