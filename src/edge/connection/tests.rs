//! Which bytes of a connection are taken for a request, although it leaves hyper after a response.

use std::sync::Mutex;

use tokio::net::TcpListener;

use super::super::AddressLimits;
use super::*;
use crate::gate::response::{Body, Response};
use crate::metrics::Metrics;

const HEAD: &[u8] = b"POST /first HTTP/1.1\r\nhost: x\r\n";

/// A server that answers each request without reading its body, and the paths that it saw.
async fn served(idle_timeout: Duration) -> (TcpStream, Arc<Mutex<Vec<String>>>, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _peer) = listener.accept().await.unwrap();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let paths = Arc::clone(&seen);
    let service = tower::service_fn(move |request: Request<Incoming>| {
        paths.lock().unwrap().push(request.uri().path().to_owned());
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(Bytes::from("ok")))))
    });
    let settings = ConnectionSettings {
        header_timeout: Duration::from_secs(20),
        idle_timeout,
        connections: Arc::new(tokio::sync::Semaphore::new(1)),
        address_limits: Arc::new(AddressLimits::default()),
        tls: None,
        streams: 1,
        metrics: Arc::new(Metrics::default()),
    };
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move { serve(stream, service, &settings, stop).await });
    (client, seen, shutdown)
}

/// Reads until so many answers have arrived, or the end.
async fn answers(client: &mut TcpStream, count: usize) -> usize {
    let mut text = Vec::new();
    loop {
        let found = text.windows(6).filter(|part| part == b"\r\n\r\nok").count();
        let mut buffer = [0; 512];
        if found >= count {
            return found;
        }
        match client.read(&mut buffer).await {
            Ok(0) | Err(_) => return found,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
}

#[tokio::test]
async fn unread_body_is_never_taken_for_a_request() {
    const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    for (sent_at_once, chunked) in [(0, false), (5, false), (0, true), (SMUGGLED.len(), false)] {
        let (mut client, seen, _shutdown) = served(Duration::from_secs(20)).await;
        let framing = if chunked {
            format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", SMUGGLED.len())
        } else {
            format!("content-length: {}\r\n\r\n", SMUGGLED.len())
        };
        let first = [HEAD, framing.as_bytes(), &SMUGGLED[..sent_at_once]].concat();
        client.write_all(&first).await.unwrap();
        assert_eq!(answers(&mut client, 1).await, 1);
        client.write_all(&SMUGGLED[sent_at_once..]).await.ok();
        if chunked {
            client.write_all(b"\r\n0\r\n\r\n").await.ok();
        }
        client.shutdown().await.ok();
        answers(&mut client, 1).await;
        assert_eq!(*seen.lock().unwrap(), ["/first"], "{sent_at_once}, {chunked}");
    }
}

#[tokio::test]
async fn requests_that_arrive_in_pieces_are_each_answered_once() {
    const REQUEST: &[u8] = b"GET /one HTTP/1.1\r\nhost: x\r\n\r\n";
    const COUNT: usize = 7;
    let all = REQUEST.repeat(COUNT);
    for size in [1, 11, REQUEST.len(), REQUEST.len() + 9, 3 * REQUEST.len() - 1] {
        let (mut client, seen, _shutdown) = served(Duration::from_secs(20)).await;
        for piece in all.chunks(size) {
            client.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(answers(&mut client, COUNT).await, COUNT, "{size}");
        assert_eq!(seen.lock().unwrap().len(), COUNT, "{size}");
    }
}

#[tokio::test]
async fn idle_connection_ends_at_its_timeout_and_at_shutdown() {
    for idle_timeout in [Duration::from_millis(50), Duration::from_secs(600)] {
        let (mut client, seen, shutdown) = served(idle_timeout).await;
        client.write_all(b"GET /one HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(answers(&mut client, 1).await, 1);
        if idle_timeout > Duration::from_secs(1) {
            shutdown.cancel();
        }
        assert_eq!(answers(&mut client, 1).await, 0, "the end");
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn idle_connection_gives_its_buffers_back() {
    let (mut client, seen, _shutdown) = served(Duration::from_secs(600)).await;
    for requests in [1, 3] {
        for _ in 0..requests {
            client.write_all(b"GET /one HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            assert_eq!(answers(&mut client, 1).await, 1);
        }
        // hyper has a clone of the service.
        let left_hyper = async {
            while Arc::strong_count(&seen) > 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), left_hyper).await.expect("only the server has one");
    }
}

/// It was accepted just before the shutdown, by a server that shares its socket with the next one.
#[tokio::test]
async fn new_connection_may_send_its_first_request_during_a_shutdown() {
    let (mut client, seen, shutdown) = served(Duration::from_secs(20)).await;
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    shutdown.cancel();
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    client.write_all(get("/first").as_bytes()).await.unwrap();
    assert_eq!(answers(&mut client, 1).await, 1);
    // The connection closes after it.
    client.write_all(get("/second").as_bytes()).await.ok();
    assert_eq!(answers(&mut client, 1).await, 0);
    assert_eq!(*seen.lock().unwrap(), ["/first"]);
}
