//! Which connection carries which request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread;

use http::StatusCode;

use super::*;
use crate::config::Settings;
use crate::gate::problem::Charged;
use crate::gateway::GatewayRequest;
use crate::metrics::Metrics;

/// A gateway that answers every head at once, whether its body has come or not.
struct Gateway {
    address: String,
    /// The status of its answers.
    status: Arc<Mutex<u16>>,
    /// Its connections, with how many requests each has carried.
    connections: Arc<Mutex<Vec<(TcpStream, usize)>>>,
}

impl Gateway {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (status, connections) = (Arc::new(Mutex::new(200)), Arc::new(Mutex::new(Vec::new())));
        let gateway = Self { address, status, connections };
        let (status, connections) = (gateway.status.clone(), gateway.connections.clone());
        thread::spawn(move || {
            for (number, mut stream) in listener.incoming().flatten().enumerate() {
                stream.set_nodelay(true).unwrap();
                connections.lock().unwrap().push((stream.try_clone().unwrap(), 0));
                let (status, connections) = (Arc::clone(&status), Arc::clone(&connections));
                thread::spawn(move || {
                    while let Some(body) = head(&mut stream) {
                        connections.lock().unwrap()[number].1 += 1;
                        let status = *status.lock().unwrap();
                        let text = r#"{"message":{"content":"hi"}}"#;
                        let length = text.len();
                        let reply = format!(
                            "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{text}"
                        );
                        stream.write_all(reply.as_bytes()).ok();
                        stream.read_exact(&mut vec![0; body]).ok();
                    }
                });
            }
        });
        gateway
    }

    fn client(&self) -> Client {
        self.client_that(true)
    }

    fn client_that(&self, keep_alive: bool) -> Client {
        let settings = GatewayConfig { keep_alive, ..Settings::default().gateway };
        let redactor = Redactor::new(Arc::new(Metrics::default()));
        let keys = [Key::new("svc_sk_x".to_owned())];
        Client::new(&self.address.parse().unwrap(), &keys, &settings, redactor).unwrap()
    }

    /// How many requests each connection has carried.
    fn carried(&self) -> Vec<usize> {
        self.connections.lock().unwrap().iter().map(|(_, requests)| *requests).collect()
    }

    /// Whether the other side has closed this connection, within some seconds.
    fn is_closed(&self, number: usize) -> bool {
        let stream = self.connections.lock().unwrap()[number].0.try_clone().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        loop {
            match stream.peek(&mut [0]) {
                // The kernel does not restart a read with a timeout after a signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The gateway's thread has answered a head, and has yet to read the body.
                Ok(1..) => crate::sync::pause(Duration::from_millis(1)),
                outcome => return outcome.is_ok_and(|read| read == 0),
            }
        }
    }
}

/// Reads a head; how long its body is.
fn head(stream: &mut TcpStream) -> Option<usize> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0].to_ascii_lowercase());
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    Some(length.map_or(0, |length| length.parse().unwrap()))
}

async fn chat(client: &Client, caller: &str, body: usize) -> Result<StatusCode, Error> {
    let what = GatewayCall::Chat(vec![b' '; body].into());
    let ask = GatewayRequest { caller: caller.into(), ..GatewayRequest::free(what) };
    let reply = client.send(Attempt { request: ask, key: 0, since: clock::now() }).await?;
    Ok(reply.status)
}

/// Keeps a paused clock from advancing by itself while the value lives, so that no connection is
/// idle for too long.
fn stop_clock() -> mpsc::Sender<()> {
    let (end, ended) = mpsc::channel();
    tokio::task::spawn_blocking(move || ended.recv());
    end
}

#[tokio::test(start_paused = true)]
async fn connection_carries_one_request_unless_connections_are_kept() {
    let _stopped = stop_clock();
    let gateway = Gateway::start();
    let client = gateway.client_that(false);
    for _ in 0..3 {
        chat(&client, "ann", 2).await.expect("an answer");
    }
    assert_eq!(gateway.carried(), [1; 3]);
    assert!((0..3).all(|number| gateway.is_closed(number)));
}

#[tokio::test(start_paused = true)]
async fn connection_carries_requests_of_one_caller_only() {
    let _stopped = stop_clock();
    let gateway = Gateway::start();
    let client = gateway.client();
    for caller in ["ann", "ben", "ann", "", "ben", "ann", ""] {
        chat(&client, caller, 2).await.expect(caller);
    }
    assert_eq!(gateway.carried(), [3, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_few_and_the_longest_idle_is_closed_first() {
    let _stopped = stop_clock();
    let gateway = Gateway::start();
    let client = gateway.client();
    for caller in 0..=64 {
        chat(&client, &caller.to_string(), 2).await.expect("a reply");
    }
    tokio::task::yield_now().await;
    assert!(gateway.is_closed(0));
    for caller in [64, 1] {
        chat(&client, &caller.to_string(), 2).await.expect("a reply");
    }
    let carried = gateway.carried();
    assert_eq!((carried.len(), carried[64], carried[1], carried[0]), (65, 2, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn as_many_connections_are_kept_as_were_in_use() {
    let _stopped = stop_clock();
    let gateway = Gateway::start();
    let client = gateway.client();
    for _ in 0..2 {
        let chats = (0..100).map(|_| chat(&client, "ann", 2));
        for outcome in futures_util::future::join_all(chats).await {
            outcome.expect("a reply");
        }
    }
    assert_eq!(gateway.carried(), [2; 100]);
}

#[tokio::test]
async fn idle_connection_is_closed_after_a_few_seconds_without_further_requests() {
    let gateway = Gateway::start();
    let client = gateway.client();
    let since = clock::now();
    chat(&client, "ann", 2).await.expect("a reply");
    let watched = tokio::task::spawn_blocking(move || gateway.is_closed(0));
    assert!(watched.await.unwrap());
    assert!(since.elapsed() >= Duration::from_secs(2), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn large_chat_uses_fresh_connection() {
    let _stopped = stop_clock();
    let gateway = Gateway::start();
    let client = gateway.client();
    // Some of these are larger than the kernel's first send buffer.
    for body in [2, 16 << 10, (16 << 10) + 1, 90 << 10, 256 << 10] {
        chat(&client, "ann", body).await.expect("a reply");
    }
    assert_eq!(gateway.carried(), [2, 1, 1, 1]);
}

#[tokio::test]
async fn early_refusal_of_large_request_passes_and_early_success_does_not() {
    const LARGE: usize = 32 << 20;
    let gateway = Gateway::start();
    let client = gateway.client();
    chat(&client, "ann", 2).await.expect("a reply");
    *gateway.status.lock().unwrap() = 413;
    // Not on the connection that was used before, and not on this one afterwards.
    for _ in 0..2 {
        let refused = chat(&client, "ann", LARGE).await.expect("a refusal");
        assert_eq!(refused, StatusCode::PAYLOAD_TOO_LARGE);
    }
    *gateway.status.lock().unwrap() = 200;
    let outcome = chat(&client, "ann", LARGE).await;
    assert_eq!(outcome.map_err(|error| error.charged()), Err(Charged::Unknown));
    assert_eq!(gateway.carried(), [1, 1, 1, 1]);
}

/// A process that stood still meets its timers first.
#[tokio::test(start_paused = true)]
async fn reply_that_has_arrived_is_read_although_its_timeout_fires_first() {
    let (limit, tick) = (Duration::from_secs(45), Duration::from_millis(1));
    for (late, reply) in [(LAST_READ - tick, Some("hi")), (LAST_READ + tick, None)] {
        let read = async {
            tokio::time::sleep(limit + late).await;
            "hi"
        };
        assert_eq!(finish_within(limit, read).await, reply, "{late:?}");
    }
}
