//! How the axum example ends while a client follows its video.

use std::net::SocketAddr;

use nix::sys::signal::{Signal, raise};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tollgate::{Config, Tollgate};

use super::wire::exchange;
use super::{PATIENCE, axum_server};

const VIDEO: &str = r#"{"prompt":"a lighthouse"}"#;

/// Orders a video and opens the event stream of its job, which is still running.
async fn follow_video(at: SocketAddr) -> TcpStream {
    let order = format!(
        "POST /api/v1/video HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{VIDEO}",
        VIDEO.len()
    );
    let answer = exchange(at, &order).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request =
        format!("GET /bff/events HTTP/1.1\r\nhost: {at}\r\naccept: text/event-stream\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut begun = String::new();
    while !begun.contains("event: job") {
        let mut bytes = [0; 1_024];
        let count = timeout(PATIENCE, stream.read(&mut bytes)).await.expect("an event").unwrap();
        assert!(count > 0, "stream ended early: {begun}");
        begun.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(begun.starts_with("HTTP/1.1 200"), "{begun}");
    stream
}

/// A signal reaches every gate of this process.
static SIGNALS: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn sigterm_ends_axum_server_with_open_event_stream() {
    let _alone = SIGNALS.lock().await;
    let gate = Tollgate::new(Config::default().set("sandbox.job_time", "10m")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let server = tokio::spawn(axum_server::serve(listener, gate, axum_server::terminated()));
    let mut stream = follow_video(at).await;
    raise(Signal::SIGTERM).unwrap();
    timeout(PATIENCE, server).await.expect("it ends").unwrap().unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
    assert!(TcpStream::connect(at).await.is_err());
}

/// As the signal of axum's graceful shutdown.
#[tokio::test]
async fn sigterm_drains_the_gate_and_ends_a_server_that_waits_for_it() {
    let _alone = SIGNALS.lock().await;
    let gate = Tollgate::new(Config::default().set("sandbox.job_time", "10m")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let app = axum_server::app(gate.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let terminated = gate.terminated().unwrap();
    let serving = axum::serve(listener, app).with_graceful_shutdown(terminated);
    let server = tokio::spawn(serving.into_future());
    let mut stream = follow_video(at).await;
    raise(Signal::SIGTERM).unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
    timeout(PATIENCE, server).await.expect("it ends").unwrap().unwrap();
    gate.shutdown().await;
}
