mod kept;
mod load;

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;
use tokio::time::sleep;
use tower::service_fn;

use super::*;
use crate::clock;
use crate::gateway::contract::money::Usd;
use crate::gateway::{Error, GatewayCall, GatewayReply, GatewayRequest};

/// The gateway's replies. The last one repeats. `None`: it cannot be reached.
pub(crate) type Script = Vec<Option<(u16, &'static str)>>;

const RUNNING: Option<(u16, &str)> = Some((200, r#"{"status":"running"}"#));
const DONE: Option<(u16, &str)> = Some((200, r#"{"status":"completed","url":"https://x/a"}"#));
const RENEWED: Option<(u16, &str)> = Some((200, r#"{"status":"completed","url":"https://x/b"}"#));
const NO_ADDRESS: Option<(u16, &str)> = Some((200, r#"{"status":"completed"}"#));
const FAILED: Option<(u16, &str)> = Some((200, r#"{"status":"failed"}"#));

/// Jobs before a gateway that is scripted.
pub(crate) struct Fake {
    pub(crate) jobs: JobRegistry,
    pub(crate) stop: CancellationToken,
    book: Store,
    asked: Arc<Mutex<Vec<GatewayRequest>>>,
    polls: Arc<AtomicU64>,
}

impl Fake {
    pub(crate) fn new(script: Script) -> Self {
        Self::on(Store::in_memory(Arc::new(clock::wall)), script, Duration::ZERO)
    }

    fn on(book: Store, script: Script, takes: Duration) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (polls, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let (heard, count) = (Arc::clone(&asked), Arc::clone(&polls));
        let gateway = service_fn(move |ask: GatewayRequest| {
            heard.lock().unwrap().push(ask);
            count.fetch_add(1, Ordering::SeqCst);
            let mut script = script.lock().unwrap();
            let next = if script.len() > 1 { script.pop_front() } else { script.front().copied() };
            let reply = match next.flatten() {
                Some((status, body)) => Ok(GatewayReply {
                    status: StatusCode::from_u16(status).unwrap(),
                    is_json: true,
                    body: Bytes::from_static(body.as_bytes()),
                    key: 0,
                    video: None,
                }),
                None => Err(Error::ClosedBeforeSend),
            };
            async move {
                sleep(takes).await;
                reply
            }
        });
        let jobs = JobRegistry::new(book.clone(), Handle::current(), stop.clone());
        jobs.reconfigure(PollerSetup {
            gateway: GatewayService::new(gateway),
            keys: Arc::from([KeyId([1; 8]), KeyId([2; 8])]),
            status_words: words("completed", "failed"),
            trusts_failures: false,
            is_public: false,
            kept: None,
        });
        Self { jobs, stop, book, asked, polls }
    }

    /// Accepts a job as a purchase does.
    pub(crate) async fn accept(&self, request_id: &str) {
        let job = job(request_id);
        self.book.insert_job(&job).await.unwrap();
        self.jobs.track(job);
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::SeqCst)
    }

    /// Applies settings with these words, as a reload does.
    fn reload(&self, status_words: JobsConfig, is_public: bool) {
        let PollerSetup { gateway, keys, .. } = &*self.jobs.0.setup.load_full().unwrap();
        self.jobs.reconfigure(PollerSetup {
            gateway: gateway.clone(),
            keys: Arc::clone(keys),
            status_words,
            trusts_failures: false,
            is_public,
            kept: None,
        });
    }

    async fn state(&self, request_id: &str) -> JobState {
        self.jobs.status(request_id, &caller()).await.unwrap().state
    }

    async fn stored(&self, request_id: &str) -> Job {
        self.book.find_job(request_id.into()).await.unwrap().unwrap()
    }
}

fn words(finished: &str, failed: &str) -> JobsConfig {
    JobsConfig {
        finished: vec![finished.to_owned()],
        failed: vec![failed.to_owned()],
        result: vec!["/url".to_owned()],
        keep_prompts: false,
    }
}

pub(crate) fn caller() -> Caller {
    Caller::Address([192, 0, 2, 1].into())
}

fn job(request_id: &str) -> Job {
    Job {
        request_id: request_id.into(),
        purchase: None,
        owner: caller().to_string().into(),
        key: Some(KeyId([2; 8])),
        model: "video-a-2".into(),
        price: Usd::dollars(3),
        at: clock::wall(),
        prompt: None,
        latest_update: None,
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn unknown_job_is_not_found_without_gateway_request() {
    let fake = Fake::new(vec![RUNNING]);
    let problem = fake.jobs.status("r", &caller()).await.unwrap_err();
    assert_eq!(problem.kind().code, "job_not_found");
    sleep(secs(600)).await;
    assert_eq!(fake.polls(), 0);
}

#[tokio::test(start_paused = true)]
async fn end_of_job_is_stored_before_its_purchase_is_settled() {
    let fake = Fake::new(vec![DONE]);
    // The store could not take the end of its purchase, which is retried.
    fake.jobs.track(job("r"));
    sleep(secs(60)).await;
    assert_eq!(fake.polls(), 1);
    assert_eq!(fake.stored("r").await.latest_update.expect("it is kept").state, JobState::Finished);
    fake.book.insert_job(&job("r")).await.unwrap();
    assert!(!fake.stored("r").await.is_open(), "what is settled later opens it no more");
}

#[tokio::test(start_paused = true)]
async fn five_hundred_watchers_cost_one_poll_per_interval() {
    let fake = Fake::on(
        Store::in_memory(Arc::new(clock::wall)),
        vec![RUNNING],
        Duration::from_millis(200),
    );
    fake.accept("r").await;
    let ask = || async { fake.jobs.status("r", &caller()).await.unwrap().body };
    let bodies = join_all((0..500).map(|_| ask())).await;
    assert!(bodies.iter().all(|body| body == r#"{"status":"running"}"#));
    assert_eq!(fake.polls(), 1);
    for _ in 0..60 {
        sleep(secs(1)).await;
        join_all((0..500).map(|_| ask())).await;
    }
    assert!((12..=13).contains(&fake.polls()), "{} polls in a minute", fake.polls());
}

#[tokio::test(start_paused = true)]
async fn first_poll_comes_within_two_seconds_or_at_once_if_watched() {
    let fake = Fake::new(vec![RUNNING]);
    let start = clock::now();
    fake.accept("a").await;
    sleep(secs(2)).await;
    assert_eq!(fake.polls(), 1);
    fake.accept("b").await;
    fake.jobs.status("b", &caller()).await.unwrap();
    assert_eq!((fake.polls(), clock::now() - start), (2, secs(2)));
}

#[tokio::test(start_paused = true)]
async fn restart_resumes_open_jobs_only() {
    let first = Fake::new(vec![DONE]);
    first.accept("ended").await;
    sleep(secs(2)).await;
    first.stop.cancel();
    first.book.insert_job(&job("open")).await.unwrap();
    let second = Fake::on(first.book.clone(), vec![RUNNING, DONE], Duration::ZERO);
    sleep(secs(2)).await;
    assert_eq!((first.polls(), second.polls()), (1, 1));
    sleep(secs(60)).await;
    assert!(!second.stored("open").await.is_open());
    let polls = second.polls();
    sleep(secs(3_600)).await;
    assert_eq!(second.polls(), polls);
    for id in ["open", "ended"] {
        assert_eq!(second.state(id).await, JobState::Finished);
    }
}

#[tokio::test(start_paused = true)]
async fn resumed_jobs_are_polled_one_by_one_or_at_once_if_watched() {
    let book = Store::in_memory(Arc::new(clock::wall));
    for number in 0..200 {
        book.insert_job(&job(&format!("r-{number}"))).await.unwrap();
    }
    let fake = Fake::on(book.clone(), vec![RUNNING], Duration::ZERO);
    sleep(Duration::from_millis(9_500)).await;
    assert_eq!(fake.polls(), 5, "one in two seconds");
    fake.jobs.status("r-150", &caller()).await.unwrap();
    assert_eq!(fake.polls(), 6);
    sleep(secs(300)).await;
    let asked: HashSet<_> = fake.asked.lock().unwrap().iter().map(name).collect();
    assert_eq!(asked.len(), 200, "all within five minutes");
}

fn name(ask: &GatewayRequest) -> Box<str> {
    let GatewayCall::VideoStatus { request_id, .. } = &ask.call else {
        panic!("no poll: {:?}", ask.call)
    };
    request_id.clone()
}

#[tokio::test(start_paused = true)]
async fn job_is_polled_with_its_key_for_its_owner() {
    let fake = Fake::new(vec![RUNNING]);
    fake.accept("r").await;
    sleep(secs(2)).await;
    let asked = fake.asked.lock().unwrap();
    assert_eq!((asked[0].preferred_key, &*asked[0].caller), (Some(1), "192.0.2.1"));
}

#[tokio::test(start_paused = true)]
async fn failed_poll_keeps_last_status_and_never_ends_job() {
    let fake = Fake::new(vec![RUNNING, None, Some((404, "{}")), Some((403, "{}")), None, DONE]);
    fake.accept("r").await;
    let word = fake.jobs.status("r", &caller()).await.unwrap();
    for _ in 0..25 {
        assert_eq!(fake.jobs.status("r", &caller()).await.unwrap(), word);
        sleep(secs(1)).await;
    }
    assert!(fake.polls() >= 3);
    sleep(secs(900)).await;
    assert_eq!(fake.jobs.status("r", &caller()).await.unwrap().state, JobState::Finished);
}

#[tokio::test(start_paused = true)]
async fn status_request_times_out_without_first_status() {
    let fake = Fake::new(vec![Some((404, "{}"))]);
    fake.accept("r").await;
    let problem = fake.jobs.status("r", &caller()).await.unwrap_err();
    assert_eq!(problem.kind().code, "gateway_unreachable");

    let slow = Fake::on(fake.book.clone(), vec![RUNNING], secs(60));
    let start = clock::now();
    let problem = slow.jobs.status("r", &caller()).await.unwrap_err();
    assert_eq!((problem.kind().code, clock::now() - start), ("gateway_unreachable", secs(10)));
    let asks = slow.jobs.clone();
    let asking = tokio::spawn(async move { asks.status("r", &caller()).await });
    sleep(secs(1)).await;
    slow.stop.cancel();
    assert_eq!(asking.await.unwrap().unwrap_err().kind().code, "draining");
}

#[tokio::test(start_paused = true)]
async fn unknown_state_is_passed_raw_and_polled_ever_more_rarely() {
    let fake = Fake::new(vec![Some((200, r#"{"phase":"imploded","n":1.50}"#))]);
    fake.accept("r").await;
    let word = fake.jobs.status("r", &caller()).await.unwrap();
    assert_eq!(
        (&*word.body, word.state),
        (&br#"{"phase":"imploded","n":1.50}"#[..], JobState::Open)
    );
    sleep(secs(86_400)).await;
    assert!(fake.stored("r").await.is_open());
    assert!(fake.polls() < 330, "{} polls in a day", fake.polls());
}

#[tokio::test(start_paused = true)]
async fn ended_job_is_dropped_and_watchers_keep_last_status() {
    let fake = Fake::new(vec![DONE]);
    fake.accept("alone").await;
    fake.accept("watched").await;
    let watching = fake.jobs.subscribe("watched", &caller()).await.unwrap();
    sleep(secs(2)).await;
    assert!(watching.has_ended());
    assert_eq!(fake.polls(), 2);
    assert_eq!(fake.state("watched").await, JobState::Finished);
    sleep(secs(61)).await;
    assert!(lock(&fake.jobs.0.polled).is_empty());
    assert!(fake.jobs.0.tasks.is_empty());
    let kept = fake.jobs.kept_status("watched", &caller()).await.unwrap();
    assert_eq!(kept.state, JobState::Finished, "the store remembers it");
    sleep(secs(600)).await;
    assert_eq!(fake.polls(), 2);
}

#[tokio::test(start_paused = true)]
async fn job_without_an_address_is_polled_on_more_slowly() {
    let fake = Fake::new(vec![NO_ADDRESS, NO_ADDRESS, NO_ADDRESS, DONE]);
    fake.accept("r").await;
    assert_eq!(fake.state("r").await, JobState::Open);
    sleep(secs(60)).await;
    assert_eq!(fake.state("r").await, JobState::Finished);

    let never = Fake::new(vec![NO_ADDRESS]);
    never.accept("r").await;
    let _watching = never.jobs.subscribe("r", &caller()).await.unwrap();
    sleep(secs(3_600)).await;
    assert_eq!(never.state("r").await, JobState::Open);
    assert!((100..=130).contains(&never.polls()), "{} polls in an hour", never.polls());
}

#[tokio::test(start_paused = true)]
async fn failure_counts_once_it_is_reported_a_minute_apart() {
    let fake = Fake::new(vec![FAILED]);
    fake.accept("r").await;
    for _ in 0..60 {
        assert_eq!(fake.state("r").await, JobState::Open);
        sleep(secs(1)).await;
    }
    sleep(secs(60)).await;
    assert_eq!(fake.state("r").await, JobState::Failed);
    assert_eq!(fake.stored("r").await.latest_update.unwrap().state, JobState::Failed);

    // An error for a moment is no failure, however often it comes.
    let passing = Fake::new(vec![FAILED, RUNNING, FAILED, FAILED, RUNNING, FAILED, DONE]);
    passing.accept("r").await;
    while passing.state("r").await == JobState::Open {
        sleep(secs(1)).await;
    }
    assert_eq!((passing.state("r").await, passing.polls()), (JobState::Finished, 7));
}

#[tokio::test(start_paused = true)]
async fn ended_job_is_polled_once_a_minute_for_those_who_ask() {
    let fake = Fake::new(vec![DONE, RENEWED, RUNNING]);
    fake.accept("r").await;
    sleep(secs(2)).await;
    let first = fake.stored("r").await.latest_update.unwrap();
    let address = |status: &StatusUpdate| status_url(&status.body);
    for _ in 0..50 {
        let status = fake.jobs.status("r", &caller()).await.unwrap();
        assert_eq!(address(&status), "https://x/a");
        sleep(secs(1)).await;
    }
    assert_eq!(fake.polls(), 1);
    sleep(secs(60)).await;
    for turn in 0..50 {
        let status = fake.jobs.status("r", &caller()).await.unwrap();
        let expected = if turn < 2 { "https://x/a" } else { "https://x/b" };
        assert!(turn == 1 || address(&status) == expected, "{turn}: {status:?}");
        assert_eq!((status.state, status.at), (JobState::Finished, first.at));
        sleep(secs(1)).await;
    }
    assert_eq!(fake.polls(), 2);
    let renewed = fake.stored("r").await.latest_update.unwrap();
    assert_eq!((address(&renewed), renewed.at), ("https://x/b".to_owned(), first.at));
    // It is not taken back.
    sleep(secs(60)).await;
    fake.state("r").await;
    sleep(secs(10)).await;
    assert_eq!((fake.polls(), fake.state("r").await), (3, JobState::Finished));
}

fn status_url(body: &[u8]) -> String {
    words("completed", "failed").result_url(body).expect("an address")
}

#[tokio::test(start_paused = true)]
async fn failed_job_that_finishes_after_all_is_finished() {
    let fake = Fake::new(vec![FAILED]);
    fake.accept("r").await;
    sleep(secs(120)).await;
    assert_eq!(fake.stored("r").await.latest_update.unwrap().state, JobState::Failed);
    let later = Fake::on(fake.book.clone(), vec![DONE], Duration::ZERO);
    assert_eq!(later.state("r").await, JobState::Failed);
    let status = later.jobs.polled_status("r", &caller()).await.unwrap();
    assert_eq!((status.state, later.polls()), (JobState::Finished, 1));
    assert!(later.jobs.polled_status("r", &caller()).await.is_some());
    assert_eq!(later.polls(), 1, "once a minute");
    assert_eq!(later.stored("r").await.latest_update.unwrap().state, JobState::Finished);
}

#[tokio::test(start_paused = true)]
async fn reload_reads_kept_statuses_again() {
    let fake = Fake::new(vec![Some((200, r#"{"status":"fertig","url":"https://x/a"}"#))]);
    fake.accept("r").await;
    sleep(secs(10)).await;
    assert!(fake.stored("r").await.is_open());
    let polls = fake.polls();
    fake.reload(words("fertig", "failed"), false);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(fake.stored("r").await.latest_update.unwrap().state, JobState::Finished);
    assert_eq!(fake.polls(), polls);

    // The word never meant a failure.
    let fake = Fake::new(vec![FAILED]);
    fake.accept("r").await;
    sleep(secs(120)).await;
    assert_eq!(fake.state("r").await, JobState::Failed);
    sleep(secs(120)).await;
    fake.reload(words("completed", "error"), false);
    assert!(fake.jobs.list(&caller()).await.unwrap()[0].is_open());
    let watching = fake.jobs.subscribe("r", &caller()).await.unwrap();
    let polls = fake.polls();
    sleep(secs(60)).await;
    assert!(!watching.has_ended() && fake.polls() > polls + 5);
}

#[tokio::test(start_paused = true)]
async fn jobs_are_listed_with_latest_status_for_identified_callers_only() {
    let fake = Fake::new(vec![RUNNING, DONE]);
    fake.accept("a").await;
    fake.accept("b").await;
    let own = fake.jobs.list(&caller()).await.unwrap();
    assert_eq!(own.iter().map(|job| &*job.request_id).collect::<Vec<_>>(), ["b", "a"]);
    assert!(own.iter().all(Job::is_open));
    sleep(secs(2)).await;
    let own = fake.jobs.list(&caller()).await.unwrap();
    assert!(!own[0].is_open() && own.iter().all(|job| job.latest_update.is_some()));
    let other = Caller::Address([192, 0, 2, 2].into());
    assert_eq!(fake.jobs.list(&other).await.unwrap(), []);

    fake.reload(words("completed", "failed"), true);
    let refused = fake.jobs.list(&caller()).await.unwrap_err();
    assert_eq!(refused.kind().code, "invalid_request");
    let body = String::from_utf8(refused.to_json("").to_vec()).unwrap();
    assert!(body.contains("public and an IP address does not identify a caller"), "{body}");
    fake.jobs.status("a", &other).await.expect("who knows its name may see it");
}
