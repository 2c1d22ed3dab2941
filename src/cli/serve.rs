//! `tollgate serve`: one runtime per core for callers, one more for everything behind them.

use std::io;
use std::io::Write;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::check::{budgets, callers, gateway};
use super::open_files;
use super::reload::Reload;
use super::secret::secret;
use super::{Exit, Loaded, log};
use crate::access::Access;
use crate::access::keyed::SecretFault;
use crate::app;
use crate::app::{App, Current, Ends, TIDY_EVERY};
use crate::config::Config;
use crate::downstream::caller::{Introduced, Peer};
use crate::downstream::host::Hosts;
use crate::routes::admin::Admin;
use crate::server;

/// How long the last answers may take after `server.drain`.
const FLUSH: Duration = Duration::from_secs(2);

/// Runs the proxy until it is told to stop.
///
/// # Errors
/// What the system refuses: an address that is taken, no trust anchors.
pub fn serve(
    loaded: Loaded,
    config_path: Option<PathBuf>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let mut config = loaded.config;
    let not_yet = config.not_yet();
    if !not_yet.is_empty() {
        for sentence in not_yet {
            writeln!(err, "{sentence}")?;
        }
        return Ok(Exit::Mistake);
    }
    log::start(config.log);
    for warning in loaded.warnings {
        warn!("{warning}");
    }
    open_files::raise_and_fit(&mut config.server);
    // All sockets before the first request: half a server is none.
    let listeners =
        config.server.listen.iter().map(|at| bind(*at)).collect::<io::Result<Vec<_>>>()?;
    let admin = bind(config.admin.listen)?;
    let behind = runtime()?;
    let shutdown = CancellationToken::new();
    let ends = Ends { shutdown: shutdown.clone(), ..Ends::default() };
    let finding = || secret(&config);
    let beginning = app::begin(&config, Some(admin.local_addr()?), behind.handle(), &ends, finding);
    let lasting = match behind.block_on(beginning) {
        Err(error) if error.get_ref().is_some_and(|fault| fault.is::<SecretFault>()) => {
            writeln!(err, "tollgate: {error}")?;
            return Ok(Exit::Mistake);
        }
        begun => begun?,
    };
    // Before anybody can read that we run: a signal that nobody takes ends a process on the spot, as it
    // should while we wait for the ledger.
    let signals = behind.block_on(async { Signals::new() })?;
    let access = Arc::clone(&lasting.access);
    let own = app::own_addresses(&config.server.listen)?;
    let app = App::new(config, own.clone(), &lasting)?;

    let cores = start_cores(&app, &listeners, &ends)?;
    announce(app.config(), &access, &listeners, &admin, out)?;
    if app.config().is_private() {
        // One that tells nothing of itself looks like a browser on this machine.
        info!("no front-end is named; before one is, set server.hosts and server.trusted_proxies");
    }
    // The cores have their own handles: with these open, too, the kernel would go on taking
    // connections that nobody serves while the rest drains.
    drop(listeners);
    behind.spawn(app.open_books());
    behind.spawn(async move { access.follow().await });
    let statement = app.statement();
    let reload =
        Reload { config_path, own, lasting: lasting.clone(), statement: statement.clone() };
    let admin_own = app::own_addresses(&[admin.local_addr()?])?;
    let admin_hosts = Hosts::new([], admin_own.clone());
    behind.block_on(async {
        let admin_service = Admin::new(Arc::clone(&lasting.metrics), {
            let shutdown = shutdown.clone();
            move || !shutdown.is_cancelled()
        });
        let hosts = Arc::clone(&lasting.hosts);
        let guard =
            move |headers: &_| admin_hosts.check(headers).or_else(|_| hosts.load().check(headers));
        let admin_service = admin_service.guarded_by(guard).with_books(statement, &admin_own);
        // The admin listener goes last: probes see `draining` until nothing is left to drain.
        let end = CancellationToken::new();
        // Who reaches the admin listener at all is not among those who crowd out each other.
        let connections = Arc::new(Semaphore::new(open_files::OPS_CONNECTIONS));
        let settings = server::Settings { crowd: Arc::default(), connections, ..app.server() };
        let admin = TcpListener::from_std(admin)?;
        let introduce = move |peer: SocketAddr| admin_service.asked_from(peer.ip());
        tokio::spawn(server::run(admin, introduce, settings, end.clone()));
        let drain = app.config().server.drain;
        wait_for_the_end(app, &cores, signals, &reload, &shutdown).await;
        let exit = drained(cores, drain, &ends.cut).await;
        end.cancel();
        Ok(exit)
    })
}

fn bind(at: SocketAddr) -> io::Result<StdListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {at}: {error}"));
    server::bind(at).map_err(named)
}

fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// A core: a thread with a runtime, a stack and a share of every listener.
pub(super) struct Core {
    pub(super) stack: Current<Incoming>,
    pub(super) tasks: TaskTracker,
    thread: thread::JoinHandle<()>,
    ended: tokio::sync::oneshot::Receiver<()>,
}

fn start_cores(app: &App, listeners: &[StdListener], ends: &Ends) -> io::Result<Vec<Core>> {
    let count = thread::available_parallelism()?.get();
    let settings = app.server();
    let start = |number: usize| {
        let tasks = TaskTracker::new();
        let stack = Current::new(app.core(tasks.clone())?);
        let listeners =
            listeners.iter().map(StdListener::try_clone).collect::<io::Result<Vec<_>>>()?;
        let runtime = runtime()?;
        let (at_end, ended) = tokio::sync::oneshot::channel();
        let serving =
            serve_core(listeners, stack.clone(), tasks.clone(), settings.clone(), ends.clone());
        let thread = thread::Builder::new().name(format!("core-{number}")).spawn(move || {
            if let Err(error) = runtime.block_on(serving) {
                error!(%error, "a core cannot serve");
            }
            // Not waited for: a name that does not resolve must not outlast the drain.
            runtime.shutdown_background();
            at_end.send(()).ok();
        })?;
        Ok(Core { stack, tasks, thread, ended })
    };
    (0..count).map(start).collect()
}

async fn serve_core(
    listeners: Vec<StdListener>,
    stack: Current<Incoming>,
    tasks: TaskTracker,
    settings: server::Settings,
    ends: Ends,
) -> io::Result<()> {
    let serving = TaskTracker::new();
    for listener in listeners {
        let stack = stack.clone();
        let introduce = move |peer| Introduced { peer: Peer(peer), inner: stack.clone() };
        let listener = TcpListener::from_std(listener)?;
        serving.spawn(server::run(listener, introduce, settings.clone(), ends.shutdown.clone()));
    }
    serving.close();
    serving.wait().await;
    // Connections are gone; what they bought may still be on its way.
    tasks.close();
    ends.cut.run_until_cancelled(tasks.wait()).await;
    Ok(())
}

/// What a process can be told.
struct Signals {
    hup: Signal,
    term: Signal,
    int: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }
}

/// Tidies, reloads on SIGHUP, and returns at the first SIGTERM or SIGINT.
async fn wait_for_the_end(
    mut app: App,
    cores: &[Core],
    signals: Signals,
    reload: &Reload,
    shutdown: &CancellationToken,
) {
    let Signals { mut hup, mut term, mut int } = signals;
    let mut tidy = interval(TIDY_EVERY);
    loop {
        tokio::select! {
            _ = tidy.tick() => app.tidy().await,
            _ = hup.recv() => app = reload.run(app, cores),
            _ = term.recv() => break,
            _ = int.recv() => break,
        }
    }
    shutdown.cancel();
    info!("stopping: finishing what is under way");
    // A second signal means now; what is in flight then is an unknown outcome.
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        std::process::exit(1);
    });
}

async fn drained(cores: Vec<Core>, drain: Duration, cut: &CancellationToken) -> Exit {
    let in_flight: Vec<_> = cores.iter().map(|core| core.tasks.clone()).collect();
    let mut finish = pin!(async {
        for core in cores {
            if core.ended.await.is_err() {
                error!("a core ended by a panic");
            }
            // It has ended: this does not block.
            core.thread.join().ok();
        }
    });
    if timeout(drain, &mut finish).await.is_err() {
        let left: usize = in_flight.iter().map(TaskTracker::len).sum();
        warn!(left, "stopping with purchases in flight; they may have been charged");
        // Whoever still waits for one is told so, instead of a connection that just ends.
        cut.cancel();
        timeout(FLUSH, finish).await.ok();
    }
    info!("stopped");
    Exit::Done
}

/// Where the page is, what it costs, who may come: the first thing that a person reads.
fn announce(
    config: &Config,
    access: &Access,
    listeners: &[StdListener],
    admin: &StdListener,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
    for listener in listeners {
        writeln!(out, "page      http://{}", listener.local_addr()?)?;
    }
    writeln!(out, "gateway   {}", gateway(&config.gateway.target))?;
    writeln!(out, "callers   {}", callers(&config.access.mode, access.count()))?;
    writeln!(out, "budgets   {}", budgets(&config.budget))?;
    writeln!(out, "admin     http://{}", admin.local_addr()?)?;
    out.flush()
}
