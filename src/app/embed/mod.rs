//! The library: the proxy as a tower service, for axum, hyper or any other tower server.

mod chat;
mod config;
mod ops;

use std::convert::Infallible;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, io, thread};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::DropGuard;
use tower::Service;

use crate::access::secret_file;
use crate::app::{self, App, Shutdown};
use crate::edge::runtime::{CLOSE_TIMEOUT, Core, Runtime};
use crate::gate::caller::Peer;
use crate::gate::response::{Body, BoxError};
use crate::gate::source::Source;
use crate::gateway::contract::money::Usd;

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
    runtime: Arc<Runtime>,
    core: Arc<Core>,
    /// The addresses of the ops listener on this machine.
    ops: Arc<[IpAddr]>,
    find_peer: Option<FindPeer>,
}

/// Finds the client's address in a request's extensions.
type FindPeer = fn(&Extensions) -> Option<SocketAddr>;

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
        let ops = app::own_addresses(config.ops.as_slice())?.into();
        let starting = async {
            let secret = || secret_file::secret(&settings);
            let (shared, opening) =
                app::prepare(&settings, config.ops, &host, &shutdown, secret, false).await?;
            app::open(&shared, opening).await.map(|()| shared)
        };
        // On another thread, because the caller's runtime may have only this one.
        let wait = || Builder::new_current_thread().enable_all().build()?.block_on(starting);
        let started = thread::scope(|scope| scope.spawn(wait).join());
        let shared = started.map_err(|_| io::Error::other("start failed: a thread panicked"))??;
        let app = App::new(settings, shared)?;
        let _ = guards.map(DropGuard::disarm);
        let runtime = Runtime::new(app, shutdown);
        let core = runtime.add_core()?;
        runtime.start_background(&host);
        Ok(Self { runtime, core, ops, find_peer: None })
    }

    /// Puts other settings into effect, such as a new key, budgets or limits. Requests in flight
    /// finish with the old settings.
    ///
    /// # Errors
    /// [`StartError::Settings`] if they are invalid or need a restart: `access.mode`, `store.url`,
    /// `server.listen`, the secret, or a change between sandbox and gateway. The old settings stay.
    pub fn reload(&self, config: Config) -> Result<(), StartError> {
        Ok(self.runtime.reload(config.parse()?)?)
    }

    /// Returns the private service for operators: metrics, readiness and the account's balance.
    pub fn ops(&self) -> OpsService {
        OpsService::new(self)
    }

    /// Takes the client's address from what your server puts into the extensions of requests that have
    /// no [`Peer`]. With axum:
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
        let app = self.runtime.app();
        let (sandbox, _) = app.shared.sandbox.as_ref()?;
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
        self.runtime.shutdown.drain();
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
        let shutdown = self.runtime.shutdown.clone();
        Ok(async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            shutdown.drain();
        })
    }

    /// [Drains](Self::drain), waits for purchases in flight, at most `server.drain`, and releases
    /// the ledger. Clones reject every request from then on.
    pub async fn shutdown(&self) {
        self.runtime.drain(ready(())).await;
        let store = self.runtime.app().shared.store.clone();
        if timeout(CLOSE_TIMEOUT, spawn_blocking(move || store.close())).await.is_err() {
            tracing::error!("ledger not closed in time");
        }
    }
}

/// Returns the address of a request's client, as the embedding server tells it.
fn peer_of(extensions: &Extensions, find: Option<FindPeer>) -> Option<Peer> {
    let own = extensions.get::<Peer>().copied();
    own.or_else(|| find.and_then(|find| find(extensions)).map(Peer))
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
        let runtime = Arc::clone(&self.runtime);
        // `shutdown` waits for this request, whose body may still be arriving.
        let token = self.core.tasks.token();
        let stack = self.core.stack.load_full();
        let source = peer_of(request.extensions(), self.find_peer).map(Source::from);
        let request = request.map(Body::stream);
        Box::pin(async move {
            if runtime.shutdown.draining.is_cancelled() {
                return Ok(stack.reject_draining(source, request).await);
            }
            let response = stack.handle(source, request).await;
            // Until here, a dropped gate goes on: this request may be its last user.
            drop((token, runtime));
            Ok(response)
        })
    }
}

impl fmt::Debug for Tollgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollgate").finish_non_exhaustive()
    }
}
