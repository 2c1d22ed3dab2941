//! Replies of the scripted gateway, down to TCP segments and how the connection
//! ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use tokio::sync::watch;

use super::received::{ReceivedRequest, fingerprint};
use super::until;
use super::upstream::Charge;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It stays open.
    Open,
    /// Closed.
    Fin,
    /// Closed, a while after the last byte.
    Later(Duration),
    /// Reset.
    Reset,
    /// Stays silent until the other side closes it.
    Hang,
    /// Sends bytes until the other side closes it.
    Endless,
}

/// Keeps replies back until the test opens it. `Reply::chat("hi").when(latch)`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latch(&'static watch::Sender<bool>);

impl Latch {
    /// A closed one. It is never freed, so that closures can copy it.
    pub(crate) fn new() -> Self {
        Self(Box::leak(Box::default()))
    }

    /// Lets all replies go, now and later.
    pub(crate) fn open(self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_open(self) -> bool {
        *self.0.borrow()
    }

    async fn opened(self) {
        self.0.subscribe().wait_for(|is_open| *is_open).await.expect("it is never dropped");
    }
}

/// An answer of the gateway. `Reply::chat("hi").after(delay).cut(10, Ending::Fin)`
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    raw: Option<Vec<u8>>,
    charges: Option<bool>,
    price: Option<u64>,
    delay: Duration,
    latch: Option<Latch>,
    pub(super) dribbles: bool,
    cut: Option<usize>,
    pub(super) ending: Ending,
    /// An unsolicited reply that follows it, and the delay.
    pub(super) stray: Option<(Duration, Vec<u8>)>,
}

impl Reply {
    /// A reply with this status and JSON body. A 2xx is charged.
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: body.into(),
            raw: None,
            charges: None,
            price: None,
            delay: Duration::ZERO,
            latch: None,
            dribbles: false,
            cut: None,
            ending: Ending::Open,
            stray: None,
        }
    }

    /// A chat's reply.
    pub(crate) fn chat(content: &str) -> Self {
        let content = serde_json::Value::from(content);
        Self::new(200, format!(r#"{{"message":{{"content":{content}}}}}"#))
    }

    /// The reply to an accepted video.
    pub(crate) fn video(request_id: &str) -> Self {
        Self::new(
            200,
            format!(
                r#"{{"request_id":"{request_id}","model":"video-a-2","message":"Poll the status endpoint.","cost":{{"this_request":"$3.00","per_video":"$3.00"}},"balance":"$97.00","metadata":{{"latency_ms":12}}}}"#
            ),
        )
    }

    /// An error of an unknown shape.
    pub(crate) fn error(status: u16) -> Self {
        Self::new(status, format!(r#"{{"error":"as the gateway words a {status}"}}"#))
    }

    /// Raw bytes, charged.
    pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { raw: Some(bytes.into()), charges: Some(true), ..Self::new(200, "") }
    }

    /// No bytes, then this ending; not charged.
    pub(crate) fn nothing(ending: Ending) -> Self {
        Self { charges: Some(false), ending, ..Self::raw("") }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets whether the gateway charges for it.
    pub(crate) fn charged(self, charged: bool) -> Self {
        Self { charges: Some(charged), ..self }
    }

    /// Sets the charge in micro-dollars.
    pub(crate) fn costing(self, micros: u64) -> Self {
        Self { charges: Some(true), price: Some(micros), ..self }
    }

    /// Charges, then waits before the reply. Only for what has to last; if something has to happen
    /// before the reply, use [`Reply::when`].
    pub(crate) fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Charges, then waits until the test opens the latch.
    pub(crate) fn when(self, latch: Latch) -> Self {
        Self { latch: Some(latch), ..self }
    }

    /// Sends each byte in its own segment.
    pub(crate) fn dribbled(self) -> Self {
        Self { dribbles: true, ..self }
    }

    /// Sends only its first bytes, then ends the connection so.
    pub(crate) fn cut(self, bytes: usize, ending: Ending) -> Self {
        Self { cut: Some(bytes), ending, ..self }
    }

    /// Sends an unsolicited second reply on the same connection.
    pub(crate) fn followed_by(self, pause: Duration, stray: &Self) -> Self {
        Self { stray: Some((pause, stray.bytes())), ..self }
    }

    /// Sends all of it, then ends the connection so.
    pub(crate) fn then(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }

    /// Waits until it may be sent, or until the gateway has `ended`.
    pub(super) fn wait(&self, ended: &AtomicBool) {
        super::pause(self.delay);
        if let Some(latch) = self.latch {
            until("the test opens the latch of a reply", || {
                latch.is_open() || ended.load(Ordering::SeqCst)
            });
        }
    }

    /// Does the same on a paused clock. Returns the reply as the HTTP client reads it, or `None` if
    /// the connection is lost before its end.
    pub(super) async fn read(&self) -> Option<(StatusCode, HeaderMap, Bytes)> {
        tokio::time::sleep(self.delay).await;
        if let Some(latch) = self.latch {
            latch.opened().await;
        }
        let is_whole = match &self.raw {
            None => self.cut.is_none(),
            Some(raw) => {
                assert!(raw.is_empty(), "raw bytes need a socket");
                false
            }
        };
        match self.ending {
            Ending::Hang => std::future::pending().await,
            Ending::Endless => panic!("an endless reply needs a socket"),
            Ending::Open | Ending::Fin | Ending::Later(_) | Ending::Reset => {}
        }
        if !is_whole {
            return None;
        }
        let header = |(name, value): &(String, String)| {
            (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())
        };
        let headers = self.headers.iter().map(header).collect();
        Some((StatusCode::from_u16(self.status).unwrap(), headers, self.body.clone().into()))
    }

    /// Returns what the gateway charges for this request. A read, such as a poll of a job, is free.
    pub(super) fn charge(&self, received: &ReceivedRequest) -> Option<Charge> {
        let is_charged = self.charges.unwrap_or((200..300).contains(&self.status));
        let micros = self.price.unwrap_or_else(|| received.price());
        if !is_charged || micros == 0 || received.method == "GET" {
            return None;
        }
        let fingerprint = fingerprint(&received.method, &received.target, &received.body);
        Some(Charge { micros, fingerprint })
    }

    /// Returns its whole body.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.body.clone()
    }

    /// Returns its bytes on the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.raw.clone().unwrap_or_else(|| self.whole());
        bytes.truncate(self.cut.unwrap_or(usize::MAX));
        bytes
    }

    fn whole(&self) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} Whatever\r\n", self.status);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let says_how_long = self.headers.iter().any(|(name, _)| name == "transfer-encoding");
        if self.ending == Ending::Endless {
            text.push_str("content-length: 1000000000\r\n");
        } else if !says_how_long {
            text.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        [text.as_bytes(), b"\r\n", &self.body].concat()
    }
}
