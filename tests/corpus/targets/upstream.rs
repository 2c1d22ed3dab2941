//! Whatever bytes a gateway answers with, one question has one reply at most, within its bounds, without
//! a key; and no byte of it is taken for the answer to the next question.
//!
//! The first byte says how the others are sent: bit 0, the connection ends after them; bit 1, in small
//! pieces; bit 2, the last 64 of them again and again, beyond any bound.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::sleep;
use tollgate::clock;
use tollgate::config::{Key, Settings};
use tollgate::gateway::client::Client;
use tollgate::gateway::redact::Redactor;
use tollgate::gateway::{Attempt, Error, GatewayCall, GatewayReply, GatewayRequest, SendAttempt};
use tollgate::metrics::Metrics;

#[rustfmt::skip]
pub(super) const WORDS: &[&str] = &[
    "\r\n", "\n", "\r\n\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.0 200 OK\r\n", "HTTP/1.1 204 No Content\r\n", "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\n", "HTTP/1.1 401 Unauthorized\r\n", "HTTP/1.1 429 \r\n", "HTTP/1.1 302 Found\r\n",
    "content-length: 2\r\n", "content-length: 0\r\n", "Content-Length: 99999999999999999999\r\n", "transfer-encoding: chunked\r\n",
    "content-encoding: gzip\r\n", "connection: close\r\n", "connection: keep-alive\r\n", "retry-after: 99999999999\r\n",
    "2\r\n{}\r\n0\r\n\r\n", "0\r\n\r\n", "ffffffffffffffff\r\n", "{}", "{\"a\":1}", "svc_sk_CANARY_0123456789abcdef", "\0", "\u{85}",
];

const KEY: &str = "svc_sk_CANARY_0123456789abcdef";
/// What is answered to every question but the first.
const NEXT: &str = r#"{"message":{"role":"assistant","content":"the next"}}"#;
/// A reply that ends neither by its length nor by its connection is cut after this.
const PATIENCE: Duration = Duration::from_millis(3);
/// The client's own; wide, as only a broken gateway makes it wait.
const TIMEOUT: Duration = Duration::from_secs(20);
const LARGEST_REPLY: usize = 4 << 20;
const LARGEST_HEAD: usize = 64 << 10;

struct Stage {
    runtime: Runtime,
    listener: TcpListener,
}

thread_local! {
    static STAGE: RefCell<Stage> = RefCell::new(Stage::new());
}

pub(super) fn upstream(data: &[u8]) -> bool {
    let Some((how, script)) = data.split_first() else { return false };
    let script = Arc::new(Script { how: *how, bytes: script.to_vec() });
    STAGE.with_borrow(|stage| stage.runtime.block_on(stage.played(script)))
}

struct Script {
    how: u8,
    bytes: Vec<u8>,
}

impl Stage {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        Self { runtime, listener }
    }

    async fn played(&self, script: Arc<Script>) -> bool {
        let (written, mut is_written) = watch::channel(false);
        let (cut, is_cut) = watch::channel(false);
        let gateway = Gateway { script, heard: Arc::default(), written: Arc::new(written), is_cut };
        let clients = async {
            let client = self.client();
            let mut first = Box::pin(client.send(chat()));
            let patience = async {
                is_written.wait_for(|is_written| *is_written).await.ok();
                sleep(PATIENCE).await;
                cut.send_replace(true);
                std::future::pending().await
            };
            let first = tokio::select! {
                outcome = &mut first => outcome,
                () = patience => unreachable!("it never ends"),
            };
            let is_reply = first.is_ok();
            judge(first);
            // Who answers the next question now cuts it short, too, where it waits for more.
            let next = client.send(chat());
            let next = tokio::select! {
                outcome = next => outcome,
                () = async {
                    sleep(TIMEOUT / 4).await;
                    cut.send_replace(true);
                    std::future::pending().await
                } => unreachable!("it never ends"),
            };
            if let Ok(reply) = next {
                assert_eq!(reply.body, NEXT, "an answer to another question");
            }
            is_reply
        };
        tokio::select! {
            is_reply = clients => is_reply,
            () = gateway.serve(&self.listener) => unreachable!("it never ends"),
        }
    }

    fn client(&self) -> Client {
        let address = self.listener.local_addr().expect("bound");
        let base = format!("http://{address}").parse().expect("an address");
        let settings = Settings::default().gateway;
        let settings = tollgate::config::GatewayConfig { chat_timeout: TIMEOUT, ..settings };
        let keys = [Key::new(KEY.to_owned())];
        let redactor = Redactor::new(Arc::new(Metrics::default()));
        Client::new(&base, &keys, &settings, redactor).expect("a client")
    }
}

fn chat() -> Attempt {
    let what = GatewayCall::Chat(Bytes::from_static(b"{}"));
    Attempt { request: GatewayRequest::free(what), key: 0, since: clock::now() }
}

fn judge(outcome: Result<GatewayReply, Error>) {
    let (said, body) = match outcome {
        Ok(reply) => {
            assert!(reply.body.len() <= LARGEST_REPLY);
            let is_object = reply.body.trim_ascii_start().starts_with(b"{");
            assert!(!reply.status.is_success() || (reply.is_json && is_object), "{reply:?}");
            assert_ne!(reply.status.as_u16() / 100, 3);
            (String::new(), reply.body)
        }
        Err(error) => {
            let unread = error.unparsable_reply().cloned().unwrap_or_default();
            (format!("{error} {error:?}"), unread)
        }
    };
    for text in [said.as_bytes(), &body] {
        let text = text.to_ascii_lowercase();
        let key = KEY.to_ascii_lowercase();
        assert!(!text.windows(key.len()).any(|part| part == key.as_bytes()), "the key");
    }
}

/// Answers the first question as the script says, and every other one well.
#[derive(Clone)]
struct Gateway {
    script: Arc<Script>,
    heard: Arc<AtomicUsize>,
    written: Arc<watch::Sender<bool>>,
    is_cut: watch::Receiver<bool>,
}

impl Gateway {
    async fn serve(&self, listener: &TcpListener) {
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                tasks.spawn(self.clone().answer(stream));
            }
        }
    }

    async fn answer(mut self, mut stream: TcpStream) {
        loop {
            let mut is_cut = self.is_cut.clone();
            let is_question = tokio::select! {
                biased;
                is_question = question(&mut stream) => is_question,
                _ = is_cut.wait_for(|is_cut| *is_cut) => false,
            };
            if !is_question {
                return;
            }
            let answered = match self.heard.fetch_add(1, Ordering::Relaxed) {
                0 => self.play(&mut stream).await,
                _ => well(&mut stream).await,
            };
            if !answered.is_ok_and(|goes_on| goes_on) {
                return;
            }
        }
    }

    async fn play(&mut self, stream: &mut TcpStream) -> std::io::Result<bool> {
        let bytes = &self.script.bytes;
        let played = async {
            let small = if self.script.how & 2 != 0 { bytes.len().min(512) } else { 0 };
            for piece in bytes[..small].chunks(7) {
                stream.write_all(piece).await?;
                tokio::task::yield_now().await;
            }
            stream.write_all(&bytes[small..]).await?;
            if self.script.how & 4 != 0 && !bytes.is_empty() {
                let tail = &bytes[bytes.len().saturating_sub(64)..];
                let many = tail.repeat(LARGEST_HEAD / tail.len() + 1);
                for _ in 0..LARGEST_REPLY / LARGEST_HEAD + 2 {
                    stream.write_all(&many).await?;
                }
            }
            Ok(self.script.how & 1 == 0)
        };
        let played = played.await;
        self.written.send_replace(true);
        played
    }
}

async fn well(stream: &mut TcpStream) -> std::io::Result<bool> {
    let length = NEXT.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{NEXT}");
    stream.write_all(head.as_bytes()).await?;
    Ok(true)
}

/// Reads one whole question; `false` where the connection ends instead.
async fn question(stream: &mut TcpStream) -> bool {
    let mut text = Vec::new();
    // Its body is two bytes.
    while !text.ends_with(b"\r\n\r\n{}") {
        match stream.read_buf(&mut text).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
    true
}
