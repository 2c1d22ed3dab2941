//! Runs what `tollgate serve` runs, without signals, on a thread of this process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http::Request;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tollgate::access::Authenticator;
use tollgate::access::token::Secret;
use tollgate::api::ops::Ops;
use tollgate::app::{self, App, SharedState, Shutdown};
use tollgate::clock;
use tollgate::config::{Environment, Settings, SettingsSource};
use tollgate::edge::{self, IncomingBody};
use tollgate::gate::source::Source;
use tollgate::ledger::Store;
use tower::service_fn;

use super::log;

/// A gate on its own thread.
pub(super) struct InProcess {
    pub(super) page: SocketAddr,
    pub(super) admin: SocketAddr,
    /// The members. They keep the store open until `stop`.
    pub(super) known: Option<(Store, Arc<Authenticator>)>,
    shutdown: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl InProcess {
    /// Starts it with valid settings, with a wall clock that begins at `wall`, if it is set.
    pub(super) fn start(
        settings: &str,
        environment: &Environment,
        folder: &Path,
        wall: Option<Duration>,
    ) -> Self {
        log::start();
        let source = SettingsSource {
            file: Some(("proxy.toml", settings)),
            folder,
            environment,
            needs_gateway_key: true,
            key_file: &|path| panic!("no key file is read here: {}", path.display()),
            check_files: &|_| Vec::new(),
        };
        let config = Settings::read(&source).expect("the test's settings are right");
        let page = edge::bind(config.server.addresses()[0]).unwrap();
        let admin = edge::bind(config.ops_address()).unwrap();
        let (page_at, admin_at) = (page.local_addr().unwrap(), admin.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let shutdowns = Shutdown { draining: shutdown.clone(), ..Shutdown::default() };
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let text = config.secret.clone();
        let secret = || Ok(Secret::new(text.expect("it is set").expose().as_bytes()));
        let preparing = app::prepare(&config, None, runtime.handle(), &shutdowns, secret, false);
        let (shared, opening) = runtime.block_on(preparing).expect("a usable ledger");
        runtime.block_on(app::open(&shared, opening)).expect("a usable ledger");
        let known = (shared.store.clone(), Arc::clone(&shared.access));
        let ends = shutdown.clone();
        let serve = move || {
            clock::set_wall(wall);
            runtime.block_on(async {
                let page = TcpListener::from_std(page).unwrap();
                let admin = TcpListener::from_std(admin).unwrap();
                serve(config, shared, page, admin, ends).await;
            });
        };
        let thread = thread::Builder::new().name("gate".to_owned()).spawn(serve).unwrap();
        Self { page: page_at, admin: admin_at, known: Some(known), shutdown, thread: Some(thread) }
    }

    /// Stops accepting, and waits for requests in flight.
    pub(super) fn stop(&mut self) {
        self.shutdown.cancel();
        self.known = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            assert!(thread::panicking(), "the gate's thread panicked");
        }
    }
}

async fn serve(
    config: Settings,
    shared: SharedState,
    page: TcpListener,
    admin: TcpListener,
    shutdown: CancellationToken,
) {
    let (access, metrics) = (Arc::clone(&shared.access), Arc::clone(&shared.metrics));
    let app = App::new(config, shared.clone()).expect("the gate starts");
    if app.settings.gateway.rate_limit.is_none() {
        tokio::spawn(app.watch_account());
    } else {
        // The account's keys are never fetched, so purchases must not wait for them.
        shared.binding.listing_failed();
    }
    tokio::spawn(async move { access.run().await });
    tokio::spawn(app.report_events());
    let tasks = TaskTracker::new();
    let stack = app.core(tasks.clone()).expect("a core starts");
    let make_service = move |source: Source| {
        let stack = Arc::clone(&stack);
        service_fn(move |request: Request<IncomingBody>| {
            let (stack, source) = (Arc::clone(&stack), source.clone());
            Box::pin(async move { Ok(stack.handle(Some(source), request).await) })
        })
    };
    let readings = Arc::new(app.readings());
    let admin_service = Ops { readings, ..Ops::new(metrics, async || Ok(Vec::new())) };
    let end = CancellationToken::new();
    let settings =
        edge::ConnectionSettings { address_limits: Arc::default(), tls: None, ..app.server() };
    tokio::spawn(edge::run(
        admin,
        move |source: Source| admin_service.service_for(source.peer.ip()),
        settings,
        end.clone(),
    ));
    edge::run(page, make_service, app.server(), shutdown).await;
    tasks.close();
    tasks.wait().await;
    end.cancel();
}
