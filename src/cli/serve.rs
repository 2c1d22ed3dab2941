//! `tollgate serve`: one runtime per core for callers, one more for everything behind them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::check::{budgets, callers, gateway};
use super::core::{Core, runtime};
use super::reload::reload;
use super::secret::secret;
use super::signals::{Signals, wait_for_the_end, watch_the_end};
use super::{Exit, Loaded, process};
use crate::access::SecretFault;
use crate::app::{self, App, SharedState, Shutdown};
use crate::clock;
use crate::config::Config;
use crate::downstream::host::Hosts;
use crate::problem::{DRAINING, LEDGER_UNAVAILABLE, Problem};
use crate::routes::ops::Ops;
use crate::server;
use crate::store::{Binding, Opening, Store};

/// How long the ledger's answer to a probe holds, and how long it may take.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// What serves a listener.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

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
    process::start_log(config.log);
    for warning in loaded.warnings {
        warn!("{warning}");
    }
    process::raise_and_fit(&mut config.server);
    // All sockets before the first request: half a server is none.
    let listeners =
        config.server.listen.iter().map(|at| bind(*at)).collect::<io::Result<Vec<_>>>()?;
    let admin = bind(config.admin.listen)?;
    let shutdown = Shutdown::default();
    let finding = || secret(&config);
    let preparing =
        app::prepare(&config, Some(admin.local_addr()?), behind.handle(), &shutdown, finding);
    let Some(prepared) = behind.block_on(signals.unless_ended(preparing)) else {
        info!("stopped before the start was over");
        return Ok(Exit::Done);
    };
    let (shared, opening) = match prepared {
        Err(error) => return refused(error, err),
        Ok(prepared) => prepared,
    };
    if new_account {
        shared.binding.renew();
        shared.window.forget_limit();
    }
    let own = app::own_addresses(&config.server.listen)?;
    // A file that was read must still be there at a reload: without it, its budgets would be gone.
    let config_path = config_path.or(loaded.file);
    let app = App::new(config, own, shared.clone())?;
    let cores = Core::start_all(&app, &listeners, &shutdown)?;
    let server = Server { shared, shutdown, cores, config_path };
    behind.block_on(server.live(app, opening, (listeners, admin), &mut signals, (out, err)))
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
    shared: SharedState,
    shutdown: Shutdown,
    cores: Vec<Core>,
    config_path: Option<PathBuf>,
}

impl Server {
    /// From the first answer to the last.
    async fn live(
        self,
        app: App,
        opening: Option<Opening>,
        (listeners, admin): (Vec<StdListener>, StdListener),
        signals: &mut Signals,
        (out, err): (&mut impl Write, &mut impl Write),
    ) -> io::Result<Exit> {
        // The admin listener goes last: probes see `draining` until nothing is left to drain.
        let end = CancellationToken::new();
        let operators = self.operators(&app, &admin)?;
        let at = admin.local_addr()?;
        tokio::spawn(operators(TcpListener::from_std(admin)?, end.clone()));
        let access = Arc::clone(&self.shared.access);
        tokio::spawn(async move { access.follow().await });
        for listener in &listeners {
            info!(page = %listener.local_addr()?, admin = %at, "listening");
        }
        let begun = signals.unless_ended(app::open(&self.shared, opening)).await;
        if let Some(Err(error)) = begun {
            return refused(error, err);
        }
        let is_open = begun.is_some();
        if is_open {
            self.announce(app.config(), &listeners, at, out)?;
        }
        // The cores have their own handles: with these open, too, the kernel would go on taking
        // connections that nobody serves while the rest drains.
        drop(listeners);
        let drain = app.config().server.drain;
        if is_open {
            tokio::spawn(app.follow_account());
            self.run(app, signals).await;
        }
        self.stop(drain).await;
        end.cancel();
        Ok(Exit::Done)
    }

    /// What serves the admin listener until it is told to end.
    fn operators(
        &self,
        app: &App,
        admin: &StdListener,
    ) -> io::Result<impl FnOnce(TcpListener, CancellationToken) -> Serving + use<>> {
        let own = app::own_addresses(&[admin.local_addr()?])?;
        let (own_hosts, hosts) = (Hosts::new([], own.clone()), Arc::clone(&self.shared.hosts));
        let guard =
            move |headers: &_| own_hosts.check(headers).or_else(|_| hosts.load().check(headers));
        let probe = Arc::new(Probe {
            stopping: self.shutdown.begun.clone(),
            binding: self.shared.binding.clone(),
            ledger: self.shared.store.clone(),
            latest: Mutex::default(),
        });
        let ready = move || {
            let probe = Arc::clone(&probe);
            async move { probe.ready().await }
        };
        let service = Ops {
            access: Some(Arc::clone(&self.shared.access)),
            summary: Some(app.summary().clone()),
            guard: Arc::new(guard),
            own: own.into(),
            ..Ops::new(Arc::clone(&self.shared.metrics), ready)
        };
        // Who reaches the admin listener at all is not among those who crowd out each other.
        let connections = Arc::new(Semaphore::new(process::OPS_CONNECTIONS));
        let settings = server::Settings { crowd: Arc::default(), connections, ..app.server() };
        Ok(move |listener, end| -> Serving {
            let introduce = move |peer: SocketAddr| service.asked_from(peer.ip());
            Box::pin(server::run(listener, introduce, settings, end))
        })
    }

    /// Serves until the first SIGTERM or SIGINT.
    async fn run(&self, app: App, signals: &mut Signals) {
        let reload = |app| reload(app, self.config_path.as_deref(), &self.cores);
        wait_for_the_end(app, App::tidy, reload, signals).await;
    }

    /// Finishes what is under way, for at most `drain` from now on.
    async fn stop(self, drain: Duration) {
        self.shutdown.begun.cancel();
        info!("stopping: finishing what is under way");
        watch_the_end(drain);
        Core::drain_all(self.cores, drain, &self.shutdown).await;
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
        let count = self.shared.access.count();
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

/// Finds out for `/readyz` whether anything can be bought.
struct Probe {
    stopping: CancellationToken,
    binding: Binding,
    ledger: Store,
    /// Whether the ledger could be used, and when it said so.
    latest: Mutex<Option<(clock::Instant, bool)>>,
}

impl Probe {
    async fn ready(&self) -> Result<(), Problem> {
        let refusal = |kind| Problem::new(kind).retry_after(Duration::from_secs(5));
        if self.stopping.is_cancelled() {
            return Err(refusal(&DRAINING));
        }
        if self.ledger.is_starting() {
            let why = "starting: the ledger is being opened";
            return Err(refusal(&LEDGER_UNAVAILABLE).detail(why));
        }
        self.binding.must_not_be_other()?;
        let mut latest = self.latest.lock().await;
        let is_usable = match *latest {
            Some((at, is_usable)) if at.elapsed() < PROBE_EVERY => is_usable,
            _ => {
                let answer = timeout(PROBE_PATIENCE, self.ledger.must_be_usable()).await;
                let is_usable = matches!(answer, Ok(Ok(())));
                *latest = Some((clock::now(), is_usable));
                is_usable
            }
        };
        // The store's own words name paths: they are for the log.
        let why = "the ledger cannot be used, so nothing is sold; the server's log says why";
        if is_usable { Ok(()) } else { Err(refusal(&LEDGER_UNAVAILABLE).detail(why)) }
    }
}

fn bind(at: SocketAddr) -> io::Result<StdListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {at}: {error}"));
    server::bind(at).map_err(named)
}
