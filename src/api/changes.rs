//! Makes an admin's change once for each `Idempotency-Key`: it is repeated if its answer was lost, perhaps at
//! another server.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use blake3::Hash;
use http::{HeaderName, HeaderValue, StatusCode};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tracing::Instrument;
use uuid::Uuid;

use super::purchases;
use crate::api::people::People;
use crate::clock;
use crate::gate::Call;
use crate::gate::problem::{IDEMPOTENCY_KEY_REUSED, INTERNAL, Problem, REPLAYED, STILL_RUNNING};
use crate::gate::response::{Body, HandlerResult, Response};
use crate::purchase::DedupeBy;

/// How long a repeat waits for the change that it repeats.
const MAX_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Deserialize, Serialize)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// A change that has a key.
pub(super) struct KeyedChange {
    caller: Arc<str>,
    /// The hash of the caller, the method, the path and the key.
    id: Hash,
    payload: Hash,
    /// Seals the answer, which may hold a new token: the ledger knows the key by its hash only.
    seal: [u8; 32],
}

impl KeyedChange {
    pub(super) fn of(call: &Call) -> Result<Option<Self>, Problem> {
        let DedupeBy::IdempotencyKey(key) = purchases::dedupe_key(&call.head.headers)? else {
            return Ok(None);
        };
        let caller = call.caller.name();
        let path = call.head.uri.path();
        // Only the caller's name may have a space.
        let id = format!("{caller} {} {path} {key}", call.head.method);
        let seal = blake3::derive_key("tollgate: answer to a change", id.as_bytes());
        let [id, payload] = [id.as_bytes(), &call.body].map(blake3::hash);
        Ok(Some(Self { caller, id, payload, seal }))
    }

    /// Makes a change, or returns the answer of the same one. A refused change can be repeated.
    ///
    /// It has its own task: a client that disconnects must not leave a change that has begun and never ends.
    pub(super) async fn make(
        self,
        people: People,
        handling: Pin<Box<dyn Future<Output = HandlerResult> + Send>>,
    ) -> HandlerResult {
        let made = tokio::spawn(self.make_once(people, handling).in_current_span()).await;
        made.map_err(|_stopped| Problem::new(&INTERNAL))?
    }

    async fn make_once(
        self,
        people: People,
        handling: Pin<Box<dyn Future<Output = HandlerResult> + Send>>,
    ) -> HandlerResult {
        let give_up = clock::now() + MAX_WAIT;
        let id = *self.id.as_bytes();
        let payload = *self.payload.as_bytes();
        while let Some(earlier) = people.begin_change(&self.caller, id, payload).await? {
            if earlier.payload != payload {
                return Err(Problem::new(&IDEMPOTENCY_KEY_REUSED));
            }
            if let Some(sealed) = earlier.answer {
                return self.replay(&sealed);
            }
            if clock::now() >= give_up {
                return Err(Problem::new(&STILL_RUNNING).detail(
                    "the same change has begun and has not ended; if its server is gone, look \
                     whether it was made",
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
        let made = handling.await;
        people.end_change(id, made.as_ref().ok().map(|made| self.seal(made)));
        made
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        UnboundKey::new(&CHACHA20_POLY1305, &self.seal).ok().map(LessSafeKey::new)
    }

    fn seal(&self, response: &Response) -> Vec<u8> {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = response.headers().iter();
        let answer = Answer {
            status: response.status().as_u16(),
            headers: headers.map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: String::from_utf8_lossy(&response.body().whole().unwrap_or_default()).into(),
        };
        let mut sealed = serde_json::to_vec(&answer).unwrap_or_default();
        let id = Uuid::new_v4();
        let nonce = id.as_bytes().first_chunk::<NONCE_LEN>().copied().unwrap_or_default();
        let done = self.cipher().and_then(|cipher| {
            let nonce = Nonce::assume_unique_for_key(nonce);
            cipher.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed).ok()
        });
        // Without a seal, it cannot be replayed.
        done.map(|()| [&nonce, &*sealed].concat()).unwrap_or_default()
    }

    fn replay(&self, sealed: &[u8]) -> HandlerResult {
        let opened = self.cipher().zip(sealed.split_first_chunk()).and_then(|(cipher, parts)| {
            let nonce = Nonce::assume_unique_for_key(*parts.0);
            let mut sealed = parts.1.to_vec();
            let opened = cipher.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
            serde_json::from_slice::<Answer>(opened).ok()
        });
        let answer = opened.ok_or_else(|| Problem::new(&INTERNAL))?;
        let mut response = Response::new(Body::from(bytes::Bytes::from(answer.body)));
        *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
        for (name, value) in answer.headers {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                response.headers_mut().append(name, value);
            }
        }
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        Ok(response)
    }
}
