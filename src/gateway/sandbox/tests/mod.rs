//! A sandbox on a real socket, and what its clients see of it.

mod clips;
mod connection;
mod faults;
mod money;
mod purchases;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Sandbox, SandboxSettings};

/// No test waits longer than this for anything.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A running sandbox; it ends with the test's runtime, or when told to.
struct Running {
    sandbox: Sandbox,
    address: SocketAddr,
    key: String,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

/// The response.
struct Got {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// A sandbox that loses no time.
fn quick() -> SandboxSettings {
    SandboxSettings {
        reply_delay: Duration::ZERO,
        job_time: Duration::ZERO,
        ..SandboxSettings::default()
    }
}

async fn run(settings: SandboxSettings) -> Running {
    let sandbox = Sandbox::new(settings);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (stop, stopped) = oneshot::channel();
    let key = sandbox.keys().swap_remove(0);
    let served = tokio::spawn(sandbox.clone().serve(listener, async {
        let _ = stopped.await;
    }));
    Running { sandbox, address, key, stop, served }
}

impl Running {
    /// Sends on a connection of its own; `None` when that was closed without a reply.
    async fn send(&self, request: http::request::Builder, body: impl Into<Bytes>) -> Option<Got> {
        let request = request.body(Full::new(body.into())).expect("a well-formed request");
        let exchange = async {
            let stream = TcpStream::connect(self.address).await.expect("it listens");
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("open");
            tokio::spawn(connection);
            let (head, body) = sender.send_request(request).await.ok()?.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            Some(Got { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(MAX_WAIT, exchange).await.expect("within the maximum")
    }

    /// A request to `path` with the account's key and our address.
    fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {}", self.key))
    }

    async fn post(&self, path: &str, body: &Value) -> Option<Got> {
        self.send(self.request("POST", path), body.to_string()).await
    }

    /// Waits until the first chat is charged.
    async fn is_charged(&self) {
        let charged = async {
            while self.sandbox.charges().chat == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(MAX_WAIT, charged).await.expect("it is charged");
    }

    async fn get(&self, path: &str) -> Got {
        self.send(self.request("GET", path), "").await.expect("a reply")
    }

    async fn chat(&self, model: &str, prompt: &str) -> Option<Got> {
        self.post("/api/v1/chat", &chat_of(model, prompt)).await
    }

    async fn video(&self, body: Value) -> Option<Got> {
        self.post("/api/v1/video", &body).await
    }
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// The status and the name of the error.
    fn refusal(&self) -> (u16, String) {
        let name = self.json()["error"].as_str().unwrap_or_default().to_owned();
        (self.status.as_u16(), name)
    }
}

fn chat_of(model: &str, prompt: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": prompt}]})
}

fn refused(status: u16, name: &str) -> (u16, String) {
    (status, name.to_owned())
}
