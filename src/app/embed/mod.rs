//! The library: the proxy as a tower service, for axum, hyper or any other tower server.

mod chat;
mod config;
mod ops;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io, thread};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Extensions, Request, Response};
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tower::Service;

use crate::app::{
    self, App, CLOSE_TIMEOUT, FLUSH_TIMEOUT, Shutdown, TIDY_INTERVAL, changes, secret,
};
use crate::gate::caller::Peer;
use crate::gate::pipeline::HttpStack;
use crate::gate::rate::calibrate_clock;
use crate::gate::response::{Body, BoxError};
use crate::gate::source::Source;
use crate::gateway::contract::money::Usd;
use crate::sync::lock;

pub use chat::{Buyer, ChatError, ChatReply};
pub use config::{Config, StartError};
pub use ops::OpsService;

/// The whole proxy as one [`tower::Service`]: the API, the OpenAI dialect and the page. It never
/// fails: errors are responses. Clones share everything.
///
/// Every request needs a [`Peer`](crate::Peer) in its extensions, and with
/// `access.mode = "host"` a [`User`](crate::User).
///
/// ```
/// use tollgate::{Config, Peer, Tollgate};
/// use tower::Service;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut gate = Tollgate::new(Config::default())?;
///
/// let mut request =
///     http::Request::get("/bff/catalog").header("host", "localhost").body(String::new())?;
/// request.extensions_mut().insert(Peer("127.0.0.1:50000".parse()?));
/// let response = gate.call(request).await?;
/// assert_eq!(response.status(), 200);
///
/// gate.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// [`tower::Service`]: https://docs.rs/tower/latest/tower/trait.Service.html
#[derive(Clone)]
pub struct Tollgate {
    inner: Arc<Inner>,
    find_peer: Option<FindPeer>,
}

/// Finds the client's address in a request's extensions.
type FindPeer = fn(&Extensions) -> Option<SocketAddr>;

struct Inner {
    /// A reload swaps it; each request uses the current one.
    current: ArcSwap<Version>,
    reloading: Mutex<()>,
    tasks: TaskTracker,
    shutdown: Shutdown,
    drain: Duration,
    ops: ops::OpsAddresses,
}

/// The proxy for one version of the settings.
struct Version {
    app: App,
    stack: Arc<HttpStack>,
}

/// The sandbox's sales and balance, for tests.
///
/// ```
/// use tollgate::{Config, Tollgate};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::StartError> {
/// let gate = Tollgate::new(Config::sandbox().instant())?;
/// let before = gate.sandbox().expect("no gateway is set");
/// assert_eq!((before.charged_micros, before.chats), (0, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxReport {
    /// The play money that is left, in millionths of a dollar.
    pub balance_micros: u64,
    /// The play money that was charged, in millionths of a dollar.
    pub charged_micros: u64,
    /// The number of chats that were charged.
    pub chats: u64,
    /// The number of videos that were charged.
    pub videos: u64,
}

impl Tollgate {
    /// Builds the proxy; blocks until the ledger is open. Purchases, polls and the sandbox run on
    /// the current tokio runtime until [`shutdown`](Self::shutdown), or until the last clone is
    /// dropped. Risky settings are logged as `tracing` warnings.
    ///
    /// # Errors
    /// Any [`StartError`]. No task is left running.
    pub fn new(config: Config) -> Result<Self, StartError> {
        let settings = config.parse()?;
        let host = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        // `admin.listen` is not used: the application mounts the ops service itself.
        for warning in settings.warnings().iter().filter(|text| !text.starts_with("admin.")) {
            tracing::warn!(warning, "risky setting");
        }
        let shutdown = Shutdown::default();
        // If the start fails, these stop the tasks that it has spawned.
        let guards =
            [&shutdown.draining, &shutdown.finished].map(|token| token.clone().drop_guard());
        let secret = || secret::secret(&settings);
        let ops = ops::OpsAddresses::new(config.ops)?;
        let starting = async {
            let (shared, opening) =
                app::prepare(&settings, config.ops, &host, &shutdown, secret, false).await?;
            app::open(&shared, opening).await.map(|()| shared)
        };
        // On another thread, because the caller's runtime may have only this one.
        let wait = || Builder::new_current_thread().enable_all().build()?.block_on(starting);
        let started = thread::scope(|scope| scope.spawn(wait).join());
        let shared = started.map_err(|_| io::Error::other("start failed: a thread panicked"))??;
        let (drain, tasks) = (settings.server.drain, TaskTracker::new());
        let version = Version::new(App::new(settings, shared)?, &tasks)?;
        let _ = guards.map(DropGuard::disarm);
        let (current, reloading) = (ArcSwap::from_pointee(version), Mutex::default());
        let inner = Arc::new(Inner { current, reloading, tasks, shutdown, drain, ops });
        host.spawn(Inner::background(&inner));
        // Otherwise, the first request waits for it.
        thread::spawn(calibrate_clock);
        Ok(Self { inner, find_peer: None })
    }

    /// Puts other settings into effect, such as a new key, budgets or limits. Requests in flight
    /// finish with the old settings.
    ///
    /// # Errors
    /// [`StartError::Settings`] if they are invalid or need a restart: `access.mode`, `store.url`,
    /// `server.listen`, the secret, or a change between sandbox and gateway. The old settings stay.
    pub fn reload(&self, config: Config) -> Result<(), StartError> {
        let mut settings = config.parse()?;
        let inner = &*self.inner;
        let _alone = lock(&inner.reloading);
        let old = inner.current.load_full();
        changes::check_changes(&old.app.settings, &settings)
            .map_err(|error| StartError::Settings(vec![error]))?;
        changes::keep_until_restart(&old.app.settings, &mut settings);
        let new = Version::new(old.app.with_settings(settings)?, &inner.tasks)?;
        // Before the swap, so that no request to a new account uses the old rate limit.
        new.app.replace(&old.app);
        new.app.shared.access.refetch_keys();
        inner.current.store(Arc::new(new));
        Ok(())
    }

    /// Returns the private service for operators: metrics, readiness and the account's balance.
    pub fn ops(&self) -> OpsService {
        OpsService::new(Arc::clone(&self.inner), self.find_peer)
    }

    /// Takes the client's address from what your server puts into the extensions of requests that have
    /// no [`Peer`](crate::Peer). With axum:
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use axum::extract::ConnectInfo;
    /// # use tollgate::Tollgate;
    /// fn app(gate: Tollgate) -> axum::Router {
    ///     let gate = gate.peer_from(|it| it.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    ///     axum::Router::new().fallback_service(gate)
    /// }
    /// ```
    #[must_use]
    pub fn peer_from(self, find: fn(&Extensions) -> Option<SocketAddr>) -> Self {
        Self { find_peer: Some(find), ..self }
    }

    /// Returns what the sandbox has sold, or `None` with a real gateway.
    pub fn sandbox(&self) -> Option<SandboxReport> {
        let version = self.inner.current.load();
        let (sandbox, _) = version.app.shared.sandbox.as_ref()?;
        let charges = sandbox.charges();
        Some(SandboxReport {
            balance_micros: Usd::as_micros(sandbox.balance()),
            charged_micros: Usd::as_micros(sandbox.charged()),
            chats: charges.chat,
            videos: charges.video,
        })
    }

    /// Rejects new requests (503 `draining`) and ends event streams. Purchases in flight go on.
    ///
    /// Call it when the signal to stop arrives, so that a server that waits for its open
    /// connections does not wait for event streams. Then wait for [`shutdown`](Self::shutdown).
    pub fn drain(&self) {
        drain(&self.inner.shutdown.draining);
    }

    /// Returns a future that waits for SIGTERM or SIGINT (Ctrl-C), then [drains](Self::drain): the
    /// signal for a server's graceful shutdown, such as axum's. From this call on, neither signal
    /// ends the process by itself.
    ///
    /// # Errors
    /// If the handlers cannot be installed, or outside a tokio runtime.
    pub fn terminated(&self) -> io::Result<impl Future<Output = ()> + Send + 'static> {
        let _runtime = Handle::try_current().map_err(io::Error::other)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let draining = self.inner.shutdown.draining.clone();
        Ok(async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            drain(&draining);
        })
    }

    /// [Drains](Self::drain), waits for purchases in flight, at most `server.drain`, and releases
    /// the ledger. Clones reject every request from then on.
    pub async fn shutdown(&self) {
        let Inner { current, tasks, shutdown, drain, .. } = &*self.inner;
        self.drain();
        tasks.close();
        if timeout(*drain, tasks.wait()).await.is_err() {
            let remaining = tasks.len();
            tracing::warn!(
                remaining,
                "stopping with purchases in flight; they may have been charged"
            );
            // Clients still waiting are answered with an unknown outcome.
            shutdown.drain_expired.cancel();
            timeout(FLUSH_TIMEOUT, tasks.wait()).await.ok();
        }
        shutdown.finished.cancel();
        let store = current.load().app.shared.store.clone();
        if timeout(CLOSE_TIMEOUT, spawn_blocking(move || store.close())).await.is_err() {
            tracing::error!("ledger not closed in time");
        }
        tracing::info!("stopped");
    }
}

fn drain(draining: &CancellationToken) {
    if !draining.is_cancelled() {
        tracing::info!("drain started");
    }
    draining.cancel();
}

/// Returns the address of a request's client, as the embedding server tells it.
fn peer_of(extensions: &Extensions, find: Option<FindPeer>) -> Option<Peer> {
    let own = extensions.get::<Peer>().copied();
    own.or_else(|| find.and_then(|find| find(extensions)).map(Peer))
}

impl Inner {
    /// Polls the account's balance and rate limit, refreshes members, and deletes expired records.
    fn background(inner: &Arc<Self>) -> impl Future<Output = ()> + Send + 'static + use<> {
        let current = inner.current.load();
        let app = &current.app;
        let (account, access) = (app.watch_account(), Arc::clone(&app.shared.access));
        let events = app.report_events();
        let (finished, inner) = (inner.shutdown.finished.clone(), Arc::downgrade(inner));
        let tidying = async move {
            let mut due = interval(TIDY_INTERVAL);
            loop {
                due.tick().await;
                let Some(inner) = inner.upgrade() else { return };
                let tidy = inner.current.load().app.tidy();
                drop(inner);
                tidy.await;
            }
        };
        async move {
            let work = futures_util::future::join4(account, access.run(), tidying, events);
            finished.run_until_cancelled(work).await;
        }
    }
}

/// The last clone is gone, and with it the last request.
impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown.draining.cancel();
        self.shutdown.finished.cancel();
    }
}

impl Version {
    fn new(app: App, tasks: &TaskTracker) -> io::Result<Self> {
        let stack = app.core(tasks.clone())?;
        Ok(Self { app, stack })
    }
}

impl<B> Service<Request<B>> for Tollgate
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    /// Always ready: under load, the proxy rejects requests instead of delaying them.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = Arc::clone(&self.inner);
        // `shutdown` waits for this request, whose body may still be arriving.
        let token = inner.tasks.token();
        let (version, source) = (
            inner.current.load_full(),
            peer_of(request.extensions(), self.find_peer).map(Source::from),
        );
        let request = request.map(Body::stream);
        Box::pin(async move {
            if inner.shutdown.draining.is_cancelled() {
                return Ok(version.stack.reject_draining(source, request).await);
            }
            let response = version.stack.handle(source, request).await;
            // Until here, a dropped gate goes on: this request may be its last user.
            drop((token, inner));
            Ok(response)
        })
    }
}

impl fmt::Debug for Tollgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollgate").finish_non_exhaustive()
    }
}
