//! The proxy as a service for a server of one's own: axum, hyper, or any other that speaks tower.

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
use tokio::runtime::{self, Handle};
use tokio::time::{interval, timeout};
use tokio_util::task::TaskTracker;
use tower::Service;
use zeroize::Zeroizing;

use crate::app::{self, App, Shutdown, TIDY_INTERVAL};
use crate::cli;
use crate::config::{self, Environment};
use crate::pipeline::HttpService;
use crate::problem::{DRAINING, Problem};
use crate::response::{self, Body, BoxError};

/// When a gate that stops is worth another try: another one may have taken its place.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The settings of a [`Tollgate`]: those of a `proxy.toml`, or those that are set one by one.
///
/// Every setting has the name and the meaning that `proxy.toml` documents. What is not set keeps its
/// default, which is the sandbox: a make-believe gateway, play money, and a ledger in memory.
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
/// let Err(StartError::Settings(faults)) = Config::default().set("limits.burst", "many").checked() else {
///     panic!("a burst is a number");
/// };
/// assert_eq!(faults, ["TOLLGATE_LIMITS__BURST: limits.burst: expected a whole number"]);
/// # Ok::<(), StartError>(())
/// ```
#[derive(Clone, Default)]
pub struct Config {
    toml: String,
    folder: PathBuf,
    variables: Environment,
}

/// Why there is no [`Tollgate`].
///
/// ```
/// use std::path::Path;
/// use tollgate::{Config, StartError};
///
/// let toml = "[limits]\nbrust = 5";
/// match Config::read(toml, Path::new("."), []) {
///     Err(StartError::Settings(faults)) => assert_eq!(
///         faults,
///         ["proxy.toml:2:1: unknown setting `limits.brust`, did you mean `limits.burst`?"],
///     ),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Mistakes in the settings, a line each: where, and what was expected. No value is repeated.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
    /// [`Tollgate::new`] was called outside of a tokio runtime.
    #[error("tollgate has to be built inside a tokio runtime")]
    NoRuntime,
    /// What the system refuses: another server has the store, `page.dir` cannot be read.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Config {
    /// Reads settings as `tollgate serve` does: `toml` is the text of a `proxy.toml`, `folder` is
    /// where its relative paths count from, and `variables` stand for the environment, such as
    /// `GATEWAY_API_KEY`; give [`std::env::vars`] for the process's own. A `.env` is not read.
    ///
    /// `server.listen` says where your own server listens: if machines other than this one can reach it,
    /// open access demands a `budget.total`. The other settings of `[server]` about connections have no
    /// effect, because connections are your server's.
    ///
    /// # Errors
    /// [`StartError::Settings`], with every fault at once.
    pub fn read(
        toml: &str,
        folder: &Path,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, StartError> {
        let variables = variables.into_iter().map(|(name, value)| (name, Zeroizing::new(value)));
        Self { toml: toml.to_owned(), folder: folder.to_owned(), variables: variables.collect() }
            .checked()
    }

    /// Sets a setting by the name that `proxy.toml` has for it, over what was there. A text, a time, a
    /// size and an amount are written without quotes; a list and a table as TOML writes them.
    #[must_use]
    pub fn set(self, name: &str, value: impl fmt::Display) -> Self {
        let name = name.replacen('.', "__", 1).to_ascii_uppercase();
        self.variable(&format!("TOLLGATE_{name}"), value.to_string())
    }

    /// Asks this gateway with this key, or with several keys of one account, separated by commas.
    #[must_use]
    pub fn gateway(self, base_url: &str, keys: impl Into<String>) -> Self {
        self.set("gateway.base_url", base_url).variable("GATEWAY_API_KEY", keys.into())
    }

    /// Sets the secret that keys the hashes of members' tokens: at least 32 random characters. Without
    /// it, one is made in a file beside the ledger.
    #[must_use]
    pub fn secret(self, secret: impl Into<String>) -> Self {
        self.variable("TOLLGATE_SECRET", secret.into())
    }

    /// Sets the folder that relative paths count from; without it, that is the working directory.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = folder.into();
        self
    }

    /// Looks for mistakes now. [`Tollgate::new`] does so in any case.
    ///
    /// # Errors
    /// [`StartError::Settings`], with every fault at once.
    pub fn checked(self) -> Result<Self, StartError> {
        self.parse().map(|_| self)
    }

    fn variable(mut self, name: &str, value: String) -> Self {
        self.variables.insert(name.to_owned(), Zeroizing::new(value));
        self
    }

    fn parse(&self) -> Result<config::Settings, StartError> {
        let Self { toml, folder, variables } = self;
        cli::read_text(toml, folder, variables).map_err(|faults| {
            StartError::Settings(faults.iter().map(ToString::to_string).collect())
        })
    }
}

/// Shows no text of the settings: somebody may have put a key into it.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// The whole proxy behind one [`tower::Service`]: the API, the OpenAI dialect and the page. It never
/// fails: a refusal is a response. Clones share everything.
///
/// Every request needs a [`Peer`](crate::Peer) in its extensions. [`background`](Self::background) has
/// to run as long as requests come.
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
    /// Opens the store and builds the gate. Purchases, polls and the sandbox run on the tokio runtime
    /// that this is called in; it blocks for as long as the store takes to open. What deserves a second
    /// look in the settings is said once, as a warning of [`tracing`]. Where it fails, nothing goes on.
    ///
    /// # Errors
    /// [`StartError::NoRuntime`], or [`StartError::System`].
    pub fn new(config: Config) -> Result<Self, StartError> {
        let config = config.parse()?;
        let host = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        // There is no second listener here.
        for warning in config.warnings().iter().filter(|text| !text.starts_with("admin.")) {
            tracing::warn!("{warning}");
        }
        let shutdown = Shutdown::default();
        // What was begun ends again with a start that fails.
        let (begun, served) =
            (shutdown.draining.clone().drop_guard(), shutdown.finished.clone().drop_guard());
        let secret = || cli::secret(&config);
        let shared = block_on_thread(app::start(&config, None, &host, &shutdown, secret))?;
        let own = app::own_addresses(&config.server.listen)?;
        let app = App::new(config, own, shared)?;
        let tasks = TaskTracker::new();
        let stack = app.core(tasks.clone())?;
        begun.disarm();
        served.disarm();
        Ok(Self { stack, inner: Arc::new(Inner { app, tasks, shutdown }) })
    }

    /// What goes on besides requests: the account's balance and limit are followed, what was kept for
    /// long enough is forgotten. Spawn it once; it ends with [`shutdown`](Self::shutdown).
    pub fn background(&self) -> impl Future<Output = ()> + Send + 'static {
        let behind = Arc::clone(&self.inner);
        async move {
            let account = behind.app.watch_account();
            let tidying = async {
                let mut due = interval(TIDY_INTERVAL);
                loop {
                    due.tick().await;
                    behind.app.tidy().await;
                }
            };
            let members = behind.app.shared.access.run();
            let work = futures_util::future::join3(account, members, tidying);
            tokio::select! {
                () = behind.shutdown.finished.cancelled() => {}
                _ = work => {}
            }
        }
    }

    /// Refuses what comes from now on (503 `draining`), ends event streams, and waits for what was
    /// bought to be booked, at most `server.drain`. Drop your listener first.
    pub async fn shutdown(&self) {
        let Inner { app, tasks, shutdown } = &*self.inner;
        shutdown.draining.cancel();
        tasks.close();
        if timeout(app.config.server.drain, tasks.wait()).await.is_err() {
            let left = tasks.len();
            tracing::warn!(left, "stopping with purchases in flight; they may have been charged");
            // Whoever still waits for one is told that its outcome is unknown.
            shutdown.drain_expired.cancel();
        }
        shutdown.finished.cancel();
    }
}

/// Waits on a thread of its own: the caller's runtime may have just the one that we are on.
fn block_on_thread<T: Send>(work: impl Future<Output = io::Result<T>> + Send) -> io::Result<T> {
    let wait = || runtime::Builder::new_current_thread().enable_all().build()?.block_on(work);
    let waited = thread::scope(|scope| scope.spawn(wait).join());
    waited.unwrap_or_else(|_| Err(io::Error::other("the gate could not be opened: a panic")))
}

impl<B> Service<Request<B>> for Tollgate
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    /// Always: the gate refuses rather than making a caller wait.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.stack.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if self.inner.shutdown.draining.is_cancelled() {
            let refusal =
                response::from_problem(Problem::new(&DRAINING).retry_after(RETRY_AFTER), "");
            return Box::pin(ready(Ok(refusal)));
        }
        // Counted among what a shutdown waits for, from here on: its body may still be on its way.
        let inside = self.inner.tasks.token();
        let answered = self.stack.call(request.map(Body::stream));
        Box::pin(async move {
            let answer = answered.await;
            drop(inside);
            answer
        })
    }
}

impl fmt::Debug for Tollgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollgate").finish_non_exhaustive()
    }
}
