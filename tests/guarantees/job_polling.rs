//! Jobs: whoever may see one shares one poll with all others, and nobody else causes any.

use std::io::Read;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::client::Answer;
use crate::support::paused::{PausedGate, PausedUpstream};
use crate::support::process::Signal;
use crate::support::received::ReceivedRequest;
use crate::support::{Gate, Reply, Upstream, VIDEO, until};

const POLL: &str = "/api/v1/video/status?request_id=job-1";
const EVENTS: &str = "/bff/events?request_id=job-1";
const RUNNING: &str = r#"{"status":"running"}"#;
const DONE: &str = r#"{"status":"completed","video_url":"https://cdn.example/a.mp4"}"#;

/// A gateway that accepts a video as `job-1` and says this of it.
fn upstream(say: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => say(received),
    })
}

/// The same on a paused clock.
fn paused(say: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> PausedUpstream {
    PausedUpstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video("job-1"),
        _ => say(received),
    })
}

/// The events of a stream: name, id, data.
fn events(answer: &Answer) -> Vec<(String, String, String)> {
    let text = answer.text();
    let field = |event: &str, name: &str| {
        let values = event.lines().filter_map(|line| line.strip_prefix(name));
        values.collect::<Vec<_>>().join("\n")
    };
    let events = text.split("\n\n").filter(|event| event.contains("data: "));
    events.map(|one| (field(one, "event: "), field(one, "id: "), field(one, "data: "))).collect()
}

#[test]
fn unknown_job_is_not_found_without_asking_the_gateway() {
    let upstream = upstream(|_| Reply::new(200, RUNNING));
    let gate = Gate::start(&upstream, "");
    for target in [POLL, EVENTS, "/bff/video/content?request_id=job-1"] {
        let answer = gate.get(target);
        assert_eq!((answer.status, answer.code().as_str()), (404, "job_not_found"), "{target}");
    }
    assert_eq!(gate.get("/bff/jobs").text(), r#"{"rows":[]}"#);
    assert_eq!(gate.get("/bff/jobs?request_id=job-1").text(), r#"{"rows":[]}"#);
    assert_eq!(gate.get("/bff/events").status, 204);
    for target in ["/bff/events?request_id=", "/bff/jobs?x=1"] {
        let answer = gate.get(target);
        assert_eq!((answer.status, answer.code().as_str()), (422, "invalid_request"), "{target}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn five_hundred_concurrent_watchers_cost_one_poll() {
    let slow = Duration::from_millis(300);
    let upstream = paused(move |_| Reply::new(200, RUNNING).after(slow));
    let gate = PausedGate::start(&upstream, "").await;
    assert_eq!(gate.video().await.status, 200);
    let calls: Vec<_> = (0..500).map(|_| gate.send("GET", POLL, &[], "")).collect();
    for call in calls {
        let answer = call.answer().await;
        assert_eq!((answer.status, answer.text().as_str()), (200, RUNNING));
        assert_eq!(answer.value("cache-control"), Some("no-store"));
    }
    assert_eq!(upstream.requests() - upstream.purchases(), 1);
}

#[tokio::test(start_paused = true)]
async fn event_stream_follows_a_job_to_its_end() {
    let is_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    let upstream =
        paused(move |_| Reply::new(200, if done.load(Ordering::SeqCst) { DONE } else { RUNNING }));
    let gate = PausedGate::start(&upstream, "").await;
    assert_eq!(gate.video().await.status, 200);
    assert_eq!(gate.get(POLL).await.text(), RUNNING);
    let stream = gate.send("GET", EVENTS, &[], "");
    gate.settle().await;
    is_done.store(true, Ordering::SeqCst);
    let answer = stream.answer().await;
    assert_eq!((answer.status, answer.value("content-type")), (200, Some("text/event-stream")));
    assert_eq!(answer.value("cache-control"), Some("no-store, no-transform"));
    assert_eq!(answer.value("x-accel-buffering"), Some("no"));
    assert!(answer.text().starts_with("retry: 3000\n\n"), "{}", answer.text());
    let told = events(&answer);
    assert_eq!(told.len(), 2, "{told:?}");
    for ((name, _, data), (state, body)) in told.iter().zip([("open", RUNNING), ("finished", DONE)])
    {
        assert_eq!(name, "job");
        assert!(data.starts_with(&format!(r#"{{"request_id":"job-1","state":"{state}","at":""#)));
        assert!(data.ends_with(&format!(r#","status":{body}}}"#)), "{data}");
    }
    // Who knows the end is told to stay away, and who does not is told once more.
    let again = gate.ask("GET", EVENTS, &[("Last-Event-ID", &told[1].1)], "").await;
    assert_eq!((again.status, again.body.len()), (204, 0));
    for id in [&*told[0].1, "unknown"] {
        let again = gate.ask("GET", EVENTS, &[("Last-Event-ID", id)], "").await;
        assert_eq!(events(&again), told[1..], "{id}");
    }
    let listed = gate.get("/bff/jobs").await.json();
    let job = &listed["rows"][0];
    assert_eq!((&job["request_id"], &job["state"]), (&"job-1".into(), &"finished".into()));
    assert_eq!(
        (&job["price"], &job["status"]["status"]),
        (&"3.000000".into(), &"completed".into())
    );
    let asked = upstream.requests();
    assert_eq!(gate.get(POLL).await.text(), DONE);
    gate.advance(Duration::from_secs(3_600)).await;
    assert_eq!(upstream.requests(), asked);
}

#[test]
fn event_stream_reports_known_jobs_and_names_unknown_ones() {
    let upstream = upstream(|_| Reply::new(200, DONE));
    let gate = Gate::start(&upstream, "");
    assert_eq!(gate.video().status, 200);
    assert_eq!(gate.get(POLL).text(), DONE);
    let answer = gate.get("/bff/events?request_id=job-1&request_id=job-2");
    let told = events(&answer);
    assert_eq!(told.iter().map(|event| &*event.0).collect::<Vec<_>>(), ["job", "problem"]);
    assert!(told[1].2.contains(r#""code":"job_not_found""#), "{}", told[1].2);
    assert!(told[1].2.contains(r#""request_id":"job-2""#), "{}", told[1].2);
}

#[test]
fn unknown_status_passes_raw_and_is_never_failed() {
    const STRANGE: &str = "{ \"phase\" : \"imploded\",\r\n\t\"n\": 1.50, \"n\": 2 }";
    let upstream = upstream(|_| Reply::new(200, STRANGE));
    let gate = Gate::start(&upstream, "");
    assert_eq!(gate.video().status, 200);
    assert_eq!(gate.get(POLL).text(), STRANGE);
    assert!(gate.get("/bff/jobs").text().contains(r#""state":"open""#));
    let content = gate.get("/bff/video/content?request_id=job-1");
    assert_eq!((content.status, content.code().as_str()), (404, "not_found"));
}

#[test]
fn gateway_404_for_a_new_job_keeps_it_open() {
    let upstream = upstream(|_| Reply::error(404));
    let gate = Gate::start(&upstream, "");
    assert_eq!(gate.video().status, 200);
    let answer = gate.get(POLL);
    assert_eq!((answer.status, answer.code().as_str()), (502, "gateway_unreachable"));
    assert!(gate.get("/bff/jobs").text().contains(r#""state":"open""#));
}

#[tokio::test(start_paused = true)]
async fn job_is_polled_with_the_key_that_made_it() {
    let upstream = PausedUpstream::with(2, |received| match received.number {
        0 => Reply::error(401),
        1 => Reply::video("job-1"),
        _ => Reply::new(200, RUNNING),
    });
    let gate = PausedGate::start(&upstream, "").await;
    assert_eq!(gate.post("/api/v1/video", VIDEO).await.status, 200);
    // The key that was refused may be tried again by now.
    gate.advance(Duration::from_millis(1_100)).await;
    assert_eq!(gate.get(POLL).await.text(), RUNNING);
    let received = upstream.received_requests();
    assert_ne!(received[0].values("authorization"), received[1].values("authorization"));
    for poll in &received[2..] {
        assert_eq!(received[1].values("authorization"), poll.values("authorization"));
    }
}

/// Whoever can name a job of a caller without credentials sees its status, but not its prompt.
#[test]
fn kept_prompt_survives_a_restart_and_is_not_shown_to_another_address() {
    let upstream = upstream(|_| Reply::new(200, RUNNING));
    let settings =
        "store.url = \"sqlite:tollgate.db\"\njobs.keep_prompts = true\nlog.level = \"trace\"";
    let mut gate = Gate::binary(&upstream, settings, &[]);
    assert_eq!(
        gate.post("/api/v1/video", &VIDEO.replace("a lighthouse", "between us")).status,
        200
    );
    assert!(!gate.printed().contains("between us"));
    gate.kill();
    gate.restart();
    let jobs = "/bff/jobs?request_id=job-1";
    assert_eq!(gate.get(jobs).json()["rows"][0]["prompt"], "between us");
    let mut other = gate.client_from(Ipv4Addr::new(127, 0, 0, 2), gate.address());
    other.send("GET", jobs, &[], "");
    let seen = other.answer().json()["rows"][0].clone();
    assert_eq!((&seen["request_id"], seen.get("prompt")), (&"job-1".into(), None));
}

#[test]
fn open_jobs_resume_after_a_crash() {
    let upstream = upstream(|_| Reply::new(200, RUNNING));
    let mut gate = Gate::binary(&upstream, "store.url = \"sqlite:tollgate.db\"\n", &[]);
    assert_eq!(gate.video().status, 200);
    assert_eq!(gate.get(POLL).text(), RUNNING);
    gate.kill();
    let before = upstream.requests();
    gate.restart();
    upstream.wait_for(before + 1);
    assert_eq!(gate.get(POLL).text(), RUNNING);
    assert!(gate.get("/bff/jobs").text().contains(r#""request_id":"job-1""#));
}

#[test]
fn event_streams_end_when_the_server_stops() {
    let upstream = upstream(|_| Reply::new(200, RUNNING));
    let mut gate = Gate::binary(&upstream, "", &[]);
    assert_eq!(gate.video().status, 200);
    assert_eq!(gate.get(POLL).text(), RUNNING);
    let mut client = gate.client();
    client.send("GET", EVENTS, &[], "");
    client.stream().peek(&mut [0]).expect("the stream begins");
    gate.signal(Signal::SIGTERM);
    let answer = client.answer();
    assert_eq!((answer.status, events(&answer).len()), (200, 1));
    assert!(gate.wait().success());
}

#[test]
fn ended_job_is_reported_when_all_streams_of_its_caller_are_taken() {
    let orders = AtomicUsize::new(0);
    let upstream = Upstream::start(move |received| match received.method.as_str() {
        "POST" => Reply::video(&format!("job-{}", orders.fetch_add(1, Ordering::SeqCst) + 1)),
        _ if received.target.ends_with("job-2") => Reply::new(200, DONE),
        _ => Reply::new(200, RUNNING),
    });
    let gate = Gate::start(&upstream, "");
    assert_eq!((gate.video().status, gate.video().status), (200, 200));
    let streams: Vec<_> = (0..8)
        .map(|_| {
            let mut client = gate.client();
            client.send("GET", EVENTS, &[], "");
            let mut byte = [0];
            client.stream().read_exact(&mut byte).unwrap();
            client
        })
        .collect();
    until("job-2 has ended", || {
        gate.get("/api/v1/video/status?request_id=job-2").text().contains("completed")
    });
    let told = gate.get("/bff/events?request_id=job-2");
    let told = events(&told);
    assert!(told.len() == 1 && told[0].2.contains("\"finished\""), "{told:?}");
    // Of a job that is still open it is told to come back for, and the other one is told at once.
    let both = gate.get("/bff/events?request_id=job-1&request_id=job-2");
    let retry = both.text();
    let retry = retry.lines().find_map(|line| line.strip_prefix("retry: ")?.parse().ok());
    assert!(matches!(retry, Some(30_000..=60_000)), "{}", both.text());
    let both = events(&both);
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both[0].2.contains("\"finished\""), "{both:?}");
    assert!(both[1].0 == "problem" && both[1].2.contains("rate_limited"), "{both:?}");
    drop(streams);
}
