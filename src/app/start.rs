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
use crate::config::{self, Settings, Target};
use crate::jobs::JobRegistry;
use crate::metrics::Metrics;
use crate::purchase::idempotency::RunningPurchases;
use crate::redact::Redactor;
use crate::sandbox::Sandbox;
use crate::server;
use crate::store::{AccountBinding, MoneyKind, OpenError, Opening, RecentRefusals, Store};
use crate::upstream::rate_limit::RateLimit;

/// When a gate shutdown.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// From here on nothing new is begun.
    pub draining: CancellationToken,
    /// `server.drain` is over: calls whose purchase is still under way are answered without it.
    pub drain_expired: CancellationToken,
    /// Nothing is under way any more: who is asked last may go, too.
    pub finished: CancellationToken,
}

/// What outlives a change of settings, as it is at the start; its store is open. `admin` is where commands beside
/// this server ask it; `secret` is asked for where members may call. Jobs and the sandbox run on `behind`.
pub async fn start(
    config: &Settings,
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
    config: &Settings,
    admin: Option<SocketAddr>,
    behind: &Handle,
    shutdown: &Shutdown,
    secret: impl FnOnce() -> io::Result<Secret>,
) -> io::Result<(SharedState, Option<Opening>)> {
    let (store, opening) = open_store(config, admin).await?;
    let jobs = JobRegistry::new(store.clone(), behind.clone(), shutdown.draining.clone());
    let window =
        RateLimit::new(store.clone(), config.gateway.rate_limit, shutdown.draining.clone());
    let metrics = Arc::new(Metrics::default());
    let watched = Arc::clone(&window);
    metrics.watch_rate_limit(move || (watched.free_slots(), watched.waiting_count()));
    let access = access(&config.access.mode, store.clone(), secret, Arc::clone(&metrics))?;
    let shared = SharedState {
        access,
        redactor: Redactor::new(Arc::clone(&metrics)),
        metrics,
        store,
        binding: match config.gateway.target {
            Target::Sandbox => AccountBinding::trusted(),
            Target::Live { .. } => AccountBinding::unchecked(),
        },
        running: RunningPurchases::default(),
        refusals: Arc::new(RecentRefusals::new(Arc::new(clock::wall))),
        jobs,
        rate_limit: window,
        address_limits: Arc::default(),
        body_memory: Arc::default(),
        hosts: Arc::default(),
        drain_expired: shutdown.drain_expired.clone(),
        sandbox: start_sandbox(config, behind, shutdown.finished.clone())?,
    };
    Ok((shared, opening))
}

/// Waits for the store, which may be checked or brought up to date, and reads back what an earlier process
/// left: only then does the first purchase begin. A store that cannot be used stops sales, not the rest.
pub async fn open(shared: &SharedState, mut opening: Option<Opening>) -> io::Result<()> {
    if let Some(opening) = &mut opening
        && let Err(error) = opening.wait().await
    {
        error!("nothing can be bought: {error}");
    }
    shared.rate_limit.restore().await;
    shared.access.load().await.map_err(io::Error::other)?;
    if let Some(opening) = opening {
        opening.serve();
    }
    Ok(())
}

async fn open_store(
    config: &Settings,
    admin: Option<SocketAddr>,
) -> io::Result<(Store, Option<Opening>)> {
    let money = match config.gateway.target {
        Target::Sandbox => MoneyKind::Play,
        Target::Live { .. } => MoneyKind::Real,
    };
    match &config.store {
        config::StoreConfig::Memory => Ok((Store::in_memory(Arc::new(clock::wall)), None)),
        config::StoreConfig::Sqlite(path) => {
            match Store::start_serving(path, Arc::new(clock::wall), money, admin).await {
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
    config: &Settings,
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
