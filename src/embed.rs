//! The library: the proxy as a tower service, for axum, hyper or any other tower server.

use std::convert::Infallible;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io, thread};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use tokio::runtime::Handle;
use tokio::time::{interval, timeout};
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;
use tower::Service;
use zeroize::Zeroizing;

use crate::app::{self, App, Shutdown, TIDY_INTERVAL};
use crate::cli;
use crate::config::{self, Environment};
use crate::pipeline::HttpService;
use crate::problem::{DRAINING, Problem};
use crate::response::{self, Body, BoxError};

/// `Retry-After` while draining: another process may have taken over by then.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The settings of a [`Tollgate`], from a `proxy.toml` or set one by one.
///
/// Settings have the names and meanings that `proxy.toml` documents. With the defaults, the sandbox
/// runs: a simulated gateway with play money, and a ledger in memory.
///
/// ```
/// use tollgate::{Config, StartError};
///
/// let config = Config::default()
///     .gateway("https://gateway.example.com", "svc_sk_0123456789abcdef")
///     .folder(std::env::temp_dir())
///     .set("store.url", "sqlite:tollgate.db")
///     .set("server.hosts", r#"["shop.example.com"]"#)
///     .set("budget.total", r#"{ day = "20.00" }"#)
///     .set("limits.burst", 20)
///     .checked()?;
/// # let _ = config;
/// let Err(StartError::Settings(errors)) = Config::default().set("limits.burst", "many").checked() else {
///     panic!("a burst is a number");
/// };
/// assert_eq!(errors, ["TOLLGATE_LIMITS__BURST: limits.burst: expected a whole number"]);
/// # Ok::<(), StartError>(())
/// ```
#[derive(Clone, Default)]
pub struct Config {
    toml: String,
    folder: PathBuf,
    variables: Environment,
}

/// An error while building a [`Tollgate`].
///
/// ```
/// use std::path::Path;
/// use tollgate::{Config, StartError};
///
/// let toml = "[limits]\nbrust = 5";
/// match Config::read(toml, Path::new("."), []) {
///     Err(StartError::Settings(errors)) => assert_eq!(
///         errors,
///         ["proxy.toml:2:1: unknown setting `limits.brust`, did you mean `limits.burst`?"],
///     ),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings are invalid. Each line has a location and what was expected, never a value.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
    /// [`Tollgate::new`] was called outside a tokio runtime.
    #[error("tollgate must be built inside a tokio runtime")]
    NoRuntime,
    /// An I/O error: another server has the ledger open, or `page.dir` cannot be read.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Config {
    /// Reads settings as `tollgate serve` does, except that no `.env` is read.
    ///
    /// `toml` is the text of a `proxy.toml`, whose relative paths start at `folder`. `variables` is
    /// the environment, such as `GATEWAY_API_KEY`; pass [`std::env::vars`] for the process's own.
    ///
    /// Set `server.listen` to the address of your own server: open access on a public address needs
    /// a `budget.total`. The connection limits and timeouts of `[server]` have no effect.
    ///
    /// # Errors
    /// [`StartError::Settings`], with all errors at once.
    pub fn read(
        toml: &str,
        folder: &Path,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, StartError> {
        let variables = variables.into_iter().map(|(name, value)| (name, Zeroizing::new(value)));
        Self { toml: toml.to_owned(), folder: folder.to_owned(), variables: variables.collect() }
            .checked()
    }

    /// Sets one setting by its name in `proxy.toml`, and replaces any earlier value. Write text,
    /// times, sizes and amounts without quotes; write lists and tables as in TOML.
    #[must_use]
    pub fn set(self, name: &str, value: impl fmt::Display) -> Self {
        let name = name.replacen('.', "__", 1).to_ascii_uppercase();
        self.variable(&format!("TOLLGATE_{name}"), value.to_string())
    }

    /// Sets the gateway and its key, or up to five comma-separated keys of one account.
    #[must_use]
    pub fn gateway(self, base_url: &str, keys: impl Into<String>) -> Self {
        self.set("gateway.base_url", base_url).variable("GATEWAY_API_KEY", keys.into())
    }

    /// Sets the secret for token hashes: at least 32 random characters. By default, it is created
    /// in a file beside the ledger.
    #[must_use]
    pub fn secret(self, secret: impl Into<String>) -> Self {
        self.variable("TOLLGATE_SECRET", secret.into())
    }

    /// Sets the folder where relative paths start. By default, it is the working directory.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = folder.into();
        self
    }

    /// Validates the settings now instead of in [`Tollgate::new`].
    ///
    /// # Errors
    /// [`StartError::Settings`], with all errors at once.
    pub fn checked(self) -> Result<Self, StartError> {
        self.parse().map(|_| self)
    }

    fn variable(mut self, name: &str, value: String) -> Self {
        self.variables.insert(name.to_owned(), Zeroizing::new(value));
        self
    }

    fn parse(&self) -> Result<config::Settings, StartError> {
        let Self { toml, folder, variables } = self;
        cli::read_text(toml, folder, variables).map_err(|errors| {
            StartError::Settings(errors.iter().map(ToString::to_string).collect())
        })
    }
}

/// Omits the settings, which may hold a key.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// The whole proxy as one [`tower::Service`]: the API, the OpenAI dialect and the page. It never
/// fails: errors are responses. Clones share everything.
///
/// Every request needs a [`Peer`](crate::Peer) in its extensions. Spawn
/// [`background`](Self::background) before you serve requests.
///
/// ```
/// use tollgate::{Config, Peer, Tollgate};
/// use tower::Service;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut gate = Tollgate::new(Config::default())?;
/// tokio::spawn(gate.background());
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
    stack: HttpService<Body>,
    inner: Arc<Inner>,
}

struct Inner {
    app: App,
    tasks: TaskTracker,
    shutdown: Shutdown,
}

impl Tollgate {
    /// Builds the proxy; blocks until the ledger is open. Purchases, polls and the sandbox run on
    /// the current tokio runtime. Risky settings are logged as `tracing` warnings.
    ///
    /// # Errors
    /// Any [`StartError`]. No task is left running.
    pub fn new(config: Config) -> Result<Self, StartError> {
        let settings = config.parse()?;
        let host = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        // An embedded proxy has no ops listener.
        for warning in settings.warnings().iter().filter(|text| !text.starts_with("admin.")) {
            tracing::warn!(warning, "risky setting");
        }
        let shutdown = Shutdown::default();
        // If the start fails, these stop the tasks that it has spawned.
        let guards =
            [&shutdown.draining, &shutdown.finished].map(|token| token.clone().drop_guard());
        let secret = || cli::secret(&settings);
        let starting = async {
            let (shared, opening) = app::prepare(&settings, None, &host, &shutdown, secret).await?;
            app::open(&shared, opening).await.map(|()| shared)
        };
        // On another thread, because the caller's runtime may have only this one.
        let wait = || cli::runtime()?.block_on(starting);
        let started = thread::scope(|scope| scope.spawn(wait).join());
        let shared = started.map_err(|_| io::Error::other("start failed: a thread panicked"))??;
        let app = App::new(settings, shared)?;
        let tasks = TaskTracker::new();
        let stack = app.core(tasks.clone())?.into_service();
        let _ = guards.map(DropGuard::disarm);
        Ok(Self { stack, inner: Arc::new(Inner { app, tasks, shutdown }) })
    }

    /// Runs background work: polls the account's balance and rate limit, and deletes expired
    /// records. Spawn it once; it ends with [`shutdown`](Self::shutdown).
    pub fn background(&self) -> impl Future<Output = ()> + Send + 'static {
        let inner = Arc::clone(&self.inner);
        async move {
            let account = inner.app.watch_account();
            let tidying = async {
                let mut due = interval(TIDY_INTERVAL);
                loop {
                    due.tick().await;
                    inner.app.tidy().await;
                }
            };
            let members = inner.app.shared.access.run();
            let work = futures_util::future::join3(account, members, tidying);
            tokio::select! {
                () = inner.shutdown.finished.cancelled() => {}
                _ = work => {}
            }
        }
    }

    /// Rejects new requests (503 `draining`), ends event streams, and waits for purchases in
    /// flight, at most `server.drain`.
    ///
    /// Stop accepting connections first, but do not wait for the open ones: event streams end only
    /// here. `examples/axum.rs` shows the order.
    pub async fn shutdown(&self) {
        let Inner { app, tasks, shutdown } = &*self.inner;
        shutdown.draining.cancel();
        tasks.close();
        if timeout(app.settings.server.drain, tasks.wait()).await.is_err() {
            let remaining = tasks.len();
            tracing::warn!(
                remaining,
                "stopping with purchases in flight; they may have been charged"
            );
            // Clients still waiting are answered with an unknown outcome.
            shutdown.drain_expired.cancel();
        }
        shutdown.finished.cancel();
    }
}

impl<B> Service<Request<B>> for Tollgate
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    /// Always ready: under load, the proxy rejects requests instead of delaying them.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.stack.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if self.inner.shutdown.draining.is_cancelled() {
            let problem = Problem::new(&DRAINING).retry_after(RETRY_AFTER);
            return Box::pin(ready(Ok(response::from_problem(problem, ""))));
        }
        // `shutdown` waits for this request, whose body may still be arriving.
        let token = self.inner.tasks.token();
        let response = self.stack.call(request.map(Body::stream));
        Box::pin(async move {
            let response = response.await;
            drop(token);
            response
        })
    }
}

impl fmt::Debug for Tollgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollgate").finish_non_exhaustive()
    }
}
