//! Slow, silent and vanished clients, on a paused clock.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::super::AddressLimits;
use super::*;
use crate::metrics::Metrics;

const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

const LENGTH: usize = 100_000;

/// A server whose responses to `/slow` never come. All others have a body of [`LENGTH`].
struct Served {
    client: DuplexStream,
    /// The responses that count as delivered.
    delivered: Arc<AtomicUsize>,
    server: JoinHandle<()>,
    shutdown: CancellationToken,
}

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn serve_one() -> Served {
    serve_with(Arc::default())
}

fn serve_with(address_limits: Arc<AddressLimits>) -> Served {
    let (client, stream) = duplex(1 << 20);
    let (delivered, shutdown) = (Arc::<AtomicUsize>::default(), CancellationToken::new());
    let count = Arc::clone(&delivered);
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let count = Arc::clone(&count);
        Box::pin(async move {
            if request.uri().path() == "/slow" {
                pending::<()>().await;
            }
            let body = Body::from(Bytes::from(vec![b'x'; LENGTH]));
            let count = move || _ = count.fetch_add(1, Ordering::SeqCst);
            ready(Ok::<_, Infallible>(Response::new(body.on_end(count)))).await
        })
    });
    let settings = ConnectionSettings {
        header_timeout: HEADER_TIMEOUT,
        idle_timeout: IDLE_TIMEOUT,
        connections: Arc::new(tokio::sync::Semaphore::new(1)),
        address_limits,
        tls: None,
        streams: 64,
        metrics: Arc::new(Metrics::default()),
    };
    let stop = shutdown.clone();
    let server = tokio::spawn(async move { serve((stream, PEER), service, &settings, stop).await });
    Served { client, delivered, server, shutdown }
}

/// Frames by hand, for what a client library would not do.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The preface with these settings.
fn preface(settings: &[u8]) -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, settings)].concat()
}

/// A `GET` of `/` or, with `:path` of four letters, of another.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x87, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x01x");
    frame(1, 0x5, stream, &block)
}

/// Reads until a frame of this kind arrives on this stream.
async fn until_frame(client: &mut DuplexStream, kind: u8, stream: u32) -> Vec<u8> {
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.expect("a frame");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        client.read_exact(&mut payload).await.expect("a payload");
        if head[3] == kind && head[5..] == stream.to_be_bytes() {
            return payload;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silent_and_half_heads_end_at_the_header_timeout() {
    let half_head = [preface(b""), frame(1, 0x1, 1, b"\x82\x87")].concat();
    for sent in [&b""[..], b"PRI * HTTP", &preface(b""), &half_head] {
        let Served { mut client, server, .. } = serve_one();
        let start = Instant::now();
        client.write_all(sent).await.unwrap();
        server.await.unwrap();
        let taken = start.elapsed();
        assert!(taken >= HEADER_TIMEOUT && taken <= HEADER_TIMEOUT * 2, "{taken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_told_to_go_and_then_closed() {
    let Served { mut client, server, .. } = serve_one();
    client.write_all(&[preface(b""), get(1, "/")].concat()).await.unwrap();
    client.write_all(&frame(8, 0, 0, &100_000u32.to_be_bytes())).await.unwrap();
    client.write_all(&frame(8, 0, 1, &100_000u32.to_be_bytes())).await.unwrap();
    let start = Instant::now();
    until_frame(&mut client, 7, 0).await;
    assert!(start.elapsed() >= IDLE_TIMEOUT);
    server.await.unwrap();
    assert!(start.elapsed() <= IDLE_TIMEOUT + HEADER_TIMEOUT * 2);
}

#[tokio::test(start_paused = true)]
async fn shutdown_says_goaway_and_waits_for_open_streams() {
    let Served { mut client, server, shutdown, .. } = serve_one();
    let windows = [frame(8, 0, 0, &100_000u32.to_be_bytes()), get(1, "/")].concat();
    client.write_all(&[preface(b""), windows].concat()).await.unwrap();
    until_frame(&mut client, 1, 1).await;
    shutdown.cancel();
    until_frame(&mut client, 7, 0).await;
    client.write_all(&frame(8, 0, 1, &100_000u32.to_be_bytes())).await.unwrap();
    let mut rest = Vec::new();
    let ended = async {
        client.read_to_end(&mut rest).await.unwrap();
    };
    timeout(STALL_TIMEOUT, ended).await.expect("it ends");
    assert!(rest.len() > 30_000, "the rest of the response: {}", rest.len());
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stream_without_window_is_reset_and_its_response_is_not_delivered() {
    // SETTINGS_INITIAL_WINDOW_SIZE: none, and less than the response.
    for window in [0u32, 5, 65_535] {
        let Served { mut client, delivered, .. } = serve_one();
        let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
        let start = Instant::now();
        client.write_all(&[preface(&settings), get(1, "/")].concat()).await.unwrap();
        until_frame(&mut client, 3, 1).await;
        assert!(start.elapsed() >= STALL_TIMEOUT);
        // Another stream of the connection is served.
        let more = frame(8, 0, 0, &200_000u32.to_be_bytes());
        let more = [more, get(3, "/"), frame(8, 0, 3, &200_000u32.to_be_bytes())].concat();
        client.write_all(&more).await.unwrap();
        let mut read = 0;
        while read < LENGTH {
            read += until_frame(&mut client, 0, 3).await.len();
        }
        assert_eq!(delivered.load(Ordering::SeqCst), 0, "hyper does not say when it is");
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_answers_no_ping_is_gone() {
    // It cannot answer within a head.
    let half_head = frame(1, 0x1, 3, b"\x82\x87");
    for more in [&b""[..], &half_head] {
        let Served { mut client, server, .. } = serve_one();
        client.write_all(&[&*preface(b""), &get(1, "/slow"), more].concat()).await.unwrap();
        let start = Instant::now();
        until_frame(&mut client, 6, 0).await;
        server.await.unwrap();
        assert!(start.elapsed() >= PING_TIMEOUT);
        assert!(start.elapsed() <= PING_TIMEOUT + IDLE_TIMEOUT);
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_answers_pings_may_wait() {
    let Served { mut client, server, .. } = serve_one();
    client.write_all(&[preface(b""), get(1, "/slow")].concat()).await.unwrap();
    for _ in 0..12 {
        let ping = until_frame(&mut client, 6, 0).await;
        client.write_all(&frame(6, 0x1, 0, &ping)).await.unwrap();
    }
    assert!(!server.is_finished());
}

#[tokio::test(start_paused = true)]
async fn address_has_as_many_streams_as_connections_on_all_its_connections() {
    let limits = Arc::new(AddressLimits::default());
    limits.reconfigure(3, Arc::default());
    let slow = |stream| get(stream, "/slow");
    let mut one = serve_with(Arc::clone(&limits));
    let mut two = serve_with(Arc::clone(&limits));
    one.client.write_all(&[preface(b""), slow(1), slow(3)].concat()).await.unwrap();
    until_streams(&limits, 2).await;
    two.client.write_all(&[preface(b""), slow(1), slow(3)].concat()).await.unwrap();
    let refused = until_frame(&mut two.client, 3, 3).await;
    assert_eq!(refused, 7u32.to_be_bytes(), "REFUSED_STREAM: it may be sent again");
    // A stream that ends makes room.
    one.client.write_all(&frame(3, 0, 1, &8u32.to_be_bytes())).await.unwrap();
    until_streams(&limits, 2).await;
    two.client.write_all(&slow(5)).await.unwrap();
    until_streams(&limits, 3).await;
}

async fn until_streams(limits: &AddressLimits, count: usize) {
    while limits.streams.total() != count {
        tokio::task::yield_now().await;
    }
}
