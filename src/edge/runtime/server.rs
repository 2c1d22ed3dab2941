//! The server of `tollgate serve`: its sockets, a thread for each core, the ops listener, and signals.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::interval;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use super::reload::reload;
use super::signals::{Signals, start_exit_watchdog};
use super::sockets::Sockets;
use super::worker::Worker;
use super::{CLOSE_TIMEOUT, FLUSH_TIMEOUT, Runtime, notify, process};
use crate::access::secret_file::secret;
use crate::api::ops::{Ops, readiness};
use crate::api::reports::text::pluralize;
use crate::app::{self, App, Shutdown};
use crate::config::files::load::Loaded;
use crate::config::{AcmeConfig, Settings};
use crate::edge::{self, ConnectionSettings, Listener, acme};
use crate::gate::source::Source;
use crate::ledger::Opening;
use crate::log;

/// How soon a renewed certificate is noticed.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// The settings file that the command line names.
    pub config: Option<PathBuf>,
    /// Binds the ledger to the account of the current gateway key.
    pub new_account: bool,
    /// Gives the ledger to the users of the current issuer.
    pub new_issuer: bool,
}

/// Serves until SIGTERM or SIGINT, then drains. `announce` reports the start.
pub async fn serve(
    Loaded { mut settings, file, warnings }: Loaded,
    options: ServeOptions,
    announce: impl FnOnce(&App, &[Listener], SocketAddr) -> io::Result<()>,
) -> io::Result<()> {
    // Registered first: once there is a listener, a signal must shut down gracefully.
    let mut signals = Signals::new()?;
    log::start(settings.log)?;
    for warning in warnings {
        warn!(warning, "risky setting");
    }
    process::fit_open_file_limit(&mut settings.server);
    // Every socket is open before the first request is accepted.
    let sockets = Sockets::open(&settings)?;
    let shutdown = Shutdown::default();
    notify::starting("opening the ledger");
    let waiting = serve_starting(&settings, &sockets.ops)?;
    let preparing = prepare(settings, &sockets, &shutdown, &options);
    let Some(prepared) = signals.unless_terminated(preparing).await else {
        info!("stopped during startup");
        return Ok(());
    };
    drop(waiting);
    let (app, opening) = prepared?;
    let runtime = Runtime::new(app, shutdown);
    // A reload must find the same file: without it, its budgets would be lost.
    let config = options.config.or(file);
    run(&runtime, opening, sockets, (config, signals), announce).await
}

async fn prepare(
    settings: Settings,
    sockets: &Sockets,
    shutdown: &Shutdown,
    options: &ServeOptions,
) -> io::Result<(App, Option<Opening>)> {
    let (at, host) = (Some(sockets.ops_address), Handle::current());
    let secret = || secret(&settings);
    let preparing = app::prepare(&settings, at, &host, shutdown, secret, options.new_issuer);
    let (mut shared, opening) = preparing.await?;
    shared.own_addresses = app::own_addresses(&sockets.addresses())?;
    if options.new_account {
        shared.binding.adopt_next_account();
        shared.rate_limit.forget_limit();
    }
    Ok((App::new(settings, shared)?, opening))
}

async fn run(
    runtime: &Arc<Runtime>,
    opening: Option<Opening>,
    Sockets { callers: listeners, redirects, ops, ops_address: at }: Sockets,
    (config, mut signals): (Option<PathBuf>, Signals),
    announce: impl FnOnce(&App, &[Listener], SocketAddr) -> io::Result<()>,
) -> io::Result<()> {
    let connections = runtime.app().server();
    let acme = start_certificates(&runtime.app());
    let workers = Worker::start_all(runtime, &listeners, &connections)?;
    serve_redirects(runtime, &connections, redirects)?;
    // The ops listener stops last, so that probes see `draining` until the drain ends.
    let end = CancellationToken::new();
    let service = runtime.app().ops(&runtime.shutdown, app::own_addresses(&[at])?);
    spawn_ops(ops, service, connections, end.clone())?;
    runtime.start_background(&Handle::current());
    for listener in &listeners {
        info!(page = %listener, admin = %at, "listening");
    }
    let opened = signals.unless_terminated(app::open(&runtime.app().shared, opening)).await;
    let is_open = opened.transpose()?.is_some();
    if is_open {
        announce(&runtime.app(), &listeners, at)?;
    }
    // The workers have clones. These would accept connections that are never served.
    drop(listeners);
    if is_open {
        let status = status(&runtime.app());
        notify::ready(&status());
        let threads = workers.iter().map(|worker| worker.tokio.clone()).collect();
        let ledger = runtime.app().shared.store.clone();
        tokio::spawn(notify::report_alive(threads, ledger, status.clone()));
        let reload = || {
            notify::reloading();
            reload(runtime, config.as_deref());
            if let (Some(acme), Some(config)) = (&acme, runtime.app().settings.server.acme()) {
                acme.send_replace(config.clone());
            }
            notify::ready(&status());
        };
        signals.reload_until_terminated(reload).await;
    }
    stop(runtime, workers).await;
    end.cancel();
    Ok(())
}

/// Waits for requests and purchases in flight, for at most `server.drain`.
async fn stop(runtime: &Arc<Runtime>, workers: Vec<Worker>) {
    let limit = runtime.app().settings.server.drain + FLUSH_TIMEOUT + CLOSE_TIMEOUT;
    // The ledger closes with the last use of the runtime.
    let in_flight = Arc::downgrade(runtime);
    let warn = move || in_flight.upgrade().iter().for_each(|it| it.warn_of_purchases());
    start_exit_watchdog(limit, warn).await;
    notify::stopping(limit);
    runtime.drain(Worker::end_all(workers)).await;
}

/// Answers probes while `store.wait` runs, until the result is dropped. Callers wait in the queues
/// of their sockets.
fn serve_starting(settings: &Settings, ops: &Listener) -> io::Result<Option<DropGuard>> {
    if settings.store_wait.is_zero() {
        return Ok(None);
    }
    let service = Ops::new(Arc::default(), async || Err(readiness::starting()));
    let end = CancellationToken::new();
    let connections = ConnectionSettings::new(&settings.server);
    spawn_ops(ops.try_clone()?, service, connections, end.clone())?;
    Ok(Some(end.drop_guard()))
}

fn serve_redirects(
    runtime: &Runtime,
    connections: &ConnectionSettings,
    redirects: Vec<Listener>,
) -> io::Result<()> {
    for listener in redirects {
        let redirect = runtime.app().redirect();
        info!(redirect = %listener, "redirecting to https");
        let settings = ConnectionSettings { tls: None, ..connections.clone() };
        let make_service = move |_| redirect.service();
        let draining = runtime.shutdown.draining.clone();
        tokio::spawn(edge::run(listener.start()?, make_service, settings, draining));
    }
    Ok(())
}

/// The limits of callers do not apply to operators.
fn spawn_ops(
    listener: Listener,
    service: Ops,
    connections: ConnectionSettings,
    end: CancellationToken,
) -> io::Result<()> {
    let settings = ConnectionSettings {
        connections: Arc::new(Semaphore::new(process::OPS_CONNECTIONS)),
        address_limits: Arc::default(),
        tls: None,
        ..connections
    };
    let make_service = move |source: Source| service.service_for(source.peer.ip());
    tokio::spawn(edge::run(listener.start()?, make_service, settings, end));
    Ok(())
}

/// Keeps the certificate up to date. Returns where to send the settings of its authority.
fn start_certificates(app: &App) -> Option<watch::Sender<AcmeConfig>> {
    let (tls, hosts) = (app.shared.tls.clone()?, Arc::clone(&app.shared.hosts));
    if let Some(config) = app.settings.server.acme() {
        return Some(acme::start(tls, config.clone()));
    }
    tokio::spawn(async move {
        let mut due = interval(CERTIFICATE_INTERVAL);
        loop {
            due.tick().await;
            tls.reload_if_changed(&hosts.load().listed());
        }
    });
    None
}

/// Returns the source of the line that `systemctl status` shows.
fn status(app: &App) -> impl Fn() -> String + Clone + Send + 'static + use<> {
    let (metrics, mode) = (Arc::clone(&app.shared.metrics), app.settings.gateway.target.name());
    move || {
        let open = u64::try_from(metrics.connections.get()).unwrap_or(0);
        format!("{mode}, {}", pluralize(open, "connection"))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::*;
    use crate::edge::runtime::{TIDY_INTERVAL, tidy_at_intervals};

    #[tokio::test(start_paused = true)]
    async fn tidy_that_hangs_runs_once_and_delays_no_signal() {
        let mut signals = Signals::new().unwrap();
        let (begun, reloaded) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let tidy = || {
            begun.fetch_add(1, Ordering::Relaxed);
            Some(pending())
        };
        let reload = || {
            reloaded.fetch_add(1, Ordering::Relaxed);
            raise(Signal::SIGTERM).unwrap();
        };
        let hangup = async {
            tokio::time::sleep(TIDY_INTERVAL * 5).await;
            raise(Signal::SIGHUP).unwrap();
            pending::<()>().await
        };
        tokio::select! {
            () = signals.reload_until_terminated(reload) => {}
            () = tidy_at_intervals(tidy) => panic!("it has no end"),
            () = hangup => {}
            () = tokio::time::sleep(TIDY_INTERVAL * 1_000) => panic!("no signal was handled"),
        }
        let counts = (begun.load(Ordering::Relaxed), reloaded.load(Ordering::Relaxed));
        assert_eq!(counts, (1, 1));
    }
}
