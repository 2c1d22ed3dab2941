//! The real stack on a thread of this process: what `tollgate serve` runs, without signals.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::net::TcpListener;
use tokio::runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tollgate::app::{App, Ends, Remembered};
use tollgate::config::{Config, Environment, Source};
use tollgate::downstream::caller::{Introduced, Peer};
use tollgate::jobs::Jobs;
use tollgate::routes::admin::Admin;
use tollgate::server;

use super::log;

/// Makes a store that does what another does, and more.
pub(crate) type Wrap = fn(Remembered) -> Remembered;

/// A gate on a thread of its own.
pub(super) struct InProcess {
    pub(super) page: SocketAddr,
    pub(super) admin: SocketAddr,
    shutdown: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl InProcess {
    /// Starts it with settings that must be right; `wrap` takes the store's place.
    pub(super) fn start(
        settings: &str,
        environment: &Environment,
        folder: &Path,
        wrap: Option<Wrap>,
    ) -> Self {
        log::start();
        let source = Source {
            file: Some(("proxy.toml", settings)),
            folder,
            environment,
            key_file: &|path| panic!("no key file is read here: {}", path.display()),
        };
        let config = Config::read(&source).expect("the test's settings are right");
        let not_yet = config.not_yet();
        assert!(not_yet.is_empty(), "{not_yet:?}");
        let page = server::bind(config.server.listen[0]).unwrap();
        let admin = server::bind(config.admin.listen).unwrap();
        let (page_at, admin_at) = (page.local_addr().unwrap(), admin.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let ends = shutdown.clone();
        let serve = move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let page = TcpListener::from_std(page).unwrap();
                let admin = TcpListener::from_std(admin).unwrap();
                serve(config, page, admin, ends, wrap).await;
            });
        };
        let thread = thread::Builder::new().name("gate".to_owned()).spawn(serve).unwrap();
        Self { page: page_at, admin: admin_at, shutdown, thread: Some(thread) }
    }

    /// Stops accepting, and waits for what is under way.
    pub(super) fn stop(&mut self) {
        self.shutdown.cancel();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            assert!(thread::panicking(), "the gate's thread panicked");
        }
    }
}

async fn serve(
    config: Config,
    page: TcpListener,
    admin: TcpListener,
    shutdown: CancellationToken,
    wrap: Option<Wrap>,
) {
    let own = vec![page.local_addr().unwrap().ip()];
    let ends = Ends { shutdown: shutdown.clone(), ..Ends::default() };
    let lasting = tollgate::app::begin(&config, None, &runtime::Handle::current(), &ends).await;
    let mut lasting = lasting.expect("a store that can be used");
    if let Some(wrap) = wrap {
        let store = wrap(tollgate::app::memory());
        lasting.ledger = store.ledger;
        lasting.jobs = Jobs::new(store.book, runtime::Handle::current(), shutdown.clone());
        lasting.window = tollgate::app::window(store.log, &config, shutdown.clone()).await;
    }
    let app = App::new(config, own, &lasting).expect("the gate starts");
    if app.config().gateway.window == tollgate::config::Window::Auto {
        tokio::spawn(app.follow_books());
    }
    let tasks = TaskTracker::new();
    let stack = app.core(tasks.clone()).expect("a core starts");
    let introduce = move |peer| Introduced { peer: Peer(peer), inner: stack.clone() };
    let admin_service = Admin::new(Arc::clone(&lasting.metrics), || true);
    let end = CancellationToken::new();
    tokio::spawn(server::run(admin, move |_| admin_service.clone(), app.server(), end.clone()));
    server::run(page, introduce, app.server(), shutdown).await;
    tasks.close();
    tasks.wait().await;
    end.cancel();
}
