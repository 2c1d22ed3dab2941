//! `tollgate serve`: one runtime per core for callers, and one for everything else.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info, warn};

use super::certificates::Certificates;
use super::check::{budgets, callers, gateway};
use super::core::{Core, InFlight, warn_of_purchases};
use super::reload::reload;
use super::sockets::Sockets;
use super::{CommandError, Exit, Loaded, log, notify, process, runtime};
use crate::access::SecretError;
use crate::api::ops::Ops;
use crate::api::reports::text::pluralize;
use crate::app::issuer::OtherIssuer;
use crate::app::secret::secret;
use crate::app::{self, App, CLOSE_TIMEOUT, FLUSH_TIMEOUT, Shutdown, TIDY_INTERVAL};
use crate::config::{Settings, Target};
use crate::edge::{self, ConnectionSettings, Listener};
use crate::gate::rate::calibrate_clock;
use crate::gate::source::Source;
use crate::ledger::Opening;

/// Gives the ledger to the gateway's account, or to the users of the login service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct Adopt {
    /// Bind the ledger to the account of the current gateway key
    #[arg(long)]
    new_account: bool,
    /// Keep the ledger's users although `issuer` has changed, because they are the same people. Use it once
    #[arg(long)]
    new_issuer: bool,
}

/// Returns where the server may note how far its ledger has come: the folders that systemd gives it, or
/// one of the user's.
#[expect(clippy::disallowed_methods, reason = "these folders are no settings")]
fn mark_folders() -> Vec<PathBuf> {
    let given = ["STATE_DIRECTORY", "RUNTIME_DIRECTORY"].into_iter().filter_map(env::var_os);
    let given: Vec<_> =
        given.flat_map(|list| env::split_paths(&list).collect::<Vec<_>>()).collect();
    let home = || Some(Path::new(&env::var_os("HOME")?).join(".local/state"));
    let own = env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
    let own = own.map(|state| state.join("tollgate"));
    given.into_iter().chain(own).filter(|folder| folder.is_absolute()).collect()
}

/// Runs the proxy until SIGTERM or SIGINT.
pub async fn serve(
    Loaded { mut settings, file, warnings }: Loaded,
    config_path: Option<PathBuf>,
    adopt: Adopt,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    // Registered first: once there is a listener, a signal must shut down gracefully.
    let mut signals = Signals::new()?;
    log::start(settings.log)?;
    settings.mark_folders = mark_folders();
    for warning in warnings {
        warn!(warning, "risky setting");
    }
    process::fit_open_file_limit(&mut settings.server);
    // Every socket is open before the first request is accepted.
    let sockets = Sockets::open(&settings)?;
    let at = sockets.ops_address;
    let (shutdown, runtime) = (Shutdown::default(), Handle::current());
    let secret = || secret(&settings);
    notify::starting("opening the ledger");
    let waiting = serve_starting(&settings, &sockets.ops)?;
    let preparing =
        app::prepare(&settings, Some(at), &runtime, &shutdown, secret, adopt.new_issuer);
    let Some(prepared) = signals.unless_terminated(preparing).await else {
        info!("stopped during startup");
        return Ok(Exit::Done);
    };
    drop(waiting);
    let (mut shared, opening) = prepared.map_err(start_error)?;
    shared.own_addresses = app::own_addresses(&sockets.addresses())?;
    if adopt.new_account {
        shared.binding.adopt_next_account();
        shared.rate_limit.forget_limit();
    }
    let app = App::new(settings, shared)?;
    // A reload must find the same file: without it, its budgets would be lost.
    run(app, opening, sockets, (shutdown, signals), config_path.or(file), out).await
}

/// Serves until SIGTERM or SIGINT, then drains.
async fn run(
    app: App,
    opening: Option<Opening>,
    Sockets { callers: listeners, redirects, ops, ops_address: at }: Sockets,
    (shutdown, mut signals): (Shutdown, Signals),
    config_path: Option<PathBuf>,
    out: &mut impl Write,
) -> Result<Exit, CommandError> {
    let connections = app.server();
    let certificates = Certificates::start(&app);
    let cores = Core::start_all(&app, &listeners, &connections, &shutdown)?;
    serve_redirects(&app, &connections, redirects, &shutdown)?;
    // The ops listener stops last, so that probes see `draining` until the drain ends.
    let end = CancellationToken::new();
    serve_ops(&app, &shutdown, (ops, at), end.clone())?;
    run_in_background(&app);
    for listener in &listeners {
        info!(page = %listener, admin = %at, "listening");
    }
    let opened = signals.unless_terminated(app::open(&app.shared, opening)).await;
    let (drain, in_flight) = (app.settings.server.drain, InFlight::new(&cores, &app));
    // The cores have clones of the listeners. These would accept connections that are never served.
    if opened.transpose().map_err(start_error)?.is_none() {
        drop(listeners);
    } else {
        announce(&app, listeners, at, out)?;
        let status = status(&app);
        notify::ready(&status());
        tokio::spawn(app.watch_account());
        let runtimes = cores.iter().map(|core| core.runtime.clone()).collect();
        let ledger = app.shared.store.clone();
        tokio::spawn(notify::report_alive(runtimes, ledger, status.clone()));
        let reload = |app| {
            notify::reloading();
            let app = reload(app, config_path.as_deref(), &cores);
            certificates.reconfigure(&app.settings);
            notify::ready(&status());
            app
        };
        run_until_stopped(app, App::tidy, reload, &mut signals).await;
    }
    stop(cores, drain, &shutdown, in_flight).await;
    end.cancel();
    Ok(Exit::Done)
}

/// Does what needs neither the ledger nor a request.
fn run_in_background(app: &App) {
    thread::spawn(calibrate_clock);
    let access = Arc::clone(&app.shared.access);
    tokio::spawn(async move { access.run().await });
    tokio::spawn(app.report_events());
}

/// Waits for requests and purchases in flight, for at most `drain`.
async fn stop(cores: Vec<Core>, drain: Duration, shutdown: &Shutdown, in_flight: InFlight) {
    shutdown.draining.cancel();
    let limit = drain + FLUSH_TIMEOUT + CLOSE_TIMEOUT;
    start_exit_watchdog(limit, in_flight.clone()).await;
    info!("drain started");
    notify::stopping(limit);
    Core::drain_all(cores, drain, shutdown, &in_flight).await;
}

fn start_error(error: io::Error) -> CommandError {
    if error.get_ref().is_some_and(|it| it.is::<SecretError>() || it.is::<OtherIssuer>()) {
        return CommandError::usage(error.to_string());
    }
    error.into()
}

/// Answers probes while `store.wait` runs, until the result is dropped. Callers wait in the queues
/// of their sockets.
fn serve_starting(settings: &Settings, ops: &Listener) -> io::Result<Option<DropGuard>> {
    if settings.store_wait.is_zero() {
        return Ok(None);
    }
    let service = Ops::new(Arc::default(), async || Err(app::starting()));
    let end = CancellationToken::new();
    let settings = ConnectionSettings {
        header_timeout: settings.server.header_timeout,
        idle_timeout: settings.server.idle_timeout,
        connections: Arc::new(Semaphore::new(process::OPS_CONNECTIONS)),
        address_limits: Arc::default(),
        tls: None,
        streams: settings.server.streams,
        metrics: Arc::default(),
    };
    let make_service = move |source: Source| service.service_for(source.peer.ip());
    tokio::spawn(edge::run(ops.try_clone()?.start()?, make_service, settings, end.clone()));
    Ok(Some(end.drop_guard()))
}

fn serve_redirects(
    app: &App,
    connections: &ConnectionSettings,
    redirects: Vec<Listener>,
    shutdown: &Shutdown,
) -> io::Result<()> {
    for listener in redirects {
        let redirect = app.redirect();
        info!(redirect = %listener, "redirecting to https");
        let settings = ConnectionSettings { tls: None, ..connections.clone() };
        let make_service = move |_| redirect.service();
        let draining = shutdown.draining.clone();
        tokio::spawn(edge::run(listener.start()?, make_service, settings, draining));
    }
    Ok(())
}

fn serve_ops(
    app: &App,
    shutdown: &Shutdown,
    (admin, at): (Listener, SocketAddr),
    end: CancellationToken,
) -> io::Result<()> {
    let service = app.ops(shutdown, app::own_addresses(&[at])?);
    // The per-address limit does not apply to operators.
    let connections = Arc::new(Semaphore::new(process::OPS_CONNECTIONS));
    let settings = ConnectionSettings {
        address_limits: Arc::default(),
        connections,
        tls: None,
        ..app.server()
    };
    let make_service = move |source: Source| service.service_for(source.peer.ip());
    tokio::spawn(edge::run(admin.start()?, make_service, settings, end));
    Ok(())
}

/// Logs the start and, on a terminal, prints it.
fn announce(
    app: &App,
    listeners: Vec<Listener>,
    admin: SocketAddr,
    out: &mut impl Write,
) -> io::Result<()> {
    let settings = &app.settings;
    let url = |at: SocketAddr| format!("http://{at}");
    let scheme = if settings.server.tls.is_some() { "https" } else { "http" };
    let page = |listener: &Listener| match listener.address() {
        Some(at) => format!("{scheme}://{at}"),
        None => listener.to_string(),
    };
    let pages: Vec<_> = listeners.iter().map(page).collect();
    // The cores have clones.
    drop(listeners);
    let members = app.shared.access.member_count();
    let (version, page, admin) = (env!("CARGO_PKG_VERSION"), pages.join(", "), url(admin));
    let (target, limits) = (gateway(&settings.gateway.target), budgets(&settings.budget));
    let mode = callers(&settings.access.mode, members);
    let certificate = app.shared.tls.as_ref().and_then(|tls| Some(tls.certificate()?.summary()));
    let ledger = app::ledger::describe(settings);
    info!(
        version,
        page,
        admin,
        gateway = target,
        callers = mode,
        budgets = limits,
        certificate,
        ledger,
        "started"
    );
    if io::stdout().is_terminal() {
        writeln!(out, "tollgate {version}")?;
        pages.iter().try_for_each(|page| writeln!(out, "page      {page}"))?;
        let rows = [
            ("gateway", target),
            ("callers", mode),
            ("budgets", limits),
            ("ledger", ledger),
            ("admin", admin),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(out, "{name:<9} {value}"))?;
        out.flush()?;
    }
    if settings.is_local_only() {
        // Behind an unknown reverse proxy, every caller looks like a local browser.
        info!(settings = "server.hosts, server.trusted_proxies", "no reverse proxy configured");
    }
    Ok(())
}

/// Returns the source of the line that `systemctl status` shows.
fn status(app: &App) -> impl Fn() -> String + Clone + Send + 'static + use<> {
    let metrics = Arc::clone(&app.shared.metrics);
    let mode = match app.settings.gateway.target {
        Target::Sandbox => "sandbox",
        Target::Live { .. } => "live",
    };
    move || {
        let open = u64::try_from(metrics.connections.get()).unwrap_or(0);
        format!("{mode}, {}", pluralize(open, "connection"))
    }
}

/// Tidies at intervals, reloads on SIGHUP, and returns at the first SIGTERM or SIGINT.
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
            // At most one runs, in its own task: a ledger that hangs must not block signals.
            _ = due.tick() => if tidying.as_ref().is_none_or(JoinHandle::is_finished) {
                tidying = Some(tokio::spawn(tidy(&app)));
            },
            _ = hup.recv() => app = reload(app),
            _ = term.recv() => return,
            _ = int.recv() => return,
        }
    }
}

pub(super) struct Signals {
    hup: Signal,
    term: Signal,
    int: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn terminated(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }

    async fn unless_terminated<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! { biased; () = self.terminated() => None, done = work => Some(done) }
    }
}

/// Exits at a second signal or soon after `drain`, from a thread that a hanging disk cannot block.
/// Returns when the thread receives signals.
async fn start_exit_watchdog(limit: Duration, in_flight: InFlight) {
    let (ready, is_ready) = oneshot::channel();
    let watch = move || {
        let watching = async {
            let mut signals = Signals::new()?;
            ready.send(()).ok();
            Ok::<_, io::Error>(timeout(limit, signals.terminated()).await.is_ok())
        };
        match runtime().and_then(|runtime| runtime.block_on(watching)) {
            Ok(true) => {
                warn_of_purchases(&in_flight);
                log::flush();
                std::process::exit(1)
            }
            Ok(false) => {
                error!("ledger not closed in time");
                log::flush();
                std::process::exit(0)
            }
            Err(error) => warn!(%error, "exit watchdog failed"),
        }
    };
    if let Err(error) = thread::Builder::new().name("watchdog".to_owned()).spawn(watch) {
        warn!(%error, "exit watchdog failed");
    }
    is_ready.await.ok();
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tidy_that_hangs_runs_once_and_delays_no_signal() {
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
        let hangup = async {
            tokio::time::sleep(TIDY_INTERVAL * 5).await;
            raise(Signal::SIGHUP).unwrap();
            pending::<()>().await
        };
        let ended = run_until_stopped((), tidy, reload, &mut signals);
        tokio::select! {
            () = ended => {}
            () = hangup => {}
            () = tokio::time::sleep(TIDY_INTERVAL * 1_000) => panic!("no signal was handled"),
        }
        let counts = (begun.load(Ordering::Relaxed), reloaded.load(Ordering::Relaxed));
        assert_eq!(counts, (1, 1));
    }
}
