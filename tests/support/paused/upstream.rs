//! A scripted gateway, in place of the HTTP client that would ask a real one.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::timeout;
use tollgate::clock::{self, Instant};
use tollgate::gateway::{Attempt, Error, GatewayCall, GatewayReply};

use crate::support::canary::Canary;
use crate::support::received::ReceivedRequest;
use crate::support::upstream::Charge;
use crate::support::{PATIENCE, Reply, lock, log};

const LISTING: &str = "/api/api-keys";

type Answering = Box<dyn Fn(&ReceivedRequest) -> Reply + Send + Sync>;

/// A scripted gateway. Its clones are the same one.
#[derive(Clone)]
pub(crate) struct PausedUpstream(Arc<Script>);

struct Script {
    canaries: Vec<Canary>,
    /// The length of the log before these keys existed.
    logged: usize,
    answer: Answering,
    state: Mutex<State>,
    /// The number of requests.
    arrived: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    requests: Vec<ReceivedRequest>,
    arrivals: Vec<Instant>,
    charged: Vec<Charge>,
    listing: Option<Reply>,
    is_unreachable: bool,
}

impl PausedUpstream {
    /// Starts one that answers every request with `answer`, except for the listing of keys.
    pub(crate) fn start(
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::with(1, answer)
    }

    /// Does the same with this many keys.
    pub(crate) fn with(
        keys: usize,
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Script {
            logged: log::length(),
            canaries: (0..keys).map(|_| Canary::new()).collect(),
            answer: Box::new(answer),
            state: Mutex::default(),
            arrived: watch::Sender::default(),
        }))
    }

    /// Sets the reply to fetches of the listing. Until then it is a 404.
    pub(crate) fn set_listing(&self, reply: Reply) {
        lock(&self.0.state).listing = Some(reply);
    }

    /// Sets whether it can be connected to.
    pub(crate) fn set_reachable(&self, is_reachable: bool) {
        lock(&self.0.state).is_unreachable = !is_reachable;
    }

    pub(crate) fn canaries(&self) -> &[Canary] {
        &self.0.canaries
    }

    /// Returns every request so far, without fetches of the listing.
    pub(crate) fn received_requests(&self) -> Vec<ReceivedRequest> {
        lock(&self.0.state).requests.clone()
    }

    /// Returns when each request arrived, of any kind.
    pub(crate) fn arrivals(&self) -> Vec<Instant> {
        lock(&self.0.state).arrivals.clone()
    }

    /// Returns the number of requests, without fetches of the listing.
    pub(crate) fn requests(&self) -> usize {
        lock(&self.0.state).requests.len()
    }

    /// Returns the number of purchases.
    pub(crate) fn purchases(&self) -> usize {
        lock(&self.0.state).requests.iter().filter(|received| received.method == "POST").count()
    }

    /// Returns what this process logged since its keys exist.
    pub(super) fn logged(&self) -> Vec<u8> {
        log::since(self.0.logged)
    }

    /// Returns its charges, each with what was bought.
    pub(super) fn charged(&self) -> Vec<Charge> {
        lock(&self.0.state).charged.clone()
    }

    /// Returns its charges in micro-dollars.
    pub(crate) fn charges(&self) -> Vec<u64> {
        lock(&self.0.state).charged.iter().map(|charge| charge.micros).collect()
    }

    /// Waits until it has received this many requests, without fetches of the listing.
    pub(crate) async fn wait_for(&self, requests: usize) {
        let mut arrived = self.0.arrived.subscribe();
        let waiting = timeout(PATIENCE, arrived.wait_for(|count| *count >= requests));
        waiting.await.expect("the gateway hears the request").unwrap();
    }

    /// Asserts that at most `limit` requests arrived in any `period`.
    pub(crate) fn assert_held(&self, limit: usize, period: Duration) {
        for (place, stretch) in self.arrivals().windows(limit + 1).enumerate() {
            let length = stretch[limit] - stretch[0];
            assert!(length >= period, "{} arrivals within {length:?}, from {place} on", limit + 1);
        }
    }

    /// Does what the HTTP client does with an attempt.
    pub(super) async fn attempt(
        self,
        attempt: Attempt,
        limit: Duration,
    ) -> Result<GatewayReply, Error> {
        if lock(&self.0.state).is_unreachable {
            return Err(Error::Unreachable(io::ErrorKind::ConnectionRefused.into()));
        }
        if let Some(before_send) = &attempt.request.before_send {
            before_send.authorize().await.map_err(Error::Aborted)?;
        }
        let reply = self.receive(&attempt);
        let Ok(reply) = timeout(limit, reply.read()).await else {
            return Err(Error::Timeout(limit));
        };
        let Some((status, headers, body)) = reply else { return Err(lost().await) };
        GatewayReply::check_head(status, &headers, attempt.key)?;
        GatewayReply::parse(&attempt.request.call, status, body, attempt.key)
    }

    /// Records the request and its charge.
    fn receive(&self, attempt: &Attempt) -> Reply {
        let Script { canaries, answer, state, arrived, .. } = &*self.0;
        let (method, target, body) = match &attempt.request.call {
            GatewayCall::Chat(body) => ("POST", "/api/v1/chat".to_owned(), body.to_vec()),
            GatewayCall::Video(body) => ("POST", "/api/v1/video".to_owned(), body.to_vec()),
            GatewayCall::VideoStatus { request_id, .. } => {
                ("GET", format!("/api/v1/video/status?request_id={request_id}"), Vec::new())
            }
            GatewayCall::Billing => ("GET", LISTING.to_owned(), Vec::new()),
            GatewayCall::Passthrough { method, path, body } => {
                (method.as_str(), path.to_string(), body.to_vec())
            }
        };
        let bearer = format!("Bearer {}", canaries[attempt.key].key());
        let received = ReceivedRequest {
            number: lock(state).requests.len(),
            connection: 0,
            method: method.to_owned(),
            target,
            headers: vec![("authorization".to_owned(), bearer)],
            bytes: body.clone(),
            body,
        };
        lock(state).arrivals.push(clock::now());
        if received.target == LISTING {
            return lock(state).listing.clone().unwrap_or_else(|| Reply::error(404));
        }
        let reply = answer(&received);
        lock(state).charged.extend(reply.charge(&received));
        lock(state).requests.push(received);
        arrived.send_modify(|count| *count += 1);
        reply
    }
}

/// Returns hyper's error for a broken connection, which only hyper can create.
async fn lost() -> Error {
    let (near, far) = tokio::io::duplex(64);
    drop(far);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near))
        .await
        .expect("nothing is read or written yet");
    let sent = sender.send_request(Request::new(Empty::<Bytes>::new()));
    let (_, sent) = tokio::join!(connection, sent);
    Error::Lost(sent.expect_err("nobody answers"))
}
