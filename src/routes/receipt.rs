//! Passes the gateway's answer to a purchase on, and notices whether it was taken.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};

use crate::answer::{self, Answer, Body, BoxError};
use crate::problem::REPLAYED;
use crate::purchase::{Delivery, Receipt};
use crate::validate::Ignored;

/// The gateway's answer, its body unchanged.
pub(super) fn answer(receipt: Receipt) -> Answer {
    let mut answer = passed_on(receipt.status, receipt.is_json, Bytes::new());
    *answer.body_mut() = match receipt.delivery {
        None => Body::from(receipt.body),
        Some(delivery) => Body::stream(Noticed::new(receipt.body, Some(delivery))),
    };
    let headers = answer.headers_mut();
    if let Ok(toll) = HeaderValue::try_from(receipt.toll.to_string()) {
        headers.insert("tollgate-toll", toll);
    }
    if receipt.is_replay {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    answer
}

/// The gateway's answer in other words. A replay's own bytes stay until these are gone: the room that
/// they take bounds both.
pub(super) fn translated(receipt: Receipt, body: Bytes) -> Answer {
    let original = receipt.is_replay.then(|| receipt.body.clone());
    let answer = answer(Receipt { body, ..receipt });
    match original {
        Some(original) => answer.map(|body| body.holding(original)),
        None => answer,
    }
}

/// The answer with the names of what was asked for and is not done.
pub(super) fn naming(ignored: &Ignored, mut answer: Answer) -> Answer {
    if let Some(Ok(names)) = ignored.names().map(HeaderValue::try_from) {
        answer.headers_mut().insert("tollgate-ignored", names);
    }
    answer
}

/// A body of the gateway, labelled as what it was found to be.
pub(super) fn passed_on(status: StatusCode, is_json: bool, body: Bytes) -> Answer {
    let media_type = match is_json {
        true => "application/json",
        false => "text/plain; charset=utf-8",
    };
    let mut answer = answer::bytes_of(status, media_type, body);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// A body that notes when the connection has taken its last part, shortly before that is written. It is
/// handed out in parts, and the connection asks for more as the client takes them, so the end is not
/// reached long before the client is there; what the system buffers cannot be seen. One that is dropped
/// before that did not arrive, and an identical purchase soon after is its repeat.
pub(super) struct Noticed {
    rest: Bytes,
    delivery: Option<Delivery>,
}

impl Noticed {
    /// A body of which somebody is told, where there is somebody.
    pub(super) fn new(rest: Bytes, delivery: Option<Delivery>) -> Self {
        Self { rest, delivery }
    }
}

impl http_body::Body for Noticed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let most = self.rest.len().min(answer::PART);
        let part = self.rest.split_to(most);
        if self.rest.is_empty()
            && let Some(delivery) = self.delivery.take()
        {
            delivery.taken();
        }
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
