//! `tollgate serve`: one runtime per core for callers, one more for everything behind them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::check::{budgets, callers, gateway};
use super::reload::Reload;
use super::secret::secret;
use super::signals::{Signals, wait_for_the_end, watch_the_end};
use super::{Exit, Loaded, log, open_files};
use crate::access::SecretFault;
use crate::app::{self, App, Current, Ends, Lasting, Starting};
use crate::config::Config;
use crate::downstream::caller::{Introduced, Peer};
use crate::downstream::host::Hosts;
use crate::routes::ops::Ops;
use crate::server;

/// What serves a listener.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;
/// How long the last answers may take after `server.drain`.
const FLUSH: Duration = Duration::from_secs(2);

/// Runs the proxy until it is told to stop. `new_account` gives the ledger to the gateway's account.
///
/// # Errors
/// What the system refuses: an address that is taken, no trust anchors.
pub fn serve(
    loaded: Loaded,
    config_path: Option<PathBuf>,
    new_account: bool,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let mut config = loaded.config;
    let behind = runtime()?;
    // Before anybody can know that we run: from the first listener on, a signal means a stop in good order.
    let mut signals = behind.block_on(async { Signals::new() })?;
    log::start(config.log);
    for warning in loaded.warnings {
        warn!("{warning}");
    }
    open_files::raise_and_fit(&mut config.server);
    // All sockets before the first request: half a server is none.
    let listeners =
        config.server.listen.iter().map(|at| bind(*at)).collect::<io::Result<Vec<_>>>()?;
    let admin = bind(config.admin.listen)?;
    let ends = Ends::default();
    let finding = || secret(&config);
    let preparing =
        app::prepare(&config, Some(admin.local_addr()?), behind.handle(), &ends, finding);
    let Some(prepared) = behind.block_on(signals.unless_ended(preparing)) else {
        info!("stopped before the start was over");
        return Ok(Exit::Done);
    };
    let (lasting, starting) = match prepared {
        Err(error) => return refused(error, err),
        Ok(prepared) => prepared,
    };
    if new_account {
        lasting.binding.renew();
        lasting.window.forget_limit();
    }
    let own = app::own_addresses(&config.server.listen)?;
    let app = App::new(config, own.clone(), &lasting)?;
    let cores = start_cores(&app, &listeners, &ends)?;
    let reload = Reload { config_path, own, lasting: lasting.clone() };
    let server = Server { lasting, ends, cores, reload, is_open: Arc::default() };
    behind.block_on(server.live(app, starting, (listeners, admin), &mut signals, (out, err)))
}

/// A start that was refused: by a secret that is another one than before, with what to do; else by the system.
fn refused(error: io::Error, err: &mut impl Write) -> io::Result<Exit> {
    if error.get_ref().is_some_and(|fault| fault.is::<SecretFault>()) {
        writeln!(err, "tollgate: {error}")?;
        return Ok(Exit::Mistake);
    }
    Err(error)
}

/// What runs until a signal ends it.
struct Server {
    lasting: Lasting,
    ends: Ends,
    cores: Vec<Core>,
    reload: Reload,
    /// Whether purchases can be made.
    is_open: Arc<AtomicBool>,
}

impl Server {
    /// From the first answer to the last.
    async fn live(
        self,
        app: App,
        starting: Starting,
        (listeners, admin): (Vec<StdListener>, StdListener),
        signals: &mut Signals,
        (out, err): (&mut impl Write, &mut impl Write),
    ) -> io::Result<Exit> {
        // The admin listener goes last: probes see `draining` until nothing is left to drain.
        let end = CancellationToken::new();
        let operators = self.operators(&app, &admin)?;
        let at = admin.local_addr()?;
        tokio::spawn(operators(TcpListener::from_std(admin)?, end.clone()));
        let access = Arc::clone(&self.lasting.access);
        tokio::spawn(async move { access.follow().await });
        for listener in &listeners {
            info!(page = %listener.local_addr()?, admin = %at, "listening");
        }
        let begun = signals.unless_ended(starting.finish(&self.lasting)).await;
        if let Some(Err(error)) = begun {
            return refused(error, err);
        }
        let is_open = begun.is_some();
        if is_open {
            self.is_open.store(true, Ordering::Release);
            self.announce(app.config(), &listeners, at, out)?;
        }
        // The cores have their own handles: with these open, too, the kernel would go on taking
        // connections that nobody serves while the rest drains.
        drop(listeners);
        let drain = app.config().server.drain;
        if is_open {
            tokio::spawn(app.follow_books());
            self.run(app, signals).await;
        }
        let exit = self.stop(drain).await;
        end.cancel();
        Ok(exit)
    }

    /// What serves the admin listener until it is told to end.
    fn operators(
        &self,
        app: &App,
        admin: &StdListener,
    ) -> io::Result<impl FnOnce(TcpListener, CancellationToken) -> Serving + use<>> {
        let own = app::own_addresses(&[admin.local_addr()?])?;
        let (own_hosts, hosts) = (Hosts::new([], own.clone()), Arc::clone(&self.lasting.hosts));
        let guard =
            move |headers: &_| own_hosts.check(headers).or_else(|_| hosts.load().check(headers));
        let (shutdown, is_open) = (self.ends.shutdown.clone(), Arc::clone(&self.is_open));
        let ready = move || !shutdown.is_cancelled();
        let service = Ops {
            is_open: Arc::new(move || is_open.load(Ordering::Acquire)),
            access: Some(Arc::clone(&self.lasting.access)),
            statement: Some(app.statement()),
            guard: Arc::new(guard),
            own: own.into(),
            ..Ops::new(Arc::clone(&self.lasting.metrics), ready)
        };
        // Who reaches the admin listener at all is not among those who crowd out each other.
        let connections = Arc::new(Semaphore::new(open_files::OPS_CONNECTIONS));
        let settings = server::Settings { crowd: Arc::default(), connections, ..app.server() };
        Ok(move |listener, end| -> Serving {
            let introduce = move |peer: SocketAddr| service.asked_from(peer.ip());
            Box::pin(server::run(listener, introduce, settings, end))
        })
    }

    /// Serves until the first SIGTERM or SIGINT.
    async fn run(&self, app: App, signals: &mut Signals) {
        let reload = |app| self.reload.run(app, &self.cores);
        wait_for_the_end(app, App::tidy, reload, signals).await;
    }

    /// Finishes what is under way, for at most `drain` from now on.
    async fn stop(self, drain: Duration) -> Exit {
        self.ends.shutdown.cancel();
        info!("stopping: finishing what is under way");
        watch_the_end(drain);
        drained(self.cores, drain, &self.ends.cut).await
    }

    /// Where the page is, what it costs, who may come: the first thing that a person reads.
    fn announce(
        &self,
        config: &Config,
        listeners: &[StdListener],
        admin: SocketAddr,
        out: &mut impl Write,
    ) -> io::Result<()> {
        writeln!(out, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
        for listener in listeners {
            writeln!(out, "page      http://{}", listener.local_addr()?)?;
        }
        let count = self.lasting.access.count();
        writeln!(out, "gateway   {}", gateway(&config.gateway.target))?;
        writeln!(out, "callers   {}", callers(&config.access.mode, count))?;
        writeln!(out, "budgets   {}", budgets(&config.budget))?;
        writeln!(out, "admin     http://{admin}")?;
        out.flush()?;
        if config.is_private() {
            // One that tells nothing of itself looks like a browser on this machine.
            info!(
                "no front-end is named; before one is, set server.hosts and server.trusted_proxies"
            );
        }
        Ok(())
    }
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
