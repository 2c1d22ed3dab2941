//! Whatever talks to the gateway: the ring of keys, the connections, the reading of replies.
//!
//! Invariants: only [`client`] writes `authorization`; a request is built from nothing of the
//! caller's; nothing is sent twice, except after a refusal that is free (401, 429) or when the
//! connection took no byte of it.

pub mod billing;
pub mod client;
mod connect;
mod connection;
mod error;
pub mod fetch;
mod gateway;
mod pool;
pub mod rate_limit;
mod reply;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;
use tower::util::BoxCloneSyncService;

use crate::clock::Instant;

pub use error::{Error, UnparsableReply};
pub use gateway::{Gateway, KeyRing, SendAttempt};
pub use reply::GatewayReply;

pub type GatewayService = BoxCloneSyncService<GatewayRequest, GatewayReply, Error>;

#[derive(Clone)]
pub struct GatewayRequest {
    pub call: GatewayCall,
    /// Authorizes or cancels it before the first byte; nothing does where it costs nothing.
    pub before_send: Option<Arc<dyn BeforeSend>>,
    /// For whom it is asked: those who wait for the window take turns. Empty is tollgate itself.
    pub caller: Arc<str>,
    /// The place in the ring of the key to try first, if any.
    pub preferred_key: Option<usize>,
    /// Waits for its turn however long that takes: `gateway.max_wait` is for whoever has a client.
    pub is_patient: bool,
}

impl GatewayRequest {
    /// A question of tollgate's own, which costs nothing.
    pub fn free(what: GatewayCall) -> Self {
        Self {
            call: what,
            before_send: None,
            caller: "".into(),
            preferred_key: None,
            is_patient: false,
        }
    }

    /// The same, which waits for its turn however long that takes.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { is_patient: true, ..self }
    }
}

/// Decides right before the first byte: the connection is there, and nothing was sent.
pub trait BeforeSend: Send + Sync {
    /// Lets an attempt go, or not. It is asked again for a further attempt after a refusal that was free.
    fn authorize(&self) -> BoxFuture<'_, Result<(), Abort>>;

    /// Resolves when nobody waits for it any more.
    fn cancelled(&self) -> BoxFuture<'_, ()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Nobody waits for it any more who may buy it.
    Cancelled,
    /// It could not be recorded as sent.
    Unrecorded,
    /// The gateway's account is known to be another one than the ledger's.
    OtherAccount,
}

/// The gateway's endpoints (contract 4) as tollgate uses them.
#[derive(Clone, Debug)]
pub enum GatewayCall {
    /// Buys a chat; the body was validated and re-serialised.
    Chat(Bytes),
    /// Buys a video; the body was validated and re-serialised.
    Video(Bytes),
    VideoStatus {
        request_id: Box<str>,
        is_watched: bool,
    },
    Billing,
    /// Asks or buys at an endpoint of `gateway.passthrough`, of which the contract says nothing.
    Passthrough {
        /// `POST` buys; `GET` asks.
        method: Method,
        path: Box<str>,
        /// Strict JSON; empty with `GET`.
        body: Bytes,
    },
}

impl GatewayCall {
    /// Whether it spends money, so that a lost reply leaves the outcome unknown.
    pub fn is_purchase(&self) -> bool {
        match self {
            Self::Chat(_) | Self::Video(_) => true,
            Self::VideoStatus { .. } | Self::Billing => false,
            Self::Passthrough { method, .. } => *method == Method::POST,
        }
    }
}

#[derive(Clone)]
pub struct Attempt {
    pub request: GatewayRequest,
    /// The key's place in the ring.
    pub key: usize,
    /// When it was first asked, with whichever key.
    pub since: Instant,
}
