//! Sends one attempt and reads its reply. The request is built from nothing: a constant method and
//! path, our key, our own JSON.
//!
//! Invariant: an attempt is written to one connection only. It moves to another one just when hyper
//! hands it back untouched, the proof that no byte of it was sent.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::timeout;
use tracing::warn;
use url::Url;
use url::form_urlencoded::byte_serialize;

use super::connect::{self, Connector};
use super::connection::{Connection, Failed};
use super::pool::Pool;
use super::{Attempt, Error, Reply, Transport, Unread, What, reply};
use crate::clock;
use crate::config::{Gateway, Key};
use crate::contract::wire;
use crate::redact::Redactor;

/// The largest reply that is kept, in bytes.
const MAX_REPLY: usize = 4 * 1_024 * 1_024;
/// How long a chosen connection may wait for its attempt to be authorized.
const MAX_AUTHORIZE: Duration = Duration::from_millis(500);
/// A larger chat has a connection of its own: a gateway may refuse it before it is complete, and on a
/// used connection that could be a second reply to an earlier request, so its outcome would be unknown.
/// This much goes out in one write, however small the kernel's send buffer still is.
const MAX_POOLED_BODY: usize = 16 * 1_024;
/// The deadline of a question that buys nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// One core's client. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    connector: Connector,
    pool: Pool,
    redactor: Redactor,
    /// The headers of every request, by key.
    heads: Vec<HeaderMap>,
    chat: Uri,
    video: Uri,
    billing: Uri,
    /// The path that all targets begin with.
    prefix: String,
    chat_timeout: Duration,
    video_timeout: Duration,
}

impl Client {
    pub fn new(
        base: &Url,
        keys: &[Key],
        settings: &Gateway,
        redactor: Redactor,
    ) -> io::Result<Self> {
        redactor.learn(keys);
        let prefix = base.path().trim_end_matches('/');
        let target = |path: &str| format!("{prefix}{path}").parse().map_err(io::Error::other);
        let shared = Shared {
            connector: Connector::new(base, settings.connect_timeout)?,
            pool: Pool::default(),
            redactor,
            heads: keys.iter().map(|key| head(base, key)).collect::<io::Result<_>>()?,
            chat: target(wire::CHAT)?,
            video: target(wire::VIDEO)?,
            billing: target(wire::API_KEYS)?,
            prefix: prefix.to_owned(),
            chat_timeout: settings.chat_timeout,
            video_timeout: settings.video_timeout,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// The headers of every request with this key, made once.
fn head(base: &Url, key: &Key) -> io::Result<HeaderMap> {
    let bearer = format!("Bearer {}", key.expose());
    let mut bearer = HeaderValue::from_str(&bearer).map_err(io::Error::other)?;
    bearer.set_sensitive(true);
    let mut head = connect::head(base)?;
    head.insert(AUTHORIZATION, bearer);
    head.insert(ACCEPT, HeaderValue::from_static("application/json"));
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(head)
}

impl Transport for Client {
    async fn send(&self, attempt: Attempt) -> Result<Reply, Error> {
        let outcome = self.shared.attempt(&attempt).await;
        if let Err(error) = &outcome {
            // The gateway's words are not in it: they could hold a key.
            warn!(%error, "the gateway did not answer as promised");
        }
        outcome
    }
}

impl Shared {
    async fn attempt(&self, attempt: &Attempt) -> Result<Reply, Error> {
        let mut request = self.request(attempt)?;
        // A pooled connection may prove dead before it takes a byte; a fresh one hardly ever does.
        let pooled = match &attempt.ask.what {
            What::Chat(body) if body.len() > MAX_POOLED_BODY => None,
            What::Chat(_) | What::VideoStatus { .. } | What::Billing => {
                self.pool.take(&attempt.ask.caller)
            }
            // Three dollars are not put on a connection that the gateway may be closing, nor is what
            // may cost as much.
            What::Video(_) | What::Other { .. } => None,
        };
        if let Some(connection) = pooled {
            let chosen = clock::now();
            authorize(attempt).await?;
            // The ledger may have taken long, and the gateway meanwhile hung up.
            let is_fresh = clock::now().duration_since(chosen) < MAX_AUTHORIZE;
            if is_fresh && connection.is_ready() {
                match self.exchange(connection, request, attempt).await {
                    Err(Failed::Unsent(Some(untouched))) => request = *untouched,
                    Err(Failed::Unsent(None)) => request = self.request(attempt)?,
                    outcome => {
                        if let Err(Failed::Sent(Error::Lost(_))) = outcome {
                            self.pool.rest();
                        }
                        return outcome.map_err(Error::from);
                    }
                }
            }
        }
        let connection = self.connector.connect().await?;
        authorize(attempt).await?;
        Ok(self.exchange(connection, request, attempt).await?)
    }

    fn request(&self, attempt: &Attempt) -> Result<Request<Full<Bytes>>, Error> {
        // Neither the settings nor percent-encoding leave anything that a target may not hold.
        let target = |path: &str| {
            format!("{}{path}", self.prefix).parse::<Uri>().map_err(|_| Error::NotTaken)
        };
        let (method, target, body) = match &attempt.ask.what {
            What::Chat(body) => (Method::POST, self.chat.clone(), body.clone()),
            What::Video(body) => (Method::POST, self.video.clone(), body.clone()),
            What::Billing => (Method::GET, self.billing.clone(), Bytes::new()),
            What::Other { method, path, body } => (method.clone(), target(path)?, body.clone()),
            What::VideoStatus { request_id, .. } => {
                let id: String = byte_serialize(request_id.as_bytes()).collect();
                let path = format!("{}?request_id={id}", wire::VIDEO_STATUS);
                (Method::GET, target(&path)?, Bytes::new())
            }
        };
        let head = self.heads.get(attempt.key).ok_or(Error::NoKeyLeft)?;
        Ok(connect::request(method, target, head.clone(), body))
    }

    async fn exchange(
        &self,
        mut connection: Connection,
        request: Request<Full<Bytes>>,
        attempt: &Attempt,
    ) -> Result<Reply, Failed> {
        let patience = match attempt.ask.what {
            What::Chat(_) => self.chat_timeout,
            What::Video(_) => self.video_timeout,
            What::Other { .. } if attempt.ask.what.is_purchase() => self.chat_timeout,
            What::Other { .. } | What::VideoStatus { .. } | What::Billing => READ_TIMEOUT,
        };
        let whole = async {
            let response = connection.send(request).await?;
            let reply = self.read(response, attempt).await?;
            // A refusal can come before the request is complete; an answer to it cannot.
            if connection.is_early() && reply.status.is_success() {
                return Err(Error::Status(reply.status).into());
            }
            self.pool.put(&attempt.ask.caller, connection);
            Ok(reply)
        };
        timeout(patience, whole).await.unwrap_or(Err(Error::Late(patience).into()))
    }

    async fn read(
        &self,
        response: http::Response<Incoming>,
        attempt: &Attempt,
    ) -> Result<Reply, Error> {
        let (head, body) = response.into_parts();
        reply::judge_head(head.status, &head.headers, attempt.key)?;
        let body = collect(body).await.map_err(Error::Lost)?;
        let body = self.redactor.bytes(body);
        if body.len() > MAX_REPLY {
            let is_paid = attempt.ask.what.is_purchase() && head.status.is_success();
            let unread = if is_paid { Unread::cut(&body) } else { Unread::default() };
            return Err(Error::TooLarge(unread));
        }
        Reply::read(&attempt.ask.what, head.status, body, attempt.key)
    }
}

/// The body, or more of its beginning than is taken.
async fn collect(mut body: Incoming) -> hyper::Result<Bytes> {
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while first.len().max(all.len()) <= MAX_REPLY {
        let Some(frame) = body.frame().await.transpose()? else { break };
        let Ok(data) = frame.into_data() else { continue };
        // Most come in one piece, which is not copied.
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

async fn authorize(attempt: &Attempt) -> Result<(), Error> {
    match &attempt.ask.before_send {
        Some(before_send) => before_send.authorize().await.map_err(Error::Aborted),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
