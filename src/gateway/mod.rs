//! The gateway client: keys, rate limit, connections and replies.
//!
//! Invariants:
//! - Only [`client`] writes the `authorization` header.
//! - No header or body of a caller is copied into a request.
//! - Once any byte has been sent, a request is never retried, except after a 401 or 429.

pub mod billing;
pub mod client;
mod connect;
mod connection;
pub mod contract;
mod error;
pub mod fetch;
pub mod media;
mod pool;
pub mod rate_limit;
pub mod redact;
mod reply;
pub mod sandbox;
mod service;
pub mod token_endpoint;

use std::future::Ready;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, Either};
use http::Method;
use tower::util::BoxCloneSyncService;

use crate::clock::Instant;
use crate::ledger::PurchaseId;

pub use error::{Error, UnparsableReply};
pub use rate_limit::Slot;
pub use reply::GatewayReply;
pub use service::{Gateway, KeyRing, ScriptedClient, SendAttempt};

pub type GatewayService = BoxCloneSyncService<GatewayRequest, GatewayReply, Error>;

#[derive(Clone)]
pub struct GatewayRequest {
    pub call: GatewayCall,
    /// Authorizes or cancels a purchase before its first byte.
    pub before_send: Option<Arc<dyn BeforeSend>>,
    /// For the fair queue, in which callers take turns. Empty for tollgate's own requests.
    pub caller: Arc<str>,
    pub preferred_key: Option<usize>,
    /// Waits for a slot without a deadline; otherwise `gateway.max_wait` applies.
    pub is_patient: bool,
}

impl GatewayRequest {
    pub fn free(call: GatewayCall) -> Self {
        Self {
            call,
            before_send: None,
            caller: Arc::default(),
            preferred_key: None,
            is_patient: false,
        }
    }

    #[must_use]
    pub fn patient(self) -> Self {
        Self { is_patient: true, ..self }
    }
}

/// Decides whether to send, once a connection is open and before the first byte is written.
pub trait BeforeSend: Send + Sync {
    /// Called for each attempt, so again after a 401 or 429.
    fn authorize(&self) -> Authorization<'_>;

    fn cancelled(&self) -> BoxFuture<'_, ()>;

    /// Returns the purchase, if it is one.
    fn purchase(&self) -> Option<PurchaseId> {
        None
    }

    /// Returns the slot of the first attempt, if one is recorded already.
    fn take_slot(&self) -> Option<Slot> {
        None
    }
}

/// Boxed only if it has to wait.
pub type Authorization<'a> = Either<Ready<Result<(), Abort>>, BoxFuture<'a, Result<(), Abort>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Abort {
    #[error("every caller has left")]
    Cancelled,
    #[error("the ledger cannot record the request yet; try again in a few seconds")]
    Unrecorded,
    #[error("the gateway's key and this server's ledger belong to different accounts")]
    OtherAccount,
}

#[derive(Clone, Debug)]
pub enum GatewayCall {
    Chat(Bytes),
    Video(Bytes),
    VideoStatus {
        request_id: Box<str>,
        is_watched: bool,
    },
    Billing,
    /// An endpoint of `gateway.passthrough`, which the contract does not describe.
    Passthrough {
        /// `POST` buys, `GET` is free.
        method: Method,
        path: Box<str>,
        /// Strict JSON, or empty for `GET`.
        body: Bytes,
    },
}

impl GatewayCall {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Chat(_) => "chat",
            Self::Video(_) => "video",
            Self::VideoStatus { .. } => "status",
            Self::Billing => "billing",
            Self::Passthrough { .. } => "other",
        }
    }

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
    pub key: usize,
    pub since: Instant,
}
