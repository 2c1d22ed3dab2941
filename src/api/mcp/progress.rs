//! Progress of a chat as server-sent events, if the client asks for it.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame as BodyFrame;
use http_body_util::StreamBody;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Interval, interval, sleep};

use super::call::Running;
use super::reply::Frame;
use crate::gate::response::{self, Body, Response, write_event};

/// A slower answer is sent as events.
const GRACE: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(5);

struct Events {
    running: Running,
    frame: Frame,
    token: Box<RawValue>,
    ticks: Interval,
    count: u32,
}

/// Answers with JSON if the tool is fast, else with events that end with the answer. If the client
/// closes the stream, a purchase that was not sent yet is cancelled.
pub(super) async fn answer(mut running: Running, frame: Frame, token: &RawValue) -> Response {
    tokio::select! {
        biased;
        outcome = &mut running => frame.response(outcome),
        () = sleep(GRACE) => {
            let token = token.to_owned();
            let events = Events { running, frame, token, ticks: interval(INTERVAL), count: 0 };
            let body = StreamBody::new(stream::unfold(Some(events), next));
            response::event_stream(Response::new(Body::stream(body)))
        }
    }
}

async fn next(
    events: Option<Events>,
) -> Option<(Result<BodyFrame<Bytes>, Infallible>, Option<Events>)> {
    let mut events = events?;
    let mut text = Vec::new();
    let rest = tokio::select! {
        biased;
        outcome = &mut events.running => {
            write_event(&mut text, &events.frame.render(outcome).0);
            None
        }
        _ = events.ticks.tick() => {
            events.count += 1;
            let params = json!({
                "progressToken": events.token,
                "progress": events.count,
                "message": "waiting for the reply",
            });
            let notification =
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
            write_event(&mut text, notification.to_string().as_bytes());
            Some(events)
        }
    };
    Some((Ok(BodyFrame::data(text.into())), rest))
}
