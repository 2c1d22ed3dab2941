//! Simulates hours of traffic: purchases, watched jobs and unwatched jobs share one rate limit.
//!
//! The real rate limiter and the real pollers run on paused time, before a gateway that counts each
//! request at a random moment between its slot and its reply.

use std::net::Ipv4Addr;

use super::*;
use crate::config;
use crate::gateway::rate_limit::RateLimit;
use crate::gateway::rate_limit::tests::send;
use crate::gateway::{Attempt, Error, GatewayCall, GatewayReply, GatewayRequest};

const LIMIT: usize = 60;
const PERIOD: Duration = Duration::from_secs(60);
const MAX_WAIT: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// A SplitMix64 generator: one seed is one course of events.
struct Dice(Mutex<u64>);

#[expect(clippy::float_arithmetic, reason = "a Poisson process needs a logarithm")]
impl Dice {
    fn below(&self, bound: Duration) -> Duration {
        bound.mul_f64(self.roll())
    }

    /// Returns the time until the next event of a Poisson process with this mean gap.
    fn gap(&self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.roll()).ln())
    }

    fn roll(&self) -> f64 {
        let mut state = self.0.lock().unwrap();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        f64::from(u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap()) / 4_294_967_296.0
    }
}

/// What the gateway and its clients saw.
#[derive(Default)]
struct Seen {
    arrivals: Vec<Instant>,
    polls: Vec<(Box<str>, Instant)>,
    /// How long each chat waited for its slot.
    waits: Vec<Duration>,
    refused: usize,
    /// How long after its end each finished video was shown.
    shown: Vec<Duration>,
}

struct World {
    start: Instant,
    dice: Dice,
    seen: Mutex<Seen>,
    /// When each video is finished.
    ends: Mutex<HashMap<Box<str>, Instant>>,
}

struct Simulation {
    world: Arc<World>,
    gateway: GatewayService,
    jobs: JobRegistry,
    book: Store,
    stop: CancellationToken,
}

type Instant = clock::Instant;

impl World {
    /// Counts a request as the gateway does, and answers it.
    async fn answer(&self, attempt: Attempt) -> Result<GatewayReply, Error> {
        let granted = clock::now();
        let takes = match attempt.request.call.is_purchase() {
            true => SECOND,
            false => SECOND / 10,
        };
        sleep(self.dice.below(takes)).await;
        let now = clock::now();
        let body = {
            let mut seen = self.seen.lock().unwrap();
            seen.arrivals.push(now);
            match &attempt.request.call {
                GatewayCall::VideoStatus { request_id, .. } => {
                    seen.polls.push((request_id.clone(), now));
                    let ends = self.ends.lock().unwrap();
                    match ends.get(request_id).is_some_and(|end| *end <= now) {
                        true => r#"{"status":"completed","url":"https://x/a"}"#,
                        false => r#"{"status":"running"}"#,
                    }
                }
                GatewayCall::Chat(_)
                | GatewayCall::Video(_)
                | GatewayCall::Billing
                | GatewayCall::Passthrough { .. } => {
                    seen.waits.push(granted - attempt.since);
                    "{}"
                }
            }
        };
        sleep(self.dice.below(takes)).await;
        let body = Bytes::from_static(body.as_bytes());
        Ok(GatewayReply { status: StatusCode::OK, is_json: true, body, key: 0, video: None })
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        clock::set_wall(Some(Duration::from_secs(1_800_000_000)));
        let world = Arc::new(World {
            start: clock::now(),
            dice: Dice(Mutex::new(seed)),
            seen: Mutex::default(),
            ends: Mutex::default(),
        });
        let stop = CancellationToken::new();
        let book = Store::in_memory(Arc::new(clock::wall));
        let setting = Some(config::RequestLimit { requests: LIMIT, period: PERIOD });
        let window = RateLimit::new(book.clone(), setting, stop.clone());
        let answering = Arc::clone(&world);
        let gateway = GatewayService::new(service_fn(move |ask: GatewayRequest| {
            let (window, world) = (Arc::clone(&window), Arc::clone(&answering));
            let transport = move |attempt: Attempt| {
                let world = Arc::clone(&world);
                async move { world.answer(attempt).await }
            };
            let attempt = Attempt { request: ask, key: 0, since: clock::now() };
            async move { send(&window, MAX_WAIT, transport, attempt).await }
        }));
        let jobs = JobRegistry::new(book.clone(), Handle::current(), stop.clone());
        jobs.reconfigure(PollerSetup {
            gateway: gateway.clone(),
            keys: Arc::from([]),
            status_words: JobsConfig {
                finished: vec!["completed".to_owned()],
                failed: vec![],
                result: vec!["/url".to_owned()],
                keep_prompts: false,
            },
            trusts_failures: false,
            is_public: false,
            kept: None,
        });
        Self { world, gateway, jobs, book, stop }
    }

    /// Sends chats at random moments, so many a minute, until the simulation ends.
    fn chats(&self, a_minute: u32) {
        let (world, gateway) = (Arc::clone(&self.world), self.gateway.clone());
        let stop = self.stop.clone();
        tokio::spawn(async move {
            let mut number = 0_u64;
            while !stop.is_cancelled() {
                sleep(world.dice.gap(MINUTE / a_minute)).await;
                number += 1;
                let caller = format!("caller {}", number % 40).into();
                let ask = GatewayRequest {
                    caller,
                    ..GatewayRequest::free(GatewayCall::Chat(Bytes::new()))
                };
                let (world, chat) =
                    (Arc::clone(&world), tower::ServiceExt::oneshot(gateway.clone(), ask));
                tokio::spawn(async move {
                    if matches!(chat.await, Err(Error::NoSlot { .. })) {
                        world.seen.lock().unwrap().refused += 1;
                    }
                });
            }
        });
    }

    /// Buys a video of this person that is finished after `takes`.
    async fn order(&self, person: u32, takes: Duration) -> (String, Caller) {
        let id = format!("job-{person}-{}", clock::wall().as_millis());
        let caller = Caller::Address(Ipv4Addr::from(0x0a00_0000 + person).into());
        self.world.ends.lock().unwrap().insert(id.clone().into(), clock::now() + takes);
        let job = Job { owner: caller.to_string().into(), ..job(&id) };
        self.book.insert_job(&job).await.unwrap();
        self.jobs.track(job);
        (id, caller)
    }

    /// One person who orders a video, watches it until it is shown as finished, and orders the next.
    fn watcher(self: &Arc<Self>, person: u32, takes: (Duration, Duration)) {
        let own = Arc::clone(self);
        tokio::spawn(async move {
            while !own.stop.is_cancelled() {
                let takes = takes.0 + own.world.dice.below(takes.1 - takes.0);
                let end = clock::now() + takes;
                let (id, caller) = own.order(person, takes).await;
                let mut watching = own.jobs.subscribe(&id, &caller).await.unwrap();
                while !watching.latest().is_final() {
                    watching.changed().await;
                }
                own.world.seen.lock().unwrap().shown.push(clock::now() - end);
            }
        });
    }

    /// Lets the time pass, and returns what was seen. The account's limit was kept to in every window.
    async fn run(&self, time: Duration) -> Seen {
        sleep(time).await;
        self.stop.cancel();
        let seen = std::mem::take(&mut *self.world.seen.lock().unwrap());
        let mut arrivals = seen.arrivals.clone();
        arrivals.sort_unstable();
        for stretch in arrivals.windows(LIMIT + 1) {
            let length = stretch[LIMIT] - stretch[0];
            assert!(length >= PERIOD, "{} requests within {length:?}", LIMIT + 1);
        }
        let mut last = HashMap::new();
        for (job, at) in &seen.polls {
            let before = last.insert(job, *at);
            assert!(
                before.is_none_or(|before| *at - before >= 2 * SECOND),
                "{job}: polled again at once"
            );
        }
        clock::set_wall(None);
        seen
    }
}

impl Seen {
    /// The wait that so many in a hundred do not exceed.
    fn wait(&self, percent: usize) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits[(waits.len() - 1) * percent / 100]
    }

    fn median_shown(&self) -> Duration {
        let mut shown = self.shown.clone();
        shown.sort_unstable();
        shown[shown.len() / 2]
    }

    /// The longest time that each job went without a poll, from the first minute's end to `end`.
    fn longest_gaps(&self, start: Instant, end: Instant) -> HashMap<&str, Duration> {
        let mut last: HashMap<&str, Instant> = HashMap::new();
        let mut gaps: HashMap<&str, Duration> = HashMap::new();
        for (job, at) in &self.polls {
            let before = last.insert(job, *at).unwrap_or(start);
            let gap = gaps.entry(job).or_default();
            *gap = (*gap).max(*at - before);
        }
        for (job, at) in last {
            let gap = gaps.entry(job).or_default();
            *gap = (*gap).max(end - at);
        }
        gaps
    }
}

const LONG: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(900));

#[tokio::test(start_paused = true)]
async fn twenty_watched_videos_do_not_delay_thirty_chats_a_minute() {
    let simulation = Arc::new(Simulation::new(1));
    simulation.chats(30);
    (0..20).for_each(|person| simulation.watcher(person, LONG));
    let seen = simulation.run(3 * HOUR).await;
    assert_eq!(seen.refused, 0);
    assert!(seen.waits.len() > 5_000);
    assert!(seen.wait(90) < 2 * SECOND, "{:?}", seen.wait(90));
}

#[tokio::test(start_paused = true)]
async fn finished_video_shows_within_eight_seconds_beside_eleven_others() {
    let simulation = Arc::new(Simulation::new(2));
    simulation.chats(6);
    (0..12).for_each(|person| simulation.watcher(person, LONG));
    let seen = simulation.run(8 * HOUR).await;
    assert_eq!(seen.refused, 0);
    assert!(seen.shown.len() > 500);
    assert!(seen.median_shown() <= 8 * SECOND, "{:?}", seen.median_shown());
}

#[tokio::test(start_paused = true)]
async fn unwatched_jobs_do_not_delay_chats() {
    let simulation = Arc::new(Simulation::new(3));
    for person in 0..1_000 {
        simulation.order(person, 100 * HOUR).await;
    }
    simulation.chats(20);
    let seen = simulation.run(HOUR).await;
    assert_eq!(seen.refused, 0);
    assert!(seen.wait(90) < 2 * SECOND, "{:?}", seen.wait(90));
}

#[tokio::test(start_paused = true)]
async fn unwatched_jobs_cost_a_full_account_one_request_in_ten_at_most() {
    let mut served = Vec::new();
    for jobs in [0, 1_000] {
        let simulation = Arc::new(Simulation::new(4));
        for person in 0..jobs {
            simulation.order(person, 100 * HOUR).await;
        }
        simulation.chats(60);
        let seen = simulation.run(HOUR).await;
        let asked: HashSet<_> = seen.polls.iter().map(|(job, _)| job).collect();
        assert_eq!(asked.len(), seen.polls.len(), "each job has a turn before one has two");
        assert!(jobs == 0 || seen.polls.len() > 300, "{}", seen.polls.len());
        served.push(seen.waits.len());
    }
    assert!(served[1] * 100 >= served[0] * 89, "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn every_job_is_polled_although_limit_cannot_poll_all_at_once() {
    let simulation = Arc::new(Simulation::new(5));
    for person in 0..100 {
        simulation.order(person, 100 * HOUR).await;
    }
    (100..300).for_each(|person| simulation.watcher(person, (100 * HOUR, 101 * HOUR)));
    let seen = simulation.run(2 * HOUR).await;
    let end = clock::now();
    let gaps = seen.longest_gaps(simulation.world.start, end);
    let person = |job: &str| job.split('-').nth(1).unwrap().parse::<u32>().unwrap();
    let longest = |is_watched: bool| {
        let these = gaps.iter().filter(|(job, _)| (person(job) >= 100) == is_watched);
        these.map(|(_, gap)| *gap).max().unwrap()
    };
    assert_eq!(gaps.len(), 300, "every job is asked for");
    assert!(seen.polls.len() > 50 * 120, "{}", seen.polls.len());
    assert!(longest(true) < 5 * MINUTE, "{:?}", longest(true));
    assert!(longest(false) < 25 * MINUTE, "{:?}", longest(false));
}

#[tokio::test(start_paused = true)]
async fn queued_poll_goes_first_once_its_job_is_watched() {
    let simulation = Arc::new(Simulation::new(6));
    let mut orders = Vec::new();
    for person in 0..1_000 {
        orders.push(simulation.order(person, 100 * HOUR).await);
    }
    sleep(5 * MINUTE).await;
    let start = clock::now();
    let (id, caller) = &orders[900];
    let asked = || simulation.world.seen.lock().unwrap().polls.iter().any(|(job, _)| **job == **id);
    assert!(!asked(), "its turn is long to come");
    let mut watching = simulation.jobs.subscribe(id, caller).await.unwrap();
    watching.changed().await;
    assert!(clock::now() - start < 5 * SECOND, "{:?}", clock::now() - start);
    drop(watching);
    simulation.run(MINUTE).await;
}
