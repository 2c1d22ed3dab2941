//! Tests of waiting for a slot, with paused time.

use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::Either;
use http::StatusCode;
use tokio::time::{sleep, timeout};

use super::*;
use crate::gateway::{
    Authorization, BeforeSend, GatewayReply, GatewayRequest, KeyRing, SendAttempt,
};
use crate::ledger::{HookFuture, ReserveError, StoreHook, StoreOp, Unavailable};

mod limits;
mod polls;

const SECOND: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(20);

fn setting(requests: usize, seconds: u64) -> Option<RequestLimit> {
    Some(RequestLimit { requests, period: Duration::from_secs(seconds) })
}

fn memory() -> Store {
    Store::in_memory(Arc::new(clock::wall))
}

fn rate_limit(requests: usize, seconds: u64) -> Arc<RateLimit> {
    RateLimit::new(memory(), setting(requests, seconds), CancellationToken::new())
}

fn chat(caller: &str) -> Attempt {
    let request = GatewayRequest {
        caller: caller.into(),
        ..GatewayRequest::free(GatewayCall::Chat(Bytes::new()))
    };
    Attempt { request, key: 0, since: clock::now() }
}

/// A limit that no test reaches.
pub(crate) fn wide() -> Arc<RateLimit> {
    wide_over(memory())
}

pub(crate) fn wide_over(log: Store) -> Arc<RateLimit> {
    RateLimit::new(log, setting(1_000, 1), CancellationToken::new())
}

/// Sends an attempt with a single key.
pub(crate) async fn send(
    rate_limit: &Arc<RateLimit>,
    max_wait: Duration,
    transport: impl SendAttempt,
    attempt: Attempt,
) -> Result<GatewayReply, Error> {
    let (ring, rate_limit) = (Arc::new(Mutex::new(KeyRing::new(1))), Arc::clone(rate_limit));
    let metrics = Arc::default();
    crate::gateway::Gateway { key_ring: ring, rate_limit, max_wait, metrics, client: transport }
        .attempt(attempt)
        .await
}

fn reply() -> GatewayReply {
    GatewayReply { status: StatusCode::OK, is_json: true, body: Bytes::new(), key: 0, video: None }
}

/// A gateway that replies after `delay`, and counts its requests.
#[derive(Clone)]
struct Gateway {
    requests: Arc<AtomicUsize>,
    answers: Arc<dyn Fn(usize) -> Result<GatewayReply, Error> + Send + Sync>,
    delay: Duration,
}

impl Gateway {
    fn new(answers: impl Fn(usize) -> Result<GatewayReply, Error> + Send + Sync + 'static) -> Self {
        Self { requests: Arc::default(), answers: Arc::new(answers), delay: Duration::ZERO }
    }

    fn slow(delay: Duration) -> Self {
        Self { delay, ..Self::new(|_| Ok(reply())) }
    }

    fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn request(
        &self,
        rate_limit: &Arc<RateLimit>,
        attempt: Attempt,
    ) -> Result<GatewayReply, Error> {
        let gateway = self.clone();
        let transport = move |_: Attempt| {
            let gateway = gateway.clone();
            async move {
                let number = gateway.requests.fetch_add(1, Ordering::SeqCst);
                sleep(gateway.delay).await;
                (gateway.answers)(number)
            }
        };
        send(rate_limit, MAX_WAIT, transport, attempt).await
    }
}

fn retry_after(outcome: Result<GatewayReply, Error>) -> Duration {
    match outcome {
        Err(Error::NoSlot { retry_after }) => retry_after,
        Err(Error::Throttled { retry_after: Some(retry_after) }) => retry_after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_429_gives_up_after_max_wait() {
    for (reported, calls, seconds, honest) in [
        (Some(60), 1, 0, 60),
        (Some(6), 4, 18, 6),
        (None, 4, 14, 16),
        // It must not spin.
        (Some(0), 21, 20, 1),
        (Some(1_000_000_000), 1, 0, 3_600),
    ] {
        let retry = reported.map(Duration::from_secs);
        let gateway = Gateway::new(move |_| Err(Error::Throttled { retry_after: retry }));
        let rate_limit = rate_limit(100, 60);
        let start = clock::now();
        let outcome = gateway.request(&rate_limit, chat("a")).await;
        let took = clock::now() - start;
        assert_eq!(gateway.request_count(), calls, "{reported:?}");
        assert!(took >= seconds * SECOND && took < seconds * SECOND + SECOND / 2, "{took:?}");
        let told_back = retry_after(outcome);
        let rounded = u64::try_from(told_back.as_millis().div_ceil(1_000)).unwrap();
        assert_eq!(rounded, honest, "{reported:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn any_other_reply_resets_wait_after_429() {
    let gateway = Gateway::new(|number| match number % 2 {
        0 => Err(Error::Throttled { retry_after: None }),
        _ => Ok(reply()),
    });
    let rate_limit = rate_limit(100, 60);
    for _ in 0..3 {
        let start = clock::now();
        gateway.request(&rate_limit, chat("a")).await.unwrap();
        assert_eq!((clock::now() - start).as_secs(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn after_429_same_request_goes_first_and_others_wait() {
    let gateway = Gateway::new(|number| match number {
        0 => Err(Error::Throttled { retry_after: Some(3 * SECOND) }),
        _ => Ok(reply()),
    });
    let rate_limit = rate_limit(2, 1);
    let start = clock::now();
    let first = gateway.request(&rate_limit, chat("a"));
    let second = async {
        sleep(SECOND).await;
        gateway.request(&rate_limit, chat("b")).await.map(|_| clock::now())
    };
    let (first, second) = tokio::join!(first, second);
    first.unwrap();
    assert!(second.unwrap() - start >= 3 * SECOND);
    assert_eq!(gateway.request_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn request_without_slot_in_time_fails_at_once_and_its_retry_succeeds() {
    let rate_limit = rate_limit(2, 60);
    let gateway = Gateway::new(|_| Ok(reply()));
    let start = clock::now();
    for _ in 0..2 {
        gateway.request(&rate_limit, chat("a")).await.unwrap();
    }
    let wait = retry_after(gateway.request(&rate_limit, chat("b")).await);
    assert_eq!((gateway.request_count(), clock::now()), (2, start));
    assert_eq!(rate_limit.expected_wait(), wait);
    sleep(wait).await;
    gateway.request(&rate_limit, chat("b")).await.unwrap();
    assert_eq!(rate_limit.waiting_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_request_fails_within_max_wait_and_its_retry_succeeds() {
    // One place every nine seconds; two others are before the last.
    let rate_limit = rate_limit(1, 9);
    let gateway = Gateway::new(|_| Ok(reply()));
    gateway.request(&rate_limit, chat("a")).await.unwrap();
    let start = clock::now();
    let others = ["b", "c"].map(|caller| gateway.request(&rate_limit, chat(caller)));
    let last = async {
        sleep(SECOND / 10).await;
        let outcome = gateway.request(&rate_limit, chat("d")).await;
        (retry_after(outcome), clock::now() - start)
    };
    let ((wait, took), others) = tokio::join!(last, futures_util::future::join_all(others));
    assert!(others.iter().all(Result::is_ok), "{others:?}");
    assert!(took > 18 * SECOND && took <= MAX_WAIT, "{took:?}");
    sleep(wait).await;
    gateway.request(&rate_limit, chat("d")).await.unwrap();
}

struct Leaver(Duration);

impl BeforeSend for Leaver {
    fn authorize(&self) -> Authorization<'_> {
        Either::Left(ready(Ok(())))
    }

    fn cancelled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(sleep(self.0))
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_purchase_leaves_queue() {
    let rate_limit = rate_limit(1, 15);
    let gateway = Gateway::new(|_| Ok(reply()));
    gateway.request(&rate_limit, chat("a")).await.unwrap();
    let mut attempt = chat("b");
    attempt.request.before_send = Some(Arc::new(Leaver(3 * SECOND)));
    let start = clock::now();
    let outcome = gateway.request(&rate_limit, attempt).await;
    assert!(matches!(outcome, Err(Error::Aborted(Abort::Cancelled))), "{outcome:?}");
    assert_eq!((clock::now() - start, gateway.request_count()), (3 * SECOND, 1));
    assert_eq!(rate_limit.waiting_count(), 0);
    gateway.request(&rate_limit, chat("c")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_rejects_waiting_requests_and_keeps_sent_ones() {
    let shutdown = CancellationToken::new();
    let rate_limit = RateLimit::new(memory(), setting(1, 5), shutdown.clone());
    let gateway = Gateway::slow(4 * SECOND);
    let sent = gateway.request(&rate_limit, chat("a"));
    let waits = async {
        tokio::task::yield_now().await;
        gateway.request(&rate_limit, chat("b")).await
    };
    let stop = async {
        sleep(SECOND).await;
        shutdown.cancel();
    };
    let (sent, waits, ()) = tokio::join!(sent, waits, stop);
    sent.unwrap();
    assert!(matches!(waits, Err(Error::Draining)), "{waits:?}");
    let problem = Error::Draining.purchase_problem();
    assert_eq!(problem.kind().code, "draining");
    assert_eq!(gateway.request_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn unrecorded_request_is_not_sent_and_takes_no_slot() {
    let log = Store::unusable("no disk");
    let rate_limit = RateLimit::new(log, setting(1, 60), CancellationToken::new());
    rate_limit.restore().await;
    let gateway = Gateway::new(|_| Ok(reply()));
    for _ in 0..3 {
        let outcome = gateway.request(&rate_limit, chat("a")).await;
        assert!(matches!(outcome, Err(Error::Aborted(Abort::Unrecorded))), "{outcome:?}");
    }
    assert_eq!((gateway.request_count(), rate_limit.free_slots()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn only_requests_that_may_have_been_sent_take_slots() {
    for (error, free) in [
        (Error::ClosedBeforeSend, 1),
        (Error::Unreachable(std::io::ErrorKind::ConnectionRefused.into()), 1),
        (Error::Aborted(Abort::Cancelled), 1),
        (Error::Timeout(SECOND), 0),
        (Error::Status(StatusCode::BAD_GATEWAY), 0),
        (Error::KeyRejected { key: 0 }, 0),
    ] {
        let log = memory();
        let rate_limit = RateLimit::new(log.clone(), setting(1, 60), CancellationToken::new());
        let error = Mutex::new(Some(error));
        let gateway = Gateway::new(move |_| Err(error.lock().unwrap().take().unwrap()));
        gateway.request(&rate_limit, chat("a")).await.unwrap_err();
        let logged = log.recent_replies(MAX_PERIOD).await.unwrap().len();
        assert_eq!((rate_limit.free_slots(), logged), (free, 1 - free));
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_request_occupies_slot_and_dropped_waiter_does_not() {
    let rate_limit = rate_limit(1, 10);
    let gateway = Gateway::slow(60 * SECOND);
    let sent = timeout(3 * SECOND, gateway.request(&rate_limit, chat("a")));
    sent.await.expect_err("it is slow");
    assert_eq!(rate_limit.free_slots(), 0);
    let waits = timeout(SECOND, gateway.request(&rate_limit, chat("b")));
    waits.await.expect_err("there is no place");
    assert_eq!(rate_limit.waiting_count(), 0);
    sleep(9 * SECOND + SECOND / 10).await;
    assert_eq!((rate_limit.free_slots(), gateway.request_count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn each_key_takes_its_own_slot() {
    let rate_limit = rate_limit(2, 60);
    let client = |attempt: Attempt| async move {
        Err::<GatewayReply, _>(Error::KeyRejected { key: attempt.key })
    };
    let (key_ring, max_wait) = (Arc::new(Mutex::new(KeyRing::new(3))), MAX_WAIT);
    let gateway = crate::gateway::Gateway {
        key_ring,
        rate_limit: Arc::clone(&rate_limit),
        max_wait,
        metrics: Arc::default(),
        client,
    };
    let outcome = gateway.send(chat("a").request).await;
    assert!(matches!(outcome, Err(Error::NoSlot { .. })), "{outcome:?}");
    assert_eq!(rate_limit.free_slots(), 0);
}

#[tokio::test]
async fn restart_restores_log_even_if_clock_was_set_back() {
    let log = memory();
    let wall = clock::wall();
    for (ago, ahead) in [(90, 0), (50, 0), (10, 0), (0, 3_000)] {
        let place = SlotId::generate();
        let at = wall - Duration::from_secs(ago) + Duration::from_secs(ahead);
        clock::set_wall(Some(at));
        log.take_slot(place).await.unwrap();
        log.slot_replied(place);
    }
    clock::set_wall(Some(wall));
    let rate_limit = RateLimit::new(log, setting(10, 60), CancellationToken::new());
    rate_limit.restore().await;
    assert_eq!(rate_limit.free_slots(), 7);
}

/// A ledger that is slow to tell when replies came, or to record slots.
struct SlowLog(Duration);

impl StoreHook for SlowLog {
    fn before<'a>(&'a self, verb: StoreOp<'a>) -> HookFuture<'a, Result<(), Unavailable>> {
        let is_asked = matches!(verb, StoreOp::Other("recent_replies") | StoreOp::TakeSlot(_));
        Box::pin(async move {
            if is_asked {
                sleep(self.0).await;
            }
            Ok(())
        })
    }

    fn after<'a>(&'a self, _: StoreOp<'a>, _: &'a Result<(), ReserveError>) -> HookFuture<'a, ()> {
        Box::pin(ready(()))
    }

    fn allows(&self, _: StoreOp<'_>) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn slow_ledger_frees_no_slot_early_after_a_restart() {
    let log = memory();
    clock::set_wall(Some(clock::wall()));
    let place = SlotId::generate();
    log.take_slot(place).await.unwrap();
    log.slot_replied(place);
    let log = log.with_hook(Arc::new(SlowLog(5 * SECOND)));
    let rate_limit = RateLimit::new(log, setting(10, 60), CancellationToken::new());
    rate_limit.restore().await;
    sleep(52 * SECOND).await;
    assert_eq!(rate_limit.free_slots(), 9, "the reply came 57 s ago");
    sleep(4 * SECOND).await;
    assert_eq!(rate_limit.free_slots(), 10);
}

/// Only servers that share a ledger ask it in turn.
#[tokio::test(start_paused = true)]
async fn requests_record_their_slots_at_once_in_a_file() {
    let log = memory().with_hook(Arc::new(SlowLog(5 * SECOND)));
    let rate_limit = RateLimit::new(log, setting(10, 60), CancellationToken::new());
    let gateway = Gateway::new(|_| Ok(reply()));
    let start = clock::now();
    let all = (0..10).map(|_| gateway.request(&rate_limit, chat("a")));
    for outcome in futures_util::future::join_all(all).await {
        outcome.unwrap();
    }
    assert_eq!(clock::now() - start, 5 * SECOND);
}

/// With real time: cores do not share a runtime.
#[test]
fn cores_share_one_rate_limit() {
    const LIMIT: usize = 10;
    let rate_limit = rate_limit(LIMIT, 1);
    // The gateway takes its times, as a core may see its reply much later.
    let times = Arc::new(Mutex::new(Vec::new()));
    let replied = Arc::clone(&times);
    let delay = Duration::from_millis(5);
    let gateway = Gateway {
        delay,
        ..Gateway::new(move |_| {
            lock(&replied).push(clock::now());
            Ok(reply())
        })
    };
    std::thread::scope(|scope| {
        for core in 0..3 {
            let (rate_limit, gateway) = (&rate_limit, &gateway);
            scope.spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let caller = core.to_string();
                    let asked = (0..10).map(|_| async {
                        gateway.request(rate_limit, chat(&caller)).await.unwrap();
                    });
                    futures_util::future::join_all(asked).await;
                });
            });
        }
    });
    let mut times = lock(&times).clone();
    assert_eq!((times.len(), gateway.request_count()), (30, 30));
    times.sort_unstable();
    for pair in times.windows(LIMIT + 1) {
        assert!(pair[LIMIT] - pair[0] >= SECOND, "{pair:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_dropped_during_grant_returns_slot_once() {
    let rate_limit = rate_limit(2, 60);
    let sleeper = Gateway::slow(50 * SECOND);
    let (one, two) =
        (sleeper.request(&rate_limit, chat("a")), sleeper.request(&rate_limit, chat("b")));
    let leaving = async {
        sleep(SECOND).await;
        let (waiting, granted) = rate_limit.enqueue(&chat("c"), false, None);
        // Its future is being dropped on one core while another one grants it a slot.
        drop(granted);
        let more = RequestLimit { requests: 3, period: 60 * SECOND };
        rate_limit.update(|state, _| state.scheduler.set_limit(more));
        drop(waiting);
        assert_eq!(rate_limit.free_slots(), 1, "two are under way, of three");
    };
    tokio::join!(async { one.await.map(drop) }, async { two.await.map(drop) }, leaving).2
}

#[tokio::test(start_paused = true)]
async fn slot_granted_at_last_moment_is_used() {
    let rate_limit = rate_limit(1, 60);
    let sleeper = Gateway::slow(50 * SECOND);
    let late = async {
        sleep(SECOND).await;
        let (mut waiting, mut granted) = rate_limit.enqueue(&chat("b"), false, None);
        // It looked, saw nothing, and another core grants it a slot before it gives up.
        granted.try_recv().expect_err("no slot is free yet");
        let more = RequestLimit { requests: 2, period: 60 * SECOND };
        rate_limit.update(|state, _| state.scheduler.set_limit(more));
        waiting.next_wake(clock::now()).expect("it looks once more");
        granted.try_recv().expect("and sees its slot");
        drop(waiting);
        assert_eq!(rate_limit.free_slots(), 1, "nothing of it is lost");
    };
    tokio::join!(async { sleeper.request(&rate_limit, chat("a")).await.map(drop) }, late).1
}
