//! Starts the state that outlives a reload: ledger, rate limit, sandbox.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::SharedState;
use crate::access::jwt::JwtVerifier;
use crate::access::links::LinkCache;
use crate::access::member_cache::MemberCache;
use crate::access::proof::ProofOfWork;
use crate::access::quote::QuoteSigner;
use crate::access::token::Secret;
use crate::access::{AuthMode, Authenticator, OidcAccess, issuer, secret_file};
use crate::account::webhooks::Webhooks;
use crate::clock;
use crate::config::{AccessMode, Settings, StoreConfig, Target, TlsConfig};
use crate::edge;
use crate::edge::tls::Tls;
use crate::gate::RefusalLog;
use crate::gate::memory::RequestMemory;
use crate::gateway::rate_limit::RateLimit;
use crate::gateway::redact::Redactor;
use crate::gateway::sandbox::{self, Sandbox};
use crate::ledger::{AccountBinding, OpenError, Opening, Reason, ServerOptions, Store, configured};
use crate::metrics::Metrics;
use crate::purchase::idempotency::RunningPurchases;
use crate::video::JobRegistry;
use crate::video::pictures::Pictures;

/// The stages of a shutdown.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// No new work is accepted.
    pub draining: CancellationToken,
    /// `server.drain` has expired: requests still waiting for a purchase are answered without it.
    pub drain_expired: CancellationToken,
    /// No request is in flight, so the sandbox may stop, too.
    pub finished: CancellationToken,
}

impl Shutdown {
    /// Rejects new work.
    pub fn drain(&self) {
        if !self.draining.is_cancelled() {
            info!("drain started");
        }
        self.draining.cancel();
    }
}

/// Starts the shared state, with which nothing can be bought until [`open`]. `admin` is the ops
/// listener's address; `secret` is called only if tokens, cookies or quotes depend on it; jobs and
/// the sandbox run on `runtime`. `new_issuer` gives the ledger to the users of the settings' issuer.
pub async fn prepare(
    settings: &Settings,
    admin: Option<SocketAddr>,
    runtime: &Handle,
    shutdown: &Shutdown,
    secret: impl FnOnce() -> io::Result<Secret>,
    new_issuer: bool,
) -> io::Result<(SharedState, Option<Opening>)> {
    let (store, opening) = open_store(settings, admin).await?;
    let shared = shared_state(settings, store, runtime, shutdown, secret, new_issuer)?;
    // A ledger that is not still opened, as in PostgreSQL, would already serve callers.
    if opening.is_none() {
        bind(&shared).await?;
    }
    Ok((shared, opening))
}

/// Does the same with a ledger that is already open.
pub async fn prepare_on(
    settings: &Settings,
    store: Store,
    runtime: &Handle,
    shutdown: &Shutdown,
    secret: impl FnOnce() -> io::Result<Secret>,
    new_issuer: bool,
) -> io::Result<SharedState> {
    let shared = shared_state(settings, store, runtime, shutdown, secret, new_issuer)?;
    bind(&shared).await?;
    Ok(shared)
}

fn shared_state(
    settings: &Settings,
    store: Store,
    runtime: &Handle,
    shutdown: &Shutdown,
    secret: impl FnOnce() -> io::Result<Secret>,
    new_issuer: bool,
) -> io::Result<SharedState> {
    let jobs = JobRegistry::new(store.clone(), runtime.clone(), shutdown.draining.clone());
    let rate_limit =
        RateLimit::new(store.clone(), settings.gateway.rate_limit, shutdown.draining.clone());
    let metrics = Arc::new(Metrics::default());
    let secret = settings.needs_secret().then(secret).transpose()?;
    let ledger = store.clone();
    let signer = |secret: &Secret| Arc::new(QuoteSigner::new(secret, move || ledger.name()));
    let quotes = secret.as_ref().filter(|_| settings.mcp.enabled).map(signer);
    let fingerprint = secret.as_ref().map(|secret| secret.fingerprint);
    let access = authenticator(settings, &store, secret, &metrics)?;
    Ok(SharedState {
        webhooks: Webhooks::new(settings, store.clone(), Arc::clone(&metrics)),
        access: Arc::new(access),
        redactor: Redactor::new(Arc::clone(&metrics)),
        refusal_log: Arc::new(RefusalLog::new(Arc::clone(&metrics))),
        metrics,
        store,
        binding: match settings.gateway.target {
            Target::Sandbox => AccountBinding::trusted(),
            Target::Live { .. } => AccountBinding::unchecked(),
        },
        running: RunningPurchases::default(),
        clock_steps: Arc::default(),
        jobs,
        rate_limit,
        address_limits: Arc::default(),
        memory: RequestMemory::default(),
        ledger_opened: CancellationToken::new(),
        hosts: Arc::default(),
        watched: Arc::default(),
        drain_expired: shutdown.drain_expired.clone(),
        sandbox: start_sandbox(settings, runtime, shutdown.finished.clone())?,
        own_addresses: own_addresses(&settings.server.addresses())?,
        tls: settings.server.tls.as_ref().map(tls).transpose()?,
        secret: fingerprint,
        issuer: settings.users_issuer().map(Arc::from),
        new_issuer,
        quotes,
        pictures: pictures(settings).map(Arc::new),
        scripted_client: None,
    })
}

fn authenticator(
    settings: &Settings,
    store: &Store,
    secret: Option<Secret>,
    metrics: &Arc<Metrics>,
) -> io::Result<Authenticator> {
    let ledger = store.clone();
    let proofs = secret.as_ref().filter(|_| settings.access.proof);
    let proofs = proofs.map(|secret| ProofOfWork::new(secret, move || ledger.name()));
    let links = secret.as_ref().filter(|_| settings.access.links);
    let links = links.map(|secret| LinkCache::new(store.clone(), secret));
    let mode = auth_mode(settings, store, secret)?;
    let mut access = Authenticator::new(mode, links, Arc::clone(metrics));
    access.proofs = proofs;
    Ok(access)
}

fn auth_mode(settings: &Settings, store: &Store, secret: Option<Secret>) -> io::Result<AuthMode> {
    Ok(match (&settings.access.mode, secret) {
        (AccessMode::Members, Some(secret)) => {
            AuthMode::Members(Box::new(MemberCache::new(store.clone(), secret)))
        }
        (AccessMode::Oidc(config), Some(secret)) => {
            AuthMode::Oidc(Box::new(OidcAccess::new(config, store.clone(), secret)))
        }
        (AccessMode::Members | AccessMode::Oidc(_), None) => {
            return Err(io::Error::other("the secret was not read"));
        }
        (AccessMode::Open, _) => AuthMode::Open,
        (AccessMode::Host, _) => AuthMode::Host,
        (AccessMode::Jwt(settings), _) => AuthMode::Jwt(JwtVerifier::new(settings)?),
    })
}

/// Waits for the ledger, then restores the state of an earlier process. If the ledger is unusable,
/// only sales stop. Requests that need it wait until this ends, also if it is given up.
pub fn open(
    shared: &SharedState,
    opening: Option<Opening>,
) -> impl Future<Output = io::Result<()>> {
    let opened = shared.ledger_opened.clone().drop_guard();
    restore(shared, opening).inspect(|_| drop(opened))
}

async fn restore(shared: &SharedState, mut opening: Option<Opening>) -> io::Result<()> {
    if let Some(opening) = &mut opening
        && let Err(error) = opening.wait().await
    {
        log_unusable(&error.into());
    }
    if shared.store.is_unusable() {
        return Ok(());
    }
    shared.webhooks.subscribe().await;
    shared.rate_limit.restore().await;
    if opening.is_some() {
        bind(shared).await?;
    }
    shared.access.refresh().await;
    if let Some(opening) = opening {
        opening.serve();
    }
    Ok(())
}

/// Records what the ledger's tokens and callers depend on. Refuses settings that do not fit them, and
/// closes the ledger: other servers would take this one for alive until its lease ends.
async fn bind(shared: &SharedState) -> io::Result<()> {
    let SharedState { store, secret, issuer, new_issuer, .. } = shared;
    if store.is_unusable() {
        return Ok(());
    }
    let bound = async {
        if let Some(fingerprint) = secret {
            secret_file::record(store, *fingerprint).await.map_err(io::Error::other)?;
        }
        match issuer {
            Some(issuer) => issuer::bind(store, issuer, *new_issuer).await,
            None => Ok(()),
        }
    };
    bound.await.inspect_err(|_| store.close())
}

/// Loads the certificate, unless an authority issues it.
fn tls(config: &TlsConfig) -> io::Result<Tls> {
    match config {
        TlsConfig::Files(files) => Tls::from_files(files),
        TlsConfig::Acme(_) => Tls::for_acme(),
    }
}

fn log_unusable(reason: &Reason) {
    error!(cause = reason.cause.code(), error = %reason, "ledger unusable, nothing can be sold");
}

async fn open_store(
    settings: &Settings,
    admin: Option<SocketAddr>,
) -> io::Result<(Store, Option<Opening>)> {
    let path = match &settings.store {
        StoreConfig::Memory => return Ok((Store::in_memory(Arc::new(clock::wall)), None)),
        StoreConfig::Sqlite(path) => path,
        StoreConfig::Postgres(config) => {
            let store = configured::open_for_server(settings, config).await;
            return store.map(|store| (store, None)).map_err(io::Error::other);
        }
    };
    let options = ServerOptions {
        money: configured::money_kind(settings),
        admin,
        wait: settings.store_wait,
        mark_folders: settings.mark_folders.clone(),
    };
    match Store::start_serving(path, Arc::new(clock::wall), options).await {
        Ok((store, opening)) => Ok((store, Some(opening))),
        Err(OpenError::Unusable(reason)) => {
            log_unusable(&reason);
            Ok((Store::unusable(reason), None))
        }
        Err(locked @ OpenError::Locked { .. }) => Err(io::Error::other(locked)),
    }
}

/// Returns where pictures are kept, if this ledger allows it.
///
/// A sandbox with a ledger in memory keeps them until it ends.
fn pictures(settings: &Settings) -> Option<Pictures> {
    let is_sandbox = matches!(settings.gateway.target, Target::Sandbox);
    match settings.store.path() {
        Some(path) => Some(Pictures::beside(path)),
        None => is_sandbox.then(Pictures::temporary)?,
    }
}

fn start_sandbox(
    settings: &Settings,
    runtime: &Handle,
    finished: CancellationToken,
) -> io::Result<Option<(Sandbox, SocketAddr)>> {
    let Target::Sandbox = settings.gateway.target else { return Ok(None) };
    let listener = edge::bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = listener.local_addr()?;
    let sandbox = sandbox(settings);
    let server = sandbox.clone();
    runtime.spawn(async move {
        match TcpListener::from_std(listener) {
            Ok(listener) => server.serve(listener, finished.cancelled_owned()).await,
            Err(error) => error!(%error, "sandbox failed"),
        }
    });
    Ok(Some((sandbox, address)))
}

pub fn sandbox(settings: &Settings) -> Sandbox {
    let defaults = sandbox::SandboxSettings::default();
    let window = settings.sandbox.rate_limit.map_or(defaults.window, |limit| {
        (u32::try_from(limit.requests).unwrap_or(u32::MAX), limit.period)
    });
    Sandbox::new(sandbox::SandboxSettings {
        seed: settings.sandbox.seed,
        run: (settings.store != StoreConfig::Memory).then(clock::wall),
        balance: settings.sandbox.balance,
        job_time: settings.sandbox.job_time,
        reply_delay: settings.sandbox.reply_delay,
        window,
        ..defaults
    })
}

/// Returns the addresses of these listeners; for an unspecified address, all of the machine.
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
