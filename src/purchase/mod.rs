//! From a checked order to a receipt. Everything here is typed; no HTTP request comes this far.

pub mod detached;
pub mod send;

use bytes::Bytes;
use http::StatusCode;

use crate::contract::money::Usd;
use crate::store::Caller;
use crate::validate::{Checked, Order};

/// What a caller wants to buy. Only a [`Checked`] order can be in it.
#[derive(Clone, Debug)]
pub struct Purchase {
    /// Whose purchase it is.
    pub caller: Caller,
    /// What is bought, at which toll.
    pub order: Checked<Order>,
}

/// The gateway's answer to a purchase, to be passed on.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The gateway's status: a success or a definitive refusal.
    pub status: StatusCode,
    /// Whether the body is JSON.
    pub is_json: bool,
    /// The gateway's body.
    pub body: Bytes,
    /// What it cost; nothing for a refusal.
    pub toll: Usd,
}
