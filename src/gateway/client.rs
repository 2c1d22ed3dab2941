//! Sends one attempt and reads its reply. The request consists of a constant method and path, our
//! key and our own JSON; nothing is copied from the caller.
//!
//! Invariant: an attempt is written to one connection only. It moves to another one only after
//! [`Error::ClosedBeforeSend`], which proves that no byte was sent.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Uri, response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use tokio::time::timeout;
use tracing::warn;
use url::Url;
use url::form_urlencoded::byte_serialize;

use super::connect::{self, Connector};
use super::connection::Connection;
use super::pool::Pool;
use super::{Attempt, Error, GatewayCall, GatewayReply, SendAttempt, UnparsableReply};
use crate::clock;
use crate::config::{GatewayConfig, Key};
use crate::gateway::contract::wire;
use crate::gateway::redact::Redactor;

const MAX_REPLY: usize = 4 * 1_024 * 1_024;
/// The most memory that is reserved for a reply before it arrives.
const MAX_EXPECTED: usize = 64 * 1_024;
/// A pooled connection is not used if its attempt took longer than this to authorize.
const MAX_AUTHORIZE: Duration = Duration::from_millis(500);
/// A larger chat gets a fresh connection, because the gateway may reject it before it is complete.
/// On a used connection, that could be a second reply to an earlier request.
const MAX_POOLED_BODY: usize = 16 * 1_024;
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a reply that has arrived may take to be read after its timeout: if the process stood still, the
/// timer fires first.
const LAST_READ: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    connector: Connector,
    /// `gateway.keep_alive`.
    keeps_connections: bool,
    pool: Pool,
    redactor: Redactor,
    headers: Vec<HeaderMap>,
    chat: Uri,
    video: Uri,
    prefix: String,
    chat_timeout: Duration,
    video_timeout: Duration,
}

impl Client {
    pub fn new(
        base: &Url,
        keys: &[Key],
        settings: &GatewayConfig,
        redactor: Redactor,
    ) -> io::Result<Self> {
        redactor.add_keys(keys);
        let prefix = base.path().trim_end_matches('/');
        let target = |path: &str| format!("{prefix}{path}").parse().map_err(io::Error::other);
        let shared = Shared {
            connector: Connector::new(base, settings.connect_timeout)?,
            keeps_connections: settings.keep_alive,
            pool: Pool::default(),
            redactor,
            headers: keys.iter().map(|key| head(base, key)).collect::<io::Result<_>>()?,
            chat: target(wire::CHAT)?,
            video: target(wire::VIDEO)?,
            prefix: prefix.to_owned(),
            chat_timeout: settings.chat_timeout,
            video_timeout: settings.video_timeout,
        };
        Ok(Self(Arc::new(shared)))
    }
}

fn head(base: &Url, key: &Key) -> io::Result<HeaderMap> {
    let bearer = format!("Bearer {}", key.expose());
    let mut bearer = HeaderValue::from_str(&bearer).map_err(io::Error::other)?;
    bearer.set_sensitive(true);
    let mut head = connect::base_headers(base)?;
    head.insert(AUTHORIZATION, bearer);
    head.insert(ACCEPT, HeaderValue::from_static("application/json"));
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(head)
}

impl SendAttempt for Client {
    async fn send(&self, attempt: Attempt) -> Result<GatewayReply, Error> {
        let outcome = self.0.attempt(&attempt).await;
        if let Err(error) = &outcome {
            // The error contains no text from the gateway, which could include a key.
            warn!(%error, "gateway request failed");
        }
        outcome
    }
}

impl Shared {
    async fn attempt(&self, attempt: &Attempt) -> Result<GatewayReply, Error> {
        let _in_use = self.pool.enter();
        let pooled = match &attempt.request.call {
            _ if !self.keeps_connections => None,
            GatewayCall::Chat(body) if body.len() > MAX_POOLED_BODY => None,
            GatewayCall::Chat(_) | GatewayCall::VideoStatus { .. } | GatewayCall::Billing => {
                self.pool.take(&attempt.request.caller)
            }
            GatewayCall::Video(_) | GatewayCall::Passthrough { .. } => None,
        };
        if let Some(mut connection) = pooled {
            let taken_at = clock::now();
            authorize(attempt).await?;
            // The gateway may have closed the connection during a slow ledger write.
            let is_fresh = clock::now().duration_since(taken_at) < MAX_AUTHORIZE;
            if is_fresh && connection.is_ready() {
                let outcome = self.exchange(connection, attempt).await;
                if let Err(Error::Lost(_)) = outcome {
                    self.pool.pause();
                }
                if !matches!(outcome, Err(Error::ClosedBeforeSend)) {
                    return outcome;
                }
            }
        }
        let connection = self.connector.connect().await?;
        authorize(attempt).await?;
        self.exchange(connection, attempt).await
    }

    /// Fills `headers`, which are empty.
    fn request(
        &self,
        attempt: &Attempt,
        mut headers: HeaderMap,
    ) -> Result<Request<Full<Bytes>>, Error> {
        // Cannot fail: the settings and percent-encoding leave only valid characters.
        let target = |path: &str| {
            format!("{}{path}", self.prefix).parse::<Uri>().map_err(|_| Error::ClosedBeforeSend)
        };
        let (method, target, body) = match &attempt.request.call {
            GatewayCall::Chat(body) => (Method::POST, self.chat.clone(), body.clone()),
            GatewayCall::Video(body) => (Method::POST, self.video.clone(), body.clone()),
            GatewayCall::Billing => (Method::GET, target(wire::API_KEYS)?, Bytes::new()),
            GatewayCall::Passthrough { method, path, body } => {
                (method.clone(), target(path)?, body.clone())
            }
            GatewayCall::VideoStatus { request_id, .. } => {
                let id: String = byte_serialize(request_id.as_bytes()).collect();
                let path = format!("{}?request_id={id}", wire::VIDEO_STATUS);
                (Method::GET, target(&path)?, Bytes::new())
            }
        };
        let head = self.headers.get(attempt.key).ok_or(Error::AllKeysRejected)?;
        headers.extend(head.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(connect::build_request(method, target, headers, body))
    }

    async fn exchange(
        &self,
        mut connection: Connection,
        attempt: &Attempt,
    ) -> Result<GatewayReply, Error> {
        let call = &attempt.request.call;
        let limit = if matches!(call, GatewayCall::Video(_)) {
            self.video_timeout
        } else if call.is_purchase() {
            self.chat_timeout
        } else {
            READ_TIMEOUT
        };
        let exchanged = async {
            let request = self.request(attempt, connection.take_headers())?;
            let (head, body) = connection.send(request).await?.into_parts();
            let reply = connection.drive(self.read(&head, body, attempt)).await?;
            // A refusal may arrive before the request is complete; a success cannot.
            if connection.replied_early() && reply.status.is_success() {
                return Err(Error::Status(reply.status));
            }
            if self.keeps_connections {
                connection.recycle(head.headers);
                self.pool.put(&attempt.request.caller, connection);
            }
            Ok(reply)
        };
        finish_within(limit, exchanged).await.unwrap_or(Err(Error::Timeout(limit)))
    }

    async fn read(
        &self,
        head: &response::Parts,
        body: Incoming,
        attempt: &Attempt,
    ) -> Result<GatewayReply, Error> {
        GatewayReply::check_head(head.status, &head.headers, attempt.key)?;
        let body = collect(body).await.map_err(Error::Lost)?;
        let body = self.redactor.redact_bytes(body);
        if body.len() > MAX_REPLY {
            let is_paid = attempt.request.call.is_purchase() && head.status.is_success();
            let kept = is_paid.then(|| UnparsableReply::truncated(&body));
            return Err(Error::TooLarge(kept.unwrap_or_default()));
        }
        GatewayReply::parse(&attempt.request.call, head.status, body, attempt.key)
    }
}

/// Returns `None` if the work takes longer. Data that has arrived by then is still read.
async fn finish_within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    match timeout(limit, &mut work).await {
        Ok(done) => Some(done),
        Err(_elapsed) => timeout(LAST_READ, work).await.ok(),
    }
}

/// Copies the body, so that a kept reply does not hold hyper's read buffer. Stops once it is larger
/// than [`MAX_REPLY`].
async fn collect(mut body: Incoming) -> hyper::Result<Bytes> {
    let expected = body.size_hint().exact().and_then(|size| usize::try_from(size).ok());
    let mut all = Vec::with_capacity(expected.unwrap_or(0).min(MAX_EXPECTED));
    while !body.is_end_stream() && all.len() <= MAX_REPLY {
        let Some(frame) = body.frame().await.transpose()? else { break };
        if let Ok(data) = frame.into_data() {
            all.extend_from_slice(&data);
        }
    }
    Ok(all.into())
}

async fn authorize(attempt: &Attempt) -> Result<(), Error> {
    let Some(before_send) = &attempt.request.before_send else { return Ok(()) };
    before_send.authorize().await.map_err(Error::Aborted)
}

#[cfg(test)]
mod tests;
