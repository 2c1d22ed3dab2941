//! The connection to the gateway, in place of the real client. It asks `BeforeSend` before the
//! first byte, and returns a reply, a rejection, or an error.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::time::sleep;
use tollgate::gateway::{Attempt, Error, GatewayReply, SendAttempt, UnparsableReply};
use tollgate::ledger::PurchaseId;

use crate::gateway::{Course, Fate};
use crate::world::{State, World};

/// How long a reported balance rejects purchases that it does not cover.
const FRESH: Duration = Duration::from_secs(15 * 60);

#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) world: World,
}

impl SendAttempt for Line {
    async fn send(&self, attempt: Attempt) -> Result<GatewayReply, Error> {
        let world = &self.world;
        let course = world.lock().gateway.course(&attempt);
        sleep(course.connect).await;
        if course.fate == Fate::NoConnection {
            tally(world, course.fate);
            return Err(Error::Unreachable(io::ErrorKind::ConnectionRefused.into()));
        }
        if let Some(before_send) = &attempt.request.before_send {
            let is_awaited = |id| world.lock().clients.waits_for(id);
            let was_awaited = before_send.purchase().is_none_or(is_awaited);
            before_send.authorize().await.map_err(Error::Aborted)?;
            if !was_awaited {
                let id = before_send.purchase();
                world.lock().broken(format!("{id:?} leaves although nobody waits for it"));
            }
        }
        tally(world, course.fate);
        let (flight, timeout) = take(world, &attempt, course);
        reply(world, &attempt, course, flight, timeout).await
    }
}

fn tally(world: &World, fate: Fate) {
    if let Some(fault) = fate.fault() {
        world.lock().tally.add(fault);
    }
}

/// The first byte is sent, so the ledger must have recorded it.
fn take(world: &World, attempt: &Attempt, course: Course) -> (usize, Duration) {
    let mut state = world.lock();
    let (now, life) = (state.now(), state.life);
    let timeout = state.setup.timeout;
    match state.gateway.take(attempt, course, (now, life)) {
        Ok(flight) => {
            let id = state.gateway.flights[flight].id;
            state.note(|| format!("flight {flight} of {id:?}: {course:?}"));
            if let Some(id) = id {
                let marked = state.books.is_marked(id);
                state.hold(marked);
                let is_first = state.gateway.flights[..flight].iter().all(|one| one.id != Some(id));
                let was_covered = is_covered(&state, id, now);
                if course.fate == Fate::NoCredit && was_covered {
                    let left = state.gateway.credit;
                    state.broken(format!("{id} is sold although the account has {left} left"));
                }
                if !is_first && !state.clients.waits_for(id) {
                    state.broken(format!("{id} is sent once more, and nobody waits for it"));
                }
            }
            (flight, timeout)
        }
        Err(why) => {
            state.broken(why);
            (usize::MAX, timeout)
        }
    }
}

/// Returns whether its price was held after the balance was read.
fn is_covered(state: &State, id: PurchaseId, now: Duration) -> bool {
    let set_aside = state.books.entries.get(&id).map(|entry| entry.set_aside);
    state.balance_read_at.is_some_and(|read_at| now < read_at + FRESH && set_aside > Some(read_at))
}

async fn reply(
    world: &World,
    attempt: &Attempt,
    course: Course,
    flight: usize,
    timeout: Duration,
) -> Result<GatewayReply, Error> {
    // The run ends at the next check.
    if flight == usize::MAX {
        return std::future::pending().await;
    }
    let comes = course.way + course.work;
    if comes >= timeout || matches!(course.fate, Fate::Late | Fate::ChargedTooLate) {
        sleep(timeout).await;
        return Err(Error::Timeout(timeout));
    }
    sleep(comes).await;
    let body = world.lock().gateway.body(flight, &attempt.request.call);
    let reply =
        |status, body| GatewayReply::parse(&attempt.request.call, status, body, attempt.key);
    match course.fate {
        Fate::Served | Fate::Cheaper => reply(StatusCode::OK, body),
        Fate::Refused => reply(StatusCode::UNPROCESSABLE_ENTITY, Bytes::from_static(b"{}")),
        Fate::NoCredit => reply(StatusCode::PAYMENT_REQUIRED, Bytes::from_static(b"{}")),
        Fate::NoConnection | Fate::NotTaken => Err(Error::ClosedBeforeSend),
        Fate::LostBefore | Fate::LostAfter | Fate::Cut => Err(lost().await),
        Fate::Late | Fate::ChargedTooLate => Err(Error::Timeout(timeout)),
        Fate::Garbled => Err(Error::Unparsable(StatusCode::OK, UnparsableReply::from_body(&body))),
        Fate::Encoded => Err(Error::Encoded),
        Fate::TooLarge => Err(Error::TooLarge(UnparsableReply::from_body(&body))),
        Fate::BrokeBefore | Fate::BrokeAfter => Err(Error::Status(StatusCode::BAD_GATEWAY)),
        Fate::Throttled { seconds } => {
            Err(Error::Throttled { retry_after: seconds.map(Duration::from_secs) })
        }
        Fate::KeyRefused => Err(Error::KeyRejected { key: attempt.key }),
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
