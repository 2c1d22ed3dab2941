//! `tollgate serve`: one runtime per core for callers, one more for everything behind them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::check::{budgets, callers, gateway};
use super::core::{Core, runtime};
use super::reload::reload;
use super::secret::secret;
use super::{CommandError, Exit, Loaded, process};
use crate::access::SecretError;
use crate::app::{self, App, SharedState, Shutdown, TIDY_INTERVAL};
use crate::clock;
use crate::config::Settings;
use crate::downstream::host::Hosts;
use crate::problem::{DRAINING, LEDGER_UNAVAILABLE, Problem};
use crate::routes::ops::Ops;
use crate::server;
use crate::store::{AccountBinding, Opening, Store};

/// How long the ledger's answer to a probe holds, and how long it may take.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the ledger may take to close when nothing is under way any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the proxy until it is told to stop. `new_account` gives the ledger to the gateway's account.
pub fn serve(
    loaded: Loaded,
    config_path: Option<PathBuf>,
    new_account: bool,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let mut config = loaded.config;
    let behind = runtime()?;
    // Before anybody can know that we run: from the first listener on, a signal means a stop in good order.
    let mut signals = behind.block_on(async { Signals::new() })?;
    process::start_log(config.log);
    for warning in loaded.warnings {
        warn!("{warning}");
    }
    process::fit_open_file_limit(&mut config.server);
    // All sockets before the first request: half a server is none.
    let listeners =
        config.server.listen.iter().map(|at| bind(*at)).collect::<io::Result<Vec<_>>>()?;
    let admin = bind(config.ops.listen)?;
    let shutdown = Shutdown::default();
    let finding = || secret(&config);
    let preparing =
        app::prepare(&config, Some(admin.local_addr()?), behind.handle(), &shutdown, finding);
    let Some(prepared) = behind.block_on(signals.unless_terminated(preparing)) else {
        info!("stopped before the start was over");
        return Ok(Exit::Done);
    };
    let (shared, opening) = prepared.map_err(start_error)?;
    if new_account {
        shared.binding.adopt_next_account();
        shared.rate_limit.forget_limit();
    }
    let own = app::own_addresses(&config.server.listen)?;
    // A file that was read must still be there at a reload: without it, its budgets would be gone.
    let config_path = config_path.or(loaded.file);
    let app = App::new(config, own, shared.clone())?;
    let cores = Core::start_all(&app, &listeners, &shutdown)?;
    let server = Server { shared, shutdown, cores, config_path };
    behind.block_on(server.run(app, opening, (listeners, admin), &mut signals, out))
}

fn start_error(error: io::Error) -> CommandError {
    if error.get_ref().is_some_and(|fault| fault.is::<SecretError>()) {
        return CommandError::usage(error.to_string());
    }
    error.into()
}

struct Server {
    shared: SharedState,
    shutdown: Shutdown,
    cores: Vec<Core>,
    config_path: Option<PathBuf>,
}

impl Server {
    async fn run(
        self,
        app: App,
        opening: Option<Opening>,
        (listeners, admin): (Vec<StdListener>, StdListener),
        signals: &mut Signals,
        out: &mut impl Write,
    ) -> Result<Exit, CommandError> {
        // The admin listener goes last: probes see `draining` until nothing is left to drain.
        let end = CancellationToken::new();
        let at = admin.local_addr()?;
        self.serve_ops(&app, admin, end.clone())?;
        let access = Arc::clone(&self.shared.access);
        tokio::spawn(async move { access.run().await });
        for listener in &listeners {
            info!(page = %listener.local_addr()?, admin = %at, "listening");
        }
        let begun = signals.unless_terminated(app::open(&self.shared, opening)).await;
        let is_open = begun.transpose().map_err(start_error)?.is_some();
        if is_open {
            self.print_banner(&app.config, &listeners, at, out)?;
        }
        // With these open beside the cores' own, the kernel would accept connections that nobody serves.
        drop(listeners);
        let drain = app.config.server.drain;
        if is_open {
            tokio::spawn(app.watch_account());
            let reload = |app| reload(app, self.config_path.as_deref(), &self.cores);
            run_until_stopped(app, App::tidy, reload, signals).await;
        }
        self.shutdown.draining.cancel();
        info!("stopping: finishing what is under way");
        spawn_exit_watchdog(drain);
        Core::drain_all(self.cores, drain, &self.shutdown).await;
        end.cancel();
        Ok(Exit::Done)
    }

    fn serve_ops(&self, app: &App, admin: StdListener, end: CancellationToken) -> io::Result<()> {
        let own = app::own_addresses(&[admin.local_addr()?])?;
        let (own_hosts, hosts) = (Hosts::new([], own.clone()), Arc::clone(&self.shared.hosts));
        let guard =
            move |headers: &_| own_hosts.check(headers).or_else(|_| hosts.load().check(headers));
        let probe = Arc::new(Probe {
            stopping: self.shutdown.draining.clone(),
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
            summary: Some(app.summary.clone()),
            host_guard: Arc::new(guard),
            own_addresses: own.into(),
            ..Ops::new(Arc::clone(&self.shared.metrics), ready)
        };
        // Who reaches the admin listener at all is not among those who crowd out each other.
        let connections = Arc::new(Semaphore::new(process::OPS_CONNECTIONS));
        let settings = server::ConnectionSettings {
            address_limits: Arc::default(),
            connections,
            ..app.server()
        };
        let introduce = move |peer: SocketAddr| service.service_for(peer.ip());
        tokio::spawn(server::run(TcpListener::from_std(admin)?, introduce, settings, end));
        Ok(())
    }

    /// Where the page is, what it costs, who may come: the first thing that a person reads.
    fn print_banner(
        &self,
        config: &Settings,
        listeners: &[StdListener],
        admin: SocketAddr,
        out: &mut impl Write,
    ) -> io::Result<()> {
        writeln!(out, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
        for listener in listeners {
            writeln!(out, "page      http://{}", listener.local_addr()?)?;
        }
        let count = self.shared.access.member_count();
        writeln!(out, "gateway   {}", gateway(&config.gateway.target))?;
        writeln!(out, "callers   {}", callers(&config.access.mode, count))?;
        writeln!(out, "budgets   {}", budgets(&config.budget))?;
        writeln!(out, "admin     http://{admin}")?;
        out.flush()?;
        if config.is_local_only() {
            // One that tells nothing of itself looks like a browser on this machine.
            info!(
                "no front-end is named; before one is, set server.hosts and server.trusted_proxies"
            );
        }
        Ok(())
    }
}

struct Probe {
    stopping: CancellationToken,
    binding: AccountBinding,
    ledger: Store,
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
        self.binding.ensure_same_account()?;
        let mut latest = self.latest.lock().await;
        let is_usable = match *latest {
            Some((at, is_usable)) if at.elapsed() < PROBE_INTERVAL => is_usable,
            _ => {
                let answer = timeout(PROBE_TIMEOUT, self.ledger.ensure_usable()).await;
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

pub(super) fn bind(at: SocketAddr) -> io::Result<StdListener> {
    server::bind(at)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {at}: {error}")))
}

/// Tidies now and then, reloads on SIGHUP, and returns at the first SIGTERM or SIGINT.
async fn run_until_stopped<A, T: Future<Output = ()> + Send + 'static>(
    mut app: A,
    tidy: impl Fn(&A) -> T,
    reload: impl Fn(A) -> A,
    signals: &mut Signals,
) {
    let (mut due, mut tidying) = (interval(TIDY_INTERVAL), None::<JoinHandle<()>>);
    let Signals { hup, term, int } = signals;
    loop {
        tokio::select! {
            // One at a time: a ledger that hangs keeps nothing else waiting.
            _ = due.tick() => if tidying.as_ref().is_none_or(JoinHandle::is_finished) {
                tidying = Some(tokio::spawn(tidy(&app)));
            },
            _ = hup.recv() => app = reload(app),
            _ = term.recv() => return,
            _ = int.recv() => return,
        }
    }
}

/// They are heard from the first listener on, whatever the ledger does.
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

    async fn terminated(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }

    async fn unless_terminated<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! { biased; () = self.terminated() => None, done = work => Some(done) }
    }
}

/// Exits at a second signal, or soon after `drain`; what is in flight then is an unknown outcome. This has its own
/// thread because a disk that hangs may block everything else.
fn spawn_exit_watchdog(drain: Duration) {
    let watch = move || {
        let watching = async {
            let mut signals = Signals::new()?;
            Ok::<_, io::Error>(timeout(drain + CLOSE_TIMEOUT, signals.terminated()).await.is_ok())
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        match runtime.and_then(|runtime| runtime.block_on(watching)) {
            Ok(true) => std::process::exit(1),
            Ok(false) => {
                error!("ledger not closed in time");
                std::process::exit(0)
            }
            Err(error) => warn!(%error, "second signal not heard"),
        }
    };
    if let Err(error) = thread::Builder::new().name("end".to_owned()).spawn(watch) {
        warn!(%error, "second signal not heard");
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tidy_that_never_ends_is_not_begun_twice_and_keeps_no_signal_waiting() {
        let mut signals = Signals::new().unwrap();
        let (begun, reloaded) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let tidy = |_: &()| {
            let begun = Arc::clone(&begun);
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                pending().await
            }
        };
        let reload = |()| {
            reloaded.fetch_add(1, Ordering::Relaxed);
            raise(Signal::SIGTERM).unwrap();
        };
        let told = async {
            tokio::time::sleep(TIDY_INTERVAL * 5).await;
            raise(Signal::SIGHUP).unwrap();
            pending::<()>().await
        };
        let ended = run_until_stopped((), tidy, reload, &mut signals);
        tokio::select! {
            () = ended => {}
            () = told => {}
            () = tokio::time::sleep(TIDY_INTERVAL * 1_000) => panic!("it is deaf"),
        }
        let counts = (begun.load(Ordering::Relaxed), reloaded.load(Ordering::Relaxed));
        assert_eq!(counts, (1, 1));
    }
}
