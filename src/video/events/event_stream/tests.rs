use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::*;
use crate::video::JobState;
use crate::video::tests::{Fake, Script, caller};

const RUNNING: Option<(u16, &str)> = Some((200, "{\"status\":\"running\",\n \"n\":1.50}"));
const DONE: Option<(u16, &str)> = Some((200, r#"{"status":"completed","url":"https://x/a"}"#));

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn follow(fake: &Fake, request_ids: &[&str], last_event_id: &str) -> EventStream {
    let mut watched = Vec::new();
    for request_id in request_ids {
        watched.push(fake.jobs.subscribe(request_id, &caller()).await.expect("it is there"));
    }
    let permit = fake.jobs.stream_permit(&caller()).unwrap();
    EventStream::new(watched, last_event_id, secs(3), fake.stop.clone(), Some(permit))
}

/// Returns all parts of a stream until it ends or is silent for `silence` seconds.
async fn parts(events: &mut EventStream, silence: u64) -> Vec<String> {
    let mut parts = Vec::new();
    while let Ok(Some(bytes)) = timeout(secs(silence), events.next()).await {
        parts.push(String::from_utf8(bytes.to_vec()).expect("text"));
    }
    parts
}

async fn one(script: Script) -> Fake {
    let fake = Fake::new(script);
    fake.accept("r").await;
    fake
}

fn id_of(event: &str) -> &str {
    event.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id")
}

#[tokio::test(start_paused = true)]
async fn stream_sends_snapshot_then_changes_then_ends() {
    let fake = one(vec![RUNNING, RUNNING, DONE]).await;
    let mut events = follow(&fake, &["r"], "").await;
    let parts = parts(&mut events, 60).await;
    assert_eq!(parts.len(), 4, "an unchanged status is not sent again: {parts:?}");
    assert_eq!(parts[0], "retry: 3000\n\n");
    let nothing = r#"data: {"request_id":"r","state":"open","at":null,"status":null}"#;
    assert_eq!(parts[1], format!("event: job\n{nothing}\n\n"));
    assert!(parts[2].contains(r#""state":"open","at":"20"#), "{}", parts[2]);
    assert!(
        parts[2].ends_with("\"status\":{\"status\":\"running\",\ndata:  \"n\":1.50}}\n\n"),
        "{}",
        parts[2]
    );
    assert!(parts[3].contains(r#""state":"finished""#), "{}", parts[3]);
    assert_ne!(id_of(&parts[2]), id_of(&parts[3]));
    assert_eq!(events.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn known_states_are_not_sent_again() {
    let fake = Fake::new(vec![RUNNING]);
    fake.accept("a").await;
    fake.accept("b").await;
    sleep(secs(2)).await;
    let first = parts(&mut follow(&fake, &["a", "b"], "").await, 1).await;
    assert_eq!(first.len(), 3);
    // After its first event it knows of one, after its second of both.
    let again = parts(&mut follow(&fake, &["a", "b"], id_of(&first[1])).await, 1).await;
    assert!(again.len() == 2 && again[1].contains(r#""request_id":"b""#), "{again:?}");
    let again = parts(&mut follow(&fake, &["a", "b"], id_of(&first[2])).await, 1).await;
    assert_eq!(again, ["retry: 3000\n\n"]);
    assert!(!follow(&fake, &["a"], id_of(&first[2])).await.is_up_to_date(), "it goes on");
}

#[tokio::test(start_paused = true)]
async fn finished_jobs_are_sent_once() {
    let fake = one(vec![DONE]).await;
    sleep(secs(2)).await;
    let mut events = follow(&fake, &["r"], "").await;
    assert!(!events.is_up_to_date());
    let told = parts(&mut events, 60).await;
    assert_eq!((told.len(), events.next().await), (2, None));
    assert!(follow(&fake, &["r"], id_of(&told[1])).await.is_up_to_date());
    assert!(!follow(&fake, &["r"], "something.else").await.is_up_to_date());
}

#[tokio::test(start_paused = true)]
async fn idle_stream_sends_heartbeats_and_ends_after_five_minutes() {
    let fake = one(vec![RUNNING]).await;
    sleep(secs(2)).await;
    let mut events = follow(&fake, &["r"], "").await;
    let start = clock::now();
    let parts = parts(&mut events, 16).await;
    assert_eq!(clock::now() - start, secs(300));
    let beats = parts.iter().filter(|part| *part == ": keep-alive\n\n").count();
    assert!((19..=20).contains(&beats) && parts.len() == 2 + beats, "{parts:?}");
}

#[tokio::test(start_paused = true)]
async fn stream_ends_on_shutdown_and_frees_permit_on_drop() {
    let fake = one(vec![RUNNING]).await;
    let mut flows = Vec::new();
    for _ in 0..8 {
        flows.push(follow(&fake, &["r"], "").await);
    }
    assert_eq!(fake.jobs.stream_permit(&caller()).unwrap_err().kind().code, "rate_limited");
    flows.truncate(1);
    fake.jobs.stream_permit(&caller()).expect("seven are free");
    fake.stop.cancel();
    assert!(parts(&mut flows[0], 3_600).await.len() <= 3);
}

#[tokio::test(start_paused = true)]
async fn problem_event_names_job_and_is_sent_once() {
    let fake = one(vec![RUNNING, None, None, DONE]).await;
    sleep(secs(2)).await;
    let told = parts(&mut follow(&fake, &["r"], "").await, 60).await;
    let problems: Vec<_> =
        told.iter().filter(|part| part.starts_with("event: problem\n")).collect();
    assert_eq!(problems.len(), 1, "{told:?}");
    assert!(problems[0].contains(r#""code":"gateway_unreachable""#), "{}", problems[0]);
    assert!(problems[0].contains(r#""request_id":"r""#) && !problems[0].contains("id: "));
    assert!(told.last().unwrap().contains("finished"));
}

#[tokio::test(start_paused = true)]
async fn final_status_that_came_between_reads_is_sent() {
    let fake = one(vec![RUNNING, DONE]).await;
    let mut events = follow(&fake, &["r"], "").await;
    events.next().await;
    events.next().await;
    // A slow reader, or a busy core.
    sleep(secs(120)).await;
    assert!(parts(&mut events, 60).await.concat().contains("finished"));
}

fn news(body: &'static str, at: u64) -> JobUpdate {
    let word = StatusUpdate {
        at: Duration::from_secs(at),
        body: Bytes::from(body),
        state: JobState::Open,
    };
    JobUpdate { status: Some(word), ..JobUpdate::default() }
}

#[test]
fn event_id_names_states_already_sent() {
    let marks =
        [state_mark("a", &news("{}", 1)), state_mark("b", &news("{}", 1))].map(Option::unwrap);
    let told = read_event_id(&event_id(marks.iter()));
    assert_eq!(told.len(), 2);
    assert!(told.contains(&state_mark("a", &news("{}", 2)).unwrap()), "the time is no news");
    assert!(!told.contains(&state_mark("a", &news("{ }", 1)).unwrap()));
    assert_eq!(state_mark("a", &JobUpdate::default()), None);
}

#[test]
fn foreign_event_id_is_ignored() {
    for text in ["", ".", "...", &"a.".repeat(5_000)] {
        assert!(read_event_id(text).is_empty(), "{text}");
    }
    assert!(!read_event_id("17").contains(&state_mark("a", &news("{}", 1)).unwrap()));
}
