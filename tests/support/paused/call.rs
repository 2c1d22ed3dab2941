//! A request to a paused gate, and how its answer is read.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use http::{Request, request};
use tokio::task::JoinHandle;
use tollgate::Body;

use crate::support::accounting::Errand;
use crate::support::client::{Answer, Record};
use crate::support::lock;

/// A request that was sent. A client that drops it has disconnected.
pub(crate) struct PausedCall {
    task: JoinHandle<Option<Answer>>,
    errand: Option<Errand>,
    record: Arc<Record>,
}

impl PausedCall {
    pub(super) fn new(
        task: JoinHandle<Option<Answer>>,
        errand: Errand,
        record: &Arc<Record>,
    ) -> Self {
        Self { task, errand: Some(errand), record: Arc::clone(record) }
    }

    pub(crate) async fn answer(self) -> Answer {
        self.try_answer().await.expect("the gate answers")
    }

    /// Returns the answer, or `None` if the connection ends before it is whole.
    pub(crate) async fn try_answer(mut self) -> Option<Answer> {
        let answer = (&mut self.task).await.ok().flatten()?;
        self.record.books.answered(&answer, self.errand.take());
        Some(answer)
    }

    /// Whether the answer is there.
    pub(crate) fn is_answered(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for PausedCall {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(errand) = self.errand.take() {
            self.record.books.unanswered(errand);
        }
    }
}

pub(super) fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> request::Builder {
    let mut request = Request::builder().method(method).uri(target);
    let has = |name: &str| headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    if !has("host") {
        request = request.header("host", "localhost");
    }
    if method == "POST" && !has("content-type") {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
}

/// Reads the response to its end, as the connection does. Returns `None` if it breaks off.
pub(super) async fn read(response: http::Response<Body>, record: &Record) -> Option<Answer> {
    let (head, body) = response.into_parts();
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<_> =
        head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    lock(&record.received).extend_from_slice(lines.as_bytes());
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| http_body::Body::poll_frame(body.as_mut(), cx)).await {
        let data = frame.ok()?.into_data().unwrap_or_default();
        lock(&record.received).extend_from_slice(&data);
        bytes.extend_from_slice(&data);
    }
    let closes = headers.iter().any(|(name, value)| name == "connection" && value == "close");
    Some(Answer { status: head.status.as_u16(), headers, body: bytes, closes })
}
