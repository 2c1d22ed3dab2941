//! Buys chat replies from Rust, without an HTTP request of one's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{Request, Response};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::json;
use tower::Service;

use super::Tollgate;
use crate::access::User;
use crate::gate::caller::Peer;
use crate::gate::problem::REPLAYED;
use crate::gate::rate::RETRY_COUNT;
use crate::gate::response::Body;
use crate::gateway::contract::money::Usd;

/// The buyer: a [`User`] with `access.mode = "host"`, else a [`Peer`], whose address is the caller in
/// open mode.
#[derive(Clone, Debug)]
pub enum Buyer {
    /// A user of the application.
    User(User),
    /// A client by its address.
    Peer(Peer),
}

impl From<User> for Buyer {
    fn from(user: User) -> Self {
        Self::User(user)
    }
}

impl From<Peer> for Buyer {
    fn from(peer: Peer) -> Self {
        Self::Peer(peer)
    }
}

/// A chat reply that was bought.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatReply {
    /// The text of the reply.
    pub content: String,
    /// The amount charged, in micro-dollars. A replay has the cost of its purchase, and is not charged again.
    pub cost_micros: u64,
    /// Whether this is the reply of an earlier call whose future was dropped.
    pub replayed: bool,
    /// The purchase's id, as in the log and in `tollgate purchase list`.
    pub purchase: String,
}

/// A chat that was refused, or whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
#[non_exhaustive]
pub struct ChatError {
    /// The HTTP status that a client would get.
    pub status: u16,
    /// The code of a [problem](https://datatracker.ietf.org/doc/html/rfc9457), such as
    /// `budget_exhausted`; `refused_by_gateway` if the gateway has refused it.
    pub code: String,
    /// The problem and its fix, as a sentence.
    pub detail: String,
    /// `no`, `yes` or `unknown`.
    pub charged: String,
    /// How long to wait before the next attempt, if that may help.
    pub retry_after: Option<Duration>,
}

impl Tollgate {
    /// Buys a chat reply, as `POST /api/v1/chat` does: with the same validation, limits, budgets and
    /// ledger. `messages` are roles and texts, in order.
    ///
    /// Identical calls at the same time buy a reply each. Once this is polled, dropping the future does
    /// not stop the purchase, and a call that repeats it gets its reply. To repeat a purchase after a
    /// crash, send a request with an `Idempotency-Key` to the service.
    ///
    /// ```
    /// use tollgate::{Config, Tollgate, User};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Tollgate::new(Config::sandbox().instant().set("access.mode", "host"))?;
    /// let reply = gate.chat(User::new("ada")?, "eta-5-mini", &[("user", "Hello")]).await?;
    /// assert_eq!(reply.cost_micros, 3_000);
    /// println!("{}", reply.content);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ChatError`], which says whether it was charged.
    pub async fn chat(
        &self,
        caller: impl Into<Buyer>,
        model: &str,
        messages: &[(&str, &str)],
    ) -> Result<ChatReply, ChatError> {
        let message = |(role, content): &(&str, &str)| json!({ "role": role, "content": content });
        let messages: Vec<_> = messages.iter().map(message).collect();
        let mut request = Request::new(json!({ "model": model, "messages": messages }).to_string());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static("/api/v1/chat");
        let headers = request.headers_mut();
        headers.insert(HOST, http::HeaderValue::from_static("localhost"));
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        // The caller sees whether its future was dropped, so another call is no retry.
        headers.insert(RETRY_COUNT, http::HeaderValue::from_static("0"));
        let peer = match caller.into() {
            Buyer::Peer(peer) => peer,
            Buyer::User(user) => {
                request.extensions_mut().insert(user);
                Peer(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            }
        };
        request.extensions_mut().insert(peer);
        let Ok(response) = self.clone().call(request).await;
        read(response).await
    }
}

#[derive(Deserialize)]
struct Reply {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    content: String,
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
    #[serde(default)]
    detail: String,
    charged: String,
}

async fn read(response: Response<Body>) -> Result<ChatReply, ChatError> {
    let (head, body) = response.into_parts();
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    let cost: Option<Usd> = text("tollgate-cost").and_then(|cost| cost.parse().ok());
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let (status, is_success) = (head.status.as_u16(), head.status.is_success());
    let seconds = text(RETRY_AFTER.as_str()).and_then(|seconds| seconds.parse().ok());
    let retry_after = seconds.map(Duration::from_secs);
    let refused = |code: &str, charged: &str| ChatError {
        status,
        code: code.to_owned(),
        detail: format!("the gateway answered with {status}: {}", String::from_utf8_lossy(&body)),
        charged: charged.to_owned(),
        retry_after,
    };
    if is_success {
        let reply: Reply =
            serde_json::from_slice(&body).map_err(|_| refused("unreadable_reply", "yes"))?;
        let purchase = text("tollgate-purchase").unwrap_or_default().to_owned();
        let cost_micros = cost.unwrap_or_default().as_micros();
        let replayed = head.headers.contains_key(REPLAYED);
        return Ok(ChatReply { content: reply.message.content, cost_micros, replayed, purchase });
    }
    let Ok(Refusal { code, detail, charged }) = serde_json::from_slice(&body) else {
        return Err(refused("refused_by_gateway", "no"));
    };
    Err(ChatError { status, code, detail, charged, retry_after })
}
