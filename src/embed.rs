//! The gate as a service for a server of one's own: axum, hyper, or any other that speaks tower.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io, thread};

use bytes::Bytes;
use futures_util::future::Either;
use http::{Request, Response};
use tokio::runtime::{self, Handle};
use tokio::time::{interval, timeout};
use tokio_util::task::TaskTracker;
use tower::Service;

use crate::access::Access;
use crate::answer::{self, BoxError};
use crate::app::{self, App, Ends, TIDY_EVERY};
use crate::cli;
use crate::pipeline::Public;
use crate::problem::{DRAINING, Problem};

/// When a gate that stops is worth another try: another one may have taken its place.
const RETURN_AFTER: Duration = Duration::from_secs(5);

/// What [`Tollgate`] answers with: an [`http_body::Body`] of [`Bytes`].
pub type Body = answer::Body;

/// Settings that are right: what `proxy.toml` and the environment say.
#[derive(Clone, Debug, Default)]
pub struct Config(crate::config::Config);

/// Why there is no gate.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// Mistakes in the settings, a line each: where, and what was expected. No value is repeated.
    Settings(Vec<String>),
    /// [`Tollgate::new`] was called outside of a tokio runtime.
    NoRuntime,
    /// What the system refuses: another server has the store, `page.dir` cannot be read.
    System(io::Error),
}

impl Config {
    /// Reads settings as `tollgate serve` does: `toml` is the text of a `proxy.toml`, `folder` is
    /// where its relative paths count from, and `variables` stand for the environment, such as
    /// `GATEWAY_API_KEY`; give [`std::env::vars`] for the process's own. A `.env` is not read.
    ///
    /// `server.listen` says where your own server listens: whether others than this machine reach it
    /// decides what open access demands. What else is in `[server]` about connections is your server's.
    ///
    /// # Errors
    /// [`StartError::Settings`], with every fault at once.
    pub fn read(
        toml: &str,
        folder: &Path,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, StartError> {
        let faults = |faults: Vec<crate::config::Fault>| {
            StartError::Settings(faults.iter().map(ToString::to_string).collect())
        };
        let config = cli::read_text(toml, folder, variables).map_err(faults)?;
        let not_yet = config.not_yet();
        if !not_yet.is_empty() {
            return Err(StartError::Settings(not_yet));
        }
        Ok(Self(config))
    }
}

/// The whole gate behind one [`tower::Service`]: the API, the OpenAI dialect and the page. It never
/// fails: a refusal is a response. Clones share everything.
///
/// Every request needs a [`Peer`](crate::Peer) in its extensions, the address of the connection's other
/// end; without one, whatever depends on who is asking is refused with a 500 that says so.
///
/// [`background`](Self::background) has to run as long as requests come.
#[derive(Clone)]
pub struct Tollgate {
    stack: Public<Body>,
    behind: Arc<Behind>,
}

struct Behind {
    app: App,
    access: Arc<Access>,
    tasks: TaskTracker,
    ends: Ends,
}

impl Tollgate {
    /// Opens the store and builds the gate. Purchases, polls and the sandbox run on the tokio runtime
    /// that this is called in; it blocks for as long as the store takes to open. What deserves a second
    /// look in the settings is said once, as a warning of [`tracing`]. Where it fails, nothing goes on.
    ///
    /// # Errors
    /// [`StartError::NoRuntime`], or [`StartError::System`].
    pub fn new(config: Config) -> Result<Self, StartError> {
        let Config(config) = config;
        let host = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        // There is no second listener here.
        for warning in config.warnings().iter().filter(|text| !text.starts_with("admin.")) {
            tracing::warn!("{warning}");
        }
        let ends = Ends::default();
        // What was begun ends again with a start that fails.
        let (begun, served) = (ends.shutdown.clone().drop_guard(), ends.over.clone().drop_guard());
        let lasting = {
            let secret = || cli::secret(&config).map_err(io::Error::other);
            waited_for(app::begin(&config, None, &host, &ends, secret))?
        };
        let own = app::own_addresses(&config.server.listen)?;
        let app = App::new(config, own, &lasting)?;
        let tasks = TaskTracker::new();
        let stack = app.core(tasks.clone())?;
        begun.disarm();
        served.disarm();
        Ok(Self { stack, behind: Arc::new(Behind { app, access: lasting.access, tasks, ends }) })
    }

    /// What goes on besides requests: the account's balance and limit are followed, what was kept for
    /// long enough is forgotten. Spawn it once; it ends with [`shutdown`](Self::shutdown).
    pub fn background(&self) -> impl Future<Output = ()> + Send + 'static {
        let behind = Arc::clone(&self.behind);
        async move {
            let books = behind.app.follow_books();
            let tidying = async {
                let mut due = interval(TIDY_EVERY);
                loop {
                    due.tick().await;
                    behind.app.tidy().await;
                }
            };
            let work = futures_util::future::join3(books, behind.access.follow(), tidying);
            tokio::select! {
                () = behind.ends.over.cancelled() => {}
                _ = work => {}
            }
        }
    }

    /// Refuses what comes from now on (503 `draining`), ends event streams, and waits for what was
    /// bought to be booked, at most `server.drain`. Drop your listener first.
    pub async fn shutdown(&self) {
        let Behind { app, tasks, ends, .. } = &*self.behind;
        ends.shutdown.cancel();
        tasks.close();
        if timeout(app.config().server.drain, tasks.wait()).await.is_err() {
            let left = tasks.len();
            tracing::warn!(left, "stopping with purchases in flight; they may have been charged");
            // Whoever still waits for one is told that its outcome is unknown.
            ends.cut.cancel();
        }
        ends.over.cancel();
    }
}

/// Waits on a thread of its own: the caller's runtime may have just the one that we are on.
fn waited_for<T: Send>(work: impl Future<Output = io::Result<T>> + Send) -> io::Result<T> {
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
    type Future = Either<
        Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>,
        Ready<Result<Response<Body>, Infallible>>,
    >;

    /// Always: the gate refuses rather than making a caller wait.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.stack.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if self.behind.ends.shutdown.is_cancelled() {
            let refusal = answer::refusal(Problem::new(&DRAINING).retry_after(RETURN_AFTER), "");
            return Either::Right(ready(Ok(refusal)));
        }
        // Counted among what a shutdown waits for, from here on: its body may still be on its way.
        let inside = self.behind.tasks.token();
        let answered = self.stack.call(request.map(Body::stream));
        Either::Left(Box::pin(async move {
            let answer = answered.await;
            drop(inside);
            answer
        }))
    }
}

impl fmt::Debug for Tollgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollgate").finish_non_exhaustive()
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(faults) => f.write_str(&faults.join("\n")),
            Self::NoRuntime => f.write_str("tollgate has to be built inside a tokio runtime"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            Self::Settings(_) | Self::NoRuntime => None,
        }
    }
}
