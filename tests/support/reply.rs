//! What the scripted gateway answers, down to the segment in which a byte travels and the way in
//! which the connection ends.

use std::time::Duration;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It does not: the next request is welcome.
    Open,
    /// Orderly.
    Fin,
    /// Orderly, a while after the last byte.
    Later(Duration),
    /// By a reset.
    Reset,
    /// Silence until the other side has had enough.
    Hang,
    /// Bytes without end, until the other side has had enough.
    Endless,
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
    pub(super) delay: Duration,
    pub(super) dribbles: bool,
    cut: Option<usize>,
    pub(super) ending: Ending,
    /// What is sent after it unasked, and how long after it.
    pub(super) stray: Option<(Duration, Vec<u8>)>,
}

impl Reply {
    /// A reply with this status and JSON body. It says that the request was charged if it is 2xx.
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: body.into(),
            raw: None,
            charges: None,
            price: None,
            delay: Duration::ZERO,
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

    /// A video's job, accepted.
    pub(crate) fn video(request_id: &str) -> Self {
        Self::new(
            200,
            format!(
                r#"{{"request_id":"{request_id}","model":"video-a-2","message":"Poll the status endpoint.","cost":{{"this_request":"$3.00","per_video":"$3.00"}},"balance":"$97.00","metadata":{{"latency_ms":12}}}}"#
            ),
        )
    }

    /// An error whose shape nobody knows.
    pub(crate) fn error(status: u16) -> Self {
        Self::new(status, format!(r#"{{"error":"as the gateway words a {status}"}}"#))
    }

    /// These bytes, whatever they are, which are charged.
    pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self { raw: Some(bytes.into()), charges: Some(true), ..Self::new(200, "") }
    }

    /// Nothing at all, then this; not charged.
    pub(crate) fn nothing(ending: Ending) -> Self {
        Self { charges: Some(false), ending, ..Self::raw("") }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether the gateway takes its money for it, whatever it answers.
    pub(crate) fn charged(self, charged: bool) -> Self {
        Self { charges: Some(charged), ..self }
    }

    /// The gateway takes so many micro-dollars for it, whatever its price list says.
    pub(crate) fn costing(self, micros: u64) -> Self {
        Self { charges: Some(true), price: Some(micros), ..self }
    }

    /// Waits first; the charge is made before.
    pub(crate) fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Every byte in a segment of its own.
    pub(crate) fn dribbled(self) -> Self {
        Self { dribbles: true, ..self }
    }

    /// Only the first bytes of it, then this.
    pub(crate) fn cut(self, bytes: usize, ending: Ending) -> Self {
        Self { cut: Some(bytes), ending, ..self }
    }

    /// A second reply follows on the same connection, unasked.
    pub(crate) fn followed_by(self, pause: Duration, stray: &Self) -> Self {
        Self { stray: Some((pause, stray.bytes())), ..self }
    }

    /// The whole of it, then this.
    pub(crate) fn then(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }

    /// Whether it is charged.
    pub(super) fn is_charged(&self) -> bool {
        self.charges.unwrap_or((200..300).contains(&self.status))
    }

    /// What is charged, in micro-dollars, where that is not the list's price.
    pub(super) fn price(&self) -> Option<u64> {
        self.price
    }

    /// Its body, whole.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.body.clone()
    }

    /// What goes over the wire.
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
