//! A tollgate on tokio's paused clock, between callers and a gateway that are functions of the test.
//!
//! All of it runs on the test's thread, without sockets. Time passes only while every task waits, so
//! the speed of the machine decides nothing: `#[tokio::test(start_paused = true)]`.

mod call;
mod upstream;

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tollgate::access::token::Secret;
use tollgate::api::ops::Ops;
use tollgate::app::{self, App, Shutdown};
use tollgate::clock;
use tollgate::config::{GatewayConfig, Settings, SettingsSource};
use tollgate::gate::pipeline::HttpStack;
use tollgate::gate::response::BoxError;
use tollgate::gate::source::Source;
use tollgate::gateway::{Attempt, GatewayCall, ScriptedClient};
use tollgate::ledger::{Store, StoreCapacity};
use tower::ServiceExt;
use zeroize::Zeroizing;

pub(crate) use call::PausedCall;
use call::{read, request};
pub(crate) use upstream::PausedUpstream;

use super::accounting::Errand;
use super::client::{Answer, Record};
use super::gate::files_in;
use super::settings::{environment_of, no_kept_videos, no_rate_limit, stored};
use super::{CHAT, VIDEO, lock, log};

/// The wall clock when a gate starts: 2025-11-20, noon.
pub(crate) const START: Duration = Duration::from_secs(1_763_640_000);
const WEBHOOK_SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// The limit of the HTTP client for reads.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Lets this time pass on a paused clock. All that is due in it happens at its time.
pub(crate) async fn pass(time: Duration) {
    sleep(time).await;
}

/// A tollgate on a paused clock. The invariants are checked when it is dropped.
pub(crate) struct PausedGate {
    upstream: PausedUpstream,
    record: Arc<Record>,
    settings: String,
    folder: TempDir,
    wrap: Box<dyn Fn(Store) -> Store + Send + Sync>,
    running: Option<Running>,
    /// The number of charges that the gateway had made before.
    earlier: usize,
}

struct Running {
    stack: Arc<HttpStack>,
    /// As it is without a wrapper.
    store: Store,
    ops: Ops,
    tasks: TaskTracker,
    draining: CancellationToken,
    background: Vec<JoinHandle<()>>,
}

impl PausedGate {
    /// Starts it. `settings` is a `proxy.toml` to which addresses and keys are added, and a ledger in
    /// memory if they name none. The wall clock begins at [`START`].
    pub(crate) async fn start(upstream: &PausedUpstream, settings: &str) -> Self {
        Self::on(upstream, settings, |store| store).await
    }

    /// Does the same on a store that `wrap` has wrapped.
    pub(crate) async fn on(
        upstream: &PausedUpstream,
        settings: &str,
        wrap: impl Fn(Store) -> Store + Send + Sync + 'static,
    ) -> Self {
        log::start();
        clock::set_wall(Some(START));
        let mut gate = Self {
            upstream: upstream.clone(),
            record: Arc::default(),
            settings: stored(settings),
            folder: TempDir::with_prefix("tollgate-paused-").unwrap(),
            wrap: Box::new(wrap),
            running: None,
            earlier: upstream.charges().len(),
        };
        gate.running = Some(gate.run(None).await);
        gate
    }

    /// Opens the ledger of these settings, or goes on with the one in memory.
    async fn open_ledger(&self, settings: &Settings, memory: Option<Store>) -> Store {
        let wall = Arc::new(clock::wall);
        if let Some(path) = settings.store.path() {
            return Store::serve_inline(path, wall, StoreCapacity::default()).expect("a ledger");
        }
        let store = memory.unwrap_or_else(|| Store::in_memory(wall));
        store.recover().await.expect("a usable ledger");
        store
    }

    async fn run(&self, memory: Option<Store>) -> Running {
        let settings = self.read_settings();
        let memory = self.open_ledger(&settings, memory).await;
        let store = (self.wrap)(memory.clone());
        let GatewayConfig { chat_timeout, video_timeout, .. } = settings.gateway;
        let upstream = self.upstream.clone();
        let client = ScriptedClient::new(move |attempt: Attempt| {
            let call = &attempt.request.call;
            let limit = if matches!(call, GatewayCall::Video(_)) {
                video_timeout
            } else if call.is_purchase() {
                chat_timeout
            } else {
                READ_TIMEOUT
            };
            upstream.clone().attempt(attempt, limit)
        });
        let shutdown = Shutdown::default();
        let text = settings.secret.clone();
        let secret = || Ok(Secret::new(text.expect("it is set").expose().as_bytes()));
        let runtime = Handle::current();
        let preparing = app::prepare_on(&settings, store, &runtime, &shutdown, secret, false);
        let mut shared = preparing.await.expect("a usable ledger");
        app::open(&shared, None).await.expect("a usable ledger");
        shared.scripted_client = Some(client);
        let (access, metrics) = (Arc::clone(&shared.access), Arc::clone(&shared.metrics));
        let app = App::new(settings, shared).expect("the gate starts");
        let mut background = vec![
            tokio::spawn(async move { access.run().await }),
            tokio::spawn(app.report_events()),
        ];
        if app.settings.gateway.rate_limit.is_none() {
            background.push(tokio::spawn(app.watch_account()));
        } else {
            // The account's keys are never fetched, so purchases must not wait for them.
            app.shared.binding.listing_failed();
        }
        let tasks = TaskTracker::new();
        let stack = app.core(tasks.clone()).expect("a core starts");
        let ops = Ops {
            readings: Arc::new(app.readings()),
            ..Ops::new(metrics, async || Ok(Vec::new()))
        };
        Running { stack, store: memory, ops, tasks, draining: shutdown.draining, background }
    }

    fn read_settings(&self) -> Settings {
        // No connection is made to it.
        let mut environment = environment_of("http://127.0.0.1:9", self.upstream.canaries());
        environment.extend(no_rate_limit(&self.settings));
        environment.extend(no_kept_videos(&self.settings));
        environment.push(("TOLLGATE_WEBHOOK_SECRET".to_owned(), WEBHOOK_SECRET.to_owned()));
        let secret = |(name, value)| (name, Zeroizing::new(value));
        let source = SettingsSource {
            file: Some(("proxy.toml", &self.settings)),
            folder: self.folder.path(),
            environment: &environment.into_iter().map(secret).collect(),
            needs_gateway_key: true,
            key_file: &|path| panic!("no key file is read here: {}", path.display()),
            check_files: &|_| Vec::new(),
        };
        Settings::read(&source).expect("the test's settings are right")
    }

    /// Stops it in an orderly way, and starts it again on the same ledger.
    pub(crate) async fn restart(&mut self) {
        let running = self.running.take().expect("it runs");
        self.drain(&running).await;
        for task in running.background {
            task.abort();
            task.await.ok();
        }
        // What else holds the ledger would keep its file locked.
        drop((running.stack, running.ops, running.tasks));
        let is_in_memory = self.settings.contains("\"memory\"");
        let memory = is_in_memory.then_some(running.store);
        self.running = Some(self.run(memory).await);
    }

    /// Begins to stop: queued purchases are refused. Calls are still answered.
    pub(crate) fn begin_to_drain(&self) {
        self.running().draining.cancel();
    }

    async fn drain(&self, running: &Running) {
        running.draining.cancel();
        running.tasks.close();
        running.tasks.wait().await;
        // Background tasks notice it, too.
        sleep(Duration::from_millis(1)).await;
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a request with a JSON body, or without a body if it is empty.
    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> PausedCall {
        let errand = self.record.books.asked(method, target, headers, body);
        let mut request = request(method, target, headers);
        if !body.is_empty() {
            request = request.header("content-length", body.len());
        }
        self.call(errand, request.body(Full::from(Bytes::from(body.to_owned()))).unwrap())
    }

    /// Sends a request whose body comes in these pieces, each after this time.
    pub(crate) fn send_slowly(
        &self,
        (method, target): (&str, &str),
        headers: &[(&str, &str)],
        pieces: impl IntoIterator<Item = (Duration, &'static str), IntoIter: Send + 'static>,
    ) -> PausedCall {
        // It is not known what the request buys.
        self.record.books.blind();
        let errand = self.record.books.asked(method, target, headers, "");
        let body = stream::iter(pieces).then(async |(pause, piece)| {
            sleep(pause).await;
            Ok::<_, io::Error>(Frame::data(Bytes::from(piece)))
        });
        self.call(errand, request(method, target, headers).body(StreamBody::new(body)).unwrap())
    }

    fn call<B>(&self, errand: Errand, request: Request<B>) -> PausedCall
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (stack, record) = (Arc::clone(&self.running().stack), Arc::clone(&self.record));
        let source = Source { peer: (Ipv4Addr::LOCALHOST, 1_024).into(), tls: None };
        let task = tokio::spawn(async move {
            let response = stack.handle(Some(source), request).await;
            read(response, &record).await
        });
        PausedCall::new(task, errand, &self.record)
    }

    /// Sends a request, and waits for its answer.
    pub(crate) async fn ask(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.send(method, target, headers, body).answer().await
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[], "").await
    }

    pub(crate) async fn post(&self, target: &str, body: &str) -> Answer {
        self.ask("POST", target, &[], body).await
    }

    /// Buys a chat with a new key and returns the answer.
    pub(crate) async fn chat(&self) -> Answer {
        self.buy("/api/v1/chat", CHAT).await
    }

    /// Buys a video with a new key and returns the answer.
    pub(crate) async fn video(&self) -> Answer {
        self.buy("/api/v1/video", VIDEO).await
    }

    async fn buy(&self, target: &str, body: &str) -> Answer {
        let key = uuid::Uuid::now_v7().to_string();
        self.ask("POST", target, &[("idempotency-key", &key)], body).await
    }

    /// Lets this time pass. All that is due in it happens at its time.
    pub(crate) async fn advance(&self, time: Duration) {
        pass(time).await;
    }

    /// Returns once all tasks wait, for the test or for a time to come. A millisecond passes.
    pub(crate) async fn settle(&self) {
        sleep(Duration::from_millis(1)).await;
    }

    /// Returns the metrics.
    pub(crate) fn metrics(&self) -> String {
        let request = Request::get("/metrics").header("host", "localhost").body(()).unwrap();
        let service = self.running().ops.service_for(Ipv4Addr::LOCALHOST.into());
        let scraping = async {
            let Ok(response) = service.oneshot(request).await;
            response.into_body().collect().await.expect("it is whole").to_bytes()
        };
        let text = scraping.now_or_never().expect("no scrape waits for a ledger in this thread");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns a figure of the metrics, by its name without `tollgate_`.
    pub(crate) fn figure(&self, name: &str) -> usize {
        let metrics = self.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("tollgate_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }
}

impl Drop for PausedGate {
    fn drop(&mut self) {
        let metrics = if std::thread::panicking() { String::new() } else { self.metrics() };
        clock::set_wall(None);
        if std::thread::panicking() {
            return;
        }
        let mut places = vec![
            ("what clients were sent".to_owned(), lock(&self.record.received).clone()),
            ("what was logged".to_owned(), self.upstream.logged()),
            ("/metrics".to_owned(), metrics.into_bytes()),
        ];
        places.extend(files_in(self.folder.path()));
        for (place, text) in &places {
            self.upstream.canaries().iter().for_each(|key| key.assert_absent(place, text));
        }
        let charged = self.upstream.charged().split_off(self.earlier);
        self.record.books.assert_balanced(&charged);
    }
}
