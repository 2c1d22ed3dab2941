//! Requests of one server wait in its fair queue for slots that other servers have. The runtime's clock and the
//! ledger's stand still, and the tests pass them.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tollgate::config::RequestLimit;
use tollgate::gateway::rate_limit::RateLimit;
use tollgate::gateway::{
    Error, Gateway, GatewayCall, GatewayReply, GatewayRequest, KeyRing, ScriptedClient,
};
use tollgate::ledger::Store;

use super::{LOCK_WAITS, blocker};
use crate::fixture::*;
use crate::moment::{PATIENCE, until};

const PERIOD: Duration = Duration::from_secs(60);
/// The period, and the thousandth by which clocks may differ.
const LIFETIME: Duration = Duration::from_millis(60_060);
const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// A server with a fair queue, and another one on the same ledger.
struct Servers {
    fixture: Fixture,
    other: Store,
    rate_limit: Arc<RateLimit>,
    /// The callers, and the kinds of their requests, as the gateway has seen them.
    seen: Arc<Mutex<Vec<String>>>,
    /// While a blocking task waits for it, the runtime's time does not run ahead by itself.
    _still: mpsc::Sender<()>,
}

impl Servers {
    /// One request a minute is allowed.
    async fn new() -> Self {
        let (still, ended) = mpsc::channel::<()>();
        // A test that hangs fails: from then on, its timeouts end.
        drop(spawn_blocking(move || ended.recv_timeout(5 * PATIENCE).is_err()));
        let fixture = Fixture::on_postgres().await;
        let other = fixture.join().await;
        let limit = RequestLimit { requests: 1, period: PERIOD };
        let log = fixture.store.clone();
        let rate_limit = RateLimit::new(log, Some(limit), CancellationToken::new());
        Self { fixture, other, rate_limit, seen: Arc::default(), _still: still }
    }

    /// Has the other server take the only slot. The gateway replies at once.
    async fn outrun(&self) {
        let slot = wanted(1);
        let taken = bounded(self.other.take_free_slot(slot)).await.expect("an answer");
        assert!(taken.is_taken);
        self.other.slot_replied(slot.id);
        // Asked after all that it has written.
        bounded(self.other.recorded_rate_limit()).await.expect("read");
    }

    fn ask(
        &self,
        caller: &str,
        call: GatewayCall,
        max_wait: Duration,
    ) -> JoinHandle<Result<GatewayReply, Error>> {
        let seen = Arc::clone(&self.seen);
        let client = ScriptedClient::new(move |attempt| {
            let request = &attempt.request;
            let name = format!("{} {}", request.caller, request.call.name());
            seen.lock().expect("a list").push(name);
            let reply = GatewayReply {
                status: StatusCode::OK,
                is_json: true,
                body: Bytes::new(),
                key: 0,
                video: None,
            };
            std::future::ready(Ok(reply))
        });
        let gateway = Gateway {
            key_ring: Arc::new(Mutex::new(KeyRing::new(1))),
            rate_limit: Arc::clone(&self.rate_limit),
            max_wait,
            metrics: Arc::default(),
            client,
        };
        let request = GatewayRequest { caller: caller.into(), ..GatewayRequest::free(call) };
        tokio::spawn(async move { gateway.send(request).await })
    }

    fn chat(&self, caller: &str) -> JoinHandle<Result<GatewayReply, Error>> {
        self.ask(caller, GatewayCall::Chat(Bytes::new()), MAX_WAIT)
    }

    /// Waits until this many requests wait, none of which may ask the ledger now.
    async fn queued(&self, count: usize) {
        let is_so =
            async || self.rate_limit.free_slots() == 0 && self.rate_limit.waiting_count() == count;
        until("they wait", is_so).await;
    }

    async fn pass(&self, time: Duration) {
        self.fixture.pass(time);
        tokio::time::advance(time).await;
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("a list").clone()
    }

    /// Passes period after period until the gateway has seen this many requests.
    async fn serve(&self, count: usize) {
        while self.seen().len() < count {
            let before = self.seen().len();
            self.pass(LIFETIME).await;
            until("the next is sent", async || self.seen().len() > before).await;
            assert_eq!(self.seen().len(), before + 1, "one in each period");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_another_server_outran_keeps_its_place() {
    let servers = Servers::new().await;
    servers.outrun().await;
    let first = servers.chat("ann");
    servers.queued(1).await;
    let (second, third) = (servers.chat("bob"), servers.chat("ann"));
    servers.queued(3).await;
    // The other server is first once more.
    servers.fixture.pass(LIFETIME);
    servers.outrun().await;
    tokio::time::advance(LIFETIME).await;
    servers.queued(3).await;
    assert_eq!(servers.seen(), [""; 0]);
    servers.serve(3).await;
    assert_eq!(servers.seen(), ["ann chat", "bob chat", "ann chat"]);
    for request in [first, second, third] {
        bounded(request).await.expect("it ends").expect("a reply");
    }
    assert_eq!(servers.rate_limit.waiting_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn requests_that_other_servers_outran_go_by_their_priority() {
    let servers = Servers::new().await;
    servers.outrun().await;
    let poll = GatewayCall::VideoStatus { request_id: "r".into(), is_watched: true };
    let poll = servers.ask("eve", poll, MAX_WAIT);
    until("it waits", async || servers.rate_limit.free_slots() == 0).await;
    let chat = servers.chat("ann");
    servers.queued(1).await;
    let billing = servers.ask("", GatewayCall::Billing, MAX_WAIT);
    servers.queued(2).await;
    servers.serve(3).await;
    assert_eq!(servers.seen(), [" billing", "ann chat", "eve status"]);
    for request in [poll, chat, billing] {
        bounded(request).await.expect("it ends").expect("a reply");
    }
}

#[tokio::test(start_paused = true)]
async fn request_gives_up_if_no_server_frees_a_slot_in_time() {
    let servers = Servers::new().await;
    servers.outrun().await;
    // That is known at once, from the reply to the other server.
    let hasty = servers.ask("ann", GatewayCall::Chat(Bytes::new()), 20 * SECOND);
    match bounded(hasty).await.expect("it ends") {
        Err(Error::NoSlot { retry_after }) => assert_eq!(retry_after, LIFETIME),
        other => panic!("{other:?}"),
    }
    // The end of a running request is not known.
    servers.pass(LIFETIME).await;
    assert!(bounded(servers.other.take_free_slot(wanted(1))).await.expect("an answer").is_taken);
    let hasty = servers.ask("ann", GatewayCall::Chat(Bytes::new()), 2 * SECOND);
    servers.queued(1).await;
    assert!(!hasty.is_finished());
    servers.pass(2 * SECOND).await;
    let outcome = bounded(hasty).await.expect("it ends");
    assert!(matches!(outcome, Err(Error::NoSlot { .. })), "{outcome:?}");
    assert_eq!((servers.seen().len(), servers.rate_limit.waiting_count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn request_gives_up_although_the_ledger_does_not_answer() {
    let servers = Servers::new().await;
    let database = servers.fixture.database();
    let blocker = blocker(&servers.fixture, "SELECT 1 FROM ledger FOR UPDATE").await;
    let hasty = servers.ask("ann", GatewayCall::Chat(Bytes::new()), 2 * SECOND);
    until("it waits for the lock", async || database.sql(LOCK_WAITS) == "1").await;
    servers.pass(2 * SECOND).await;
    let outcome = bounded(hasty).await.expect("it ends");
    assert!(matches!(outcome, Err(Error::NoSlot { .. })), "{outcome:?}");
    blocker.client.batch_execute("ROLLBACK").await.expect("unlocked");
    // The slot that it may have got is free.
    let slots = "SELECT count(*) FROM slots";
    bounded(servers.fixture.store.recorded_rate_limit()).await.expect("read");
    assert_eq!((database.sql(slots).as_str(), servers.rate_limit.free_slots()), ("0", 1));
}
