//! Refuses, before a cent is spent, what the gateway would refuse.
//!
//! Invariant: only this module makes a [`Checked`], and only what is `Checked` can be sent. What is
//! sent is the checked value written anew, never the caller's own bytes.
//!
//! Where the contract is silent, guesses hold: each is marked "Guess" where it is made, and listed in
//! `docs/explain/gateway.md`.

mod chat;
mod image_url;
mod jobs;
mod json;
mod log_in;
pub mod openai;
mod passthrough;
mod query;
mod reports;
mod rule;
mod text;
mod video;

use std::fmt;

use bytes::Bytes;

pub use chat::{ChatRules, chat};
pub use image_url::image_url;
pub use jobs::{JobIds, MOST_JOBS, StatusQuery, job_ids, request_id, status};
pub use log_in::{LogIn, log_in};
pub use passthrough::passthrough;
pub use query::no_query;
pub use reports::{EverybodyQuery, Shape, SinceQuery, everybody, since, too_many_rows};
pub use rule::Ignored;
pub use video::{VideoOrder, video, video_order};

use crate::contract::money::Usd;

/// A value that passed every rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked<T>(T);

impl<T> Checked<T> {
    pub fn get(&self) -> &T {
        &self.0
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Paid {
    Chat,
    Video,
    Other,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Order {
    pub paid: Paid,
    /// The model that `body` names; the path, where it is of an endpoint of `gateway.passthrough`.
    pub model: Box<str>,
    /// The price of `model`, from the same row of the catalog (or of the settings) that `model` was
    /// found in.
    pub toll: Usd,
    /// The JSON that is sent: the same fields in the same order for the same request, without
    /// blanks between them.
    pub body: Bytes,
}

/// Shows everything but the body: prompts do not belong in logs.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("paid", &self.paid)
            .field("model", &self.model)
            .field("toll", &self.toll)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}
