//! `GET /bff/events`: one stream of server-sent events for many jobs.
//!
//! A browser does not reconnect after a 429 or 503. So temporary problems are events inside the
//! stream, with a time to reconnect.

mod event_stream;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body::Frame;
use http_body_util::StreamBody;

use crate::access::Session;
use crate::api::validate;
use crate::gate::problem::{JOB_NOT_FOUND, Problem};
use crate::gate::response::{self, Body, BoxError, Response};
use crate::ledger::Caller;
use crate::video::{JobRegistry, JobSubscription};
use event_stream::EventStream;

const RETRY: Duration = Duration::from_secs(3);

pub struct EventsRequest<'a> {
    pub caller: &'a Caller,
    pub session: &'a Session,
    pub last_event_id: &'a str,
    /// The ids of jobs; all open jobs of the caller if empty.
    pub named: Vec<Box<str>>,
    pub request_id: &'a str,
    /// `server.prefix`, for the types of problems.
    pub prefix: &'a str,
}

/// Streams the status of jobs. Fails if none of the named jobs exists, or if this caller has to
/// name jobs.
pub async fn stream(jobs: &JobRegistry, request: EventsRequest<'_>) -> Result<Response, Problem> {
    let EventsRequest { caller, session, last_event_id, named, request_id, prefix } = request;
    let mut reconnect_after = RETRY;
    let (mut watched, mut problems) = match watch(jobs, caller, named).await {
        Ok((watched, missing)) if watched.is_empty() && !missing.is_empty() => {
            return Err(Problem::new(&JOB_NOT_FOUND));
        }
        Ok(found) => found,
        Err(problem) => {
            let Some(wait) = problem.retry_delay() else { return Err(problem) };
            reconnect_after = jitter(wait);
            (Vec::new(), vec![problem])
        }
    };
    // A job that has ended needs one event, and no permit.
    let needs_permit = watched.iter().any(|job| !job.has_ended());
    let permit = match needs_permit.then(|| jobs.stream_permit(caller)).transpose() {
        Ok(permit) => permit,
        Err(problem) => {
            let Some(wait) = problem.retry_delay() else { return Err(problem) };
            reconnect_after = jitter(wait);
            problems.push(problem);
            watched.retain(JobSubscription::has_ended);
            None
        }
    };
    let shutdown = jobs.shutdown_token();
    let mut events = EventStream::new(watched, last_event_id, reconnect_after, shutdown, permit);
    events.session = session.clone();
    events.prefix = prefix.into();
    if problems.is_empty() && events.is_up_to_date() {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    }
    let documents = problems.into_iter().map(|one| one.below(prefix).to_json(request_id));
    let problems = documents.map(|document| event("problem", None, &document));
    events.pending.extend(problems);
    let frames = stream::unfold(events, |mut events| async {
        let part = events.next().await?;
        Some((Ok::<_, BoxError>(Frame::data(part)), events))
    });
    Ok(response::event_stream(Response::new(Body::stream(StreamBody::new(frames)))))
}

async fn watch(
    jobs: &JobRegistry,
    caller: &Caller,
    named: Vec<Box<str>>,
) -> Result<(Vec<JobSubscription>, Vec<Problem>), Problem> {
    let request_ids = if named.is_empty() {
        let own = jobs.list(caller).await?;
        let open = own.iter().filter(|job| job.is_open()).take(validate::MAX_JOBS);
        open.map(|job| (&*job.request_id).into()).collect()
    } else {
        named
    };
    let mut watched = Vec::with_capacity(request_ids.len());
    let mut missing = Vec::new();
    for request_id in &request_ids {
        match jobs.subscribe(request_id, caller).await {
            Ok(watching) => watched.push(watching),
            Err(problem) if problem.kind() == &JOB_NOT_FOUND => {
                missing.push(problem.for_job(request_id));
            }
            Err(problem) => return Err(problem),
        }
    }
    Ok((watched, missing))
}

/// Returns a random time between `wait` and twice that, so that clients do not return all at once.
fn jitter(wait: Duration) -> Duration {
    let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let more = RandomState::new().build_hasher().finish() % millis.saturating_add(1).max(1);
    wait.saturating_add(Duration::from_millis(more))
}

pub fn retry_field(wait: Duration) -> Bytes {
    format!("retry: {}\n\n", wait.as_millis()).into()
}

/// Returns a heartbeat: a comment line, so that proxies do not close an idle stream.
pub fn comment() -> Bytes {
    // Some clients cannot read a comment without text.
    Bytes::from_static(b": keep-alive\n\n")
}

/// Formats an event (HTML, 9.2). `name` and `id` contain no line break. Each line of `data` gets a
/// field of its own, and a browser joins them with `\n`.
pub fn event(name: &str, id: Option<&str>, data: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(data.len() + 64);
    let mut field = |name: &str, value: &[u8]| {
        event.extend_from_slice(name.as_bytes());
        event.extend_from_slice(b": ");
        event.extend_from_slice(value);
        event.push(b'\n');
    };
    field("event", name.as_bytes());
    if let Some(id) = id {
        field("id", id.as_bytes());
    }
    let mut rest = data;
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        field("data", &rest[..end]);
        rest = rest[end..].strip_prefix(b"\r\n").unwrap_or(&rest[end + 1..]);
    }
    field("data", rest);
    event.push(b'\n');
    event.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn clients_reconnect_at_different_times() {
        let wait = Duration::from_secs(30);
        let waits: std::collections::HashSet<_> = (0..100).map(|_| jitter(wait)).collect();
        assert!(waits.iter().all(|jittered| (wait..=wait * 2).contains(jittered)));
        assert!(waits.len() > 90, "{waits:?}");
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }

    /// What a browser dispatches, by the rules of the standard.
    fn read(stream: &str) -> Vec<(String, String, String)> {
        let (mut name, mut id, mut data) = (String::new(), String::new(), Vec::new());
        let mut events = Vec::new();
        let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
        for line in stream.split('\n') {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "event" => name = value,
                "id" => id = value,
                "data" => data.push(value),
                "" if line.is_empty() => {
                    if !data.is_empty() {
                        events.push((std::mem::take(&mut name), id.clone(), data.join("\n")));
                    }
                    data.clear();
                    name.clear();
                }
                _ => {}
            }
        }
        events
    }

    fn text(bytes: &[Bytes]) -> String {
        bytes.iter().map(|part| String::from_utf8_lossy(part)).collect()
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let event = event("job", Some("a.b"), b"{\n \"x\": 1\r\n}\r");
        assert_eq!(
            text(&[event]),
            "event: job\nid: a.b\ndata: {\ndata:  \"x\": 1\ndata: }\ndata: \n\n"
        );
    }

    #[test]
    fn retry_and_heartbeat_are_no_events() {
        let stream =
            [retry_field(Duration::from_secs(3)), comment(), event("job", None, b"1"), comment()];
        assert_eq!(text(&stream[..2]), "retry: 3000\n\n: keep-alive\n\n");
        assert_eq!(read(&text(&stream)), [("job".to_owned(), String::new(), "1".to_owned())]);
    }

    proptest! {
        #[test]
        fn no_data_forges_a_field_or_an_event(data in "(\r|\n|[ -~é]|event: |id: |data: |: ){0,20}") {
            let stream = text(&[event("job", Some("7"), data.as_bytes()), event("job", None, b"end")]);
            let joined = data.replace("\r\n", "\n").replace('\r', "\n");
            let end = ("job".to_owned(), "7".to_owned(), "end".to_owned());
            prop_assert_eq!(read(&stream), [("job".to_owned(), "7".to_owned(), joined), end]);
        }
    }
}
