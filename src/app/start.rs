//! Opens what a gate starts with: its store, its window, its sandbox.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::{SharedState, access, sandbox};
use crate::access::token::Secret;
use crate::clock;
use crate::config::{self, Config, Target};
use crate::jobs::Jobs;
use crate::metrics::Metrics;
use crate::purchase::idempotency::Running;
use crate::redact::Redactor;
use crate::sandbox::Sandbox;
use crate::server;
use crate::store::{Binding, Money, OpenError, Opening, Refusals, Store};
use crate::upstream::window::Window;

/// When a gate shutdown.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// From here on nothing new is begun.
    pub begun: CancellationToken,
    /// `server.drain` is over: calls whose purchase is still under way are answered without it.
    pub cut: CancellationToken,
    /// Nothing is under way any more: who is asked last may go, too.
    pub over: CancellationToken,
}

/// What outlives a change of settings, as it is at the start; its store is open. `admin` is where commands beside
/// this server ask it; `secret` is asked for where members may call. Jobs and the sandbox run on `behind`.
pub async fn begin(
    config: &Config,
    admin: Option<SocketAddr>,
    behind: &Handle,
    shutdown: &Shutdown,
    secret: impl FnOnce() -> io::Result<Secret>,
) -> io::Result<SharedState> {
    let (shared, opening) = prepare(config, admin, behind, shutdown, secret).await?;
    open(&shared, opening).await?;
    Ok(shared)
}

/// The same before its store is [open](open): until then, nothing can be bought.
pub async fn prepare(
    config: &Config,
    admin: Option<SocketAddr>,
    behind: &Handle,
    shutdown: &Shutdown,
    secret: impl FnOnce() -> io::Result<Secret>,
) -> io::Result<(SharedState, Option<Opening>)> {
    let (store, opening) = open_store(config, admin).await?;
    let jobs = Jobs::new(store.clone(), behind.clone(), shutdown.begun.clone());
    let window = Window::new(store.clone(), config.gateway.rate_limit, shutdown.begun.clone());
    let metrics = Arc::new(Metrics::default());
    let watched = Arc::clone(&window);
    metrics.watch_window(move || (watched.free(), watched.waiting()));
    let access = access(&config.access.mode, store.clone(), secret, Arc::clone(&metrics))?;
    let shared = SharedState {
        access,
        redactor: Redactor::new(Arc::clone(&metrics)),
        metrics,
        store,
        binding: match config.gateway.target {
            Target::Sandbox => Binding::play(),
            Target::Live { .. } => Binding::real(),
        },
        running: Running::default(),
        refusals: Arc::new(Refusals::new(Arc::new(clock::wall))),
        jobs,
        window,
        crowd: Arc::default(),
        bodies: Arc::default(),
        hosts: Arc::default(),
        cut: shutdown.cut.clone(),
        sandbox: start_sandbox(config, behind, shutdown.over.clone())?,
    };
    Ok((shared, opening))
}

/// Waits for the store, which may be checked or brought up to date, and reads back what an earlier process
/// left: only then does the first purchase begin. A store that cannot be used stops sales, not the rest.
pub async fn open(shared: &SharedState, mut opening: Option<Opening>) -> io::Result<()> {
    if let Some(opening) = &mut opening
        && let Err(error) = opening.opened().await
    {
        error!("nothing can be bought: {error}");
    }
    shared.window.restore().await;
    shared.access.open().await.map_err(io::Error::other)?;
    if let Some(opening) = opening {
        opening.admit();
    }
    Ok(())
}

async fn open_store(
    config: &Config,
    admin: Option<SocketAddr>,
) -> io::Result<(Store, Option<Opening>)> {
    let money = match config.gateway.target {
        Target::Sandbox => Money::Play,
        Target::Live { .. } => Money::Real,
    };
    match &config.store {
        config::Store::Memory => Ok((Store::in_memory(Arc::new(clock::wall)), None)),
        config::Store::Sqlite(path) => {
            match Store::begin(path, Arc::new(clock::wall), money, admin).await {
                Ok((store, opening)) => Ok((store, Some(opening))),
                Err(OpenError::Unusable(reason)) => {
                    error!("nothing can be bought: {reason}");
                    Ok((Store::unusable(reason), None))
                }
                Err(locked @ OpenError::Locked { .. }) => Err(io::Error::other(locked)),
            }
        }
    }
}

/// The sandbox listens on a free port of its own, like the gateway that it stands for.
fn start_sandbox(
    config: &Config,
    behind: &Handle,
    over: CancellationToken,
) -> io::Result<Option<(Sandbox, SocketAddr)>> {
    match config.gateway.target {
        Target::Live { .. } => Ok(None),
        Target::Sandbox => {
            let listener = server::bind((Ipv4Addr::LOCALHOST, 0).into())?;
            let address = listener.local_addr()?;
            let sandbox = sandbox(config);
            let serving = sandbox.clone();
            behind.spawn(async move {
                match TcpListener::from_std(listener) {
                    Ok(listener) => serving.serve(listener, over.cancelled_owned()).await,
                    Err(error) => error!(%error, "the sandbox cannot serve"),
                }
            });
            Ok(Some((sandbox, address)))
        }
    }
}

/// The addresses under which callers reach us; all of the machine's where we listen on all.
pub fn own_addresses(listen: &[SocketAddr]) -> io::Result<Vec<IpAddr>> {
    let mut own: Vec<_> = listen.iter().map(|at| at.ip().to_canonical()).collect();
    if own.iter().any(IpAddr::is_unspecified) {
        for interface in nix::ifaddrs::getifaddrs()? {
            let Some(address) = interface.address else { continue };
            let v4 = address.as_sockaddr_in().map(|at| IpAddr::from(at.ip()));
            own.extend(v4.or_else(|| address.as_sockaddr_in6().map(|at| at.ip().into())));
        }
    }
    Ok(own)
}
