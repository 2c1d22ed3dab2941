//! Paths, methods and the life of a connection.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_refused() {
    let running = run(quick()).await;
    for path in ["/", "/api/v1/search", "/api/v1/chat/", "/api/v1/api-keys"] {
        assert_eq!(running.get(path).await.refusal(), refused(404, "not_found"), "{path}");
    }
    for (method, path, allowed) in [
        ("GET", "/api/v1/chat", "POST"),
        ("PUT", "/api/v1/video", "POST"),
        ("POST", "/api/v1/video/status", "GET"),
        ("DELETE", "/api/api-keys", "GET"),
    ] {
        let got = running.send(running.request(method, path), "").await.expect("a reply");
        assert_eq!(got.refusal(), refused(405, "method_not_allowed"), "{method} {path}");
        assert_eq!(got.header("allow"), allowed);
    }
}

#[tokio::test]
async fn cors_is_open_below_versioned_path_only() {
    let running = run(quick()).await;
    let preflight = Request::builder().method("OPTIONS").uri("/api/v1/chat").header("host", "x");
    let got = running.send(preflight, "").await.expect("a reply");
    assert_eq!(got.status, 204);
    assert_eq!(got.header("access-control-allow-origin"), "*");
    assert_eq!(got.header("access-control-allow-methods"), "POST");
    let got = running.get("/api/api-keys").await;
    assert_eq!(got.header("access-control-allow-origin"), "");
}

/// Reads what comes until the other side closes.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let reading = stream.read_to_string(&mut text);
    tokio::time::timeout(MAX_WAIT, reading)
        .await
        .expect("within the maximum")
        .expect("a clean end");
    text
}

#[tokio::test]
async fn a_connection_serves_several_requests_and_is_closed_once_it_is_idle() {
    let running = run(SandboxSettings { idle: Duration::from_millis(300), ..quick() }).await;
    let request = format!("GET /nowhere HTTP/1.1\r\nhost: {}\r\n\r\n", running.address);
    // On a busy machine, a connection may be idle for too long before it sends.
    for _ in 0..100 {
        let before = running.sandbox.requests();
        let mut stream = TcpStream::connect(running.address).await.expect("it listens");
        let is_sent = stream.write_all(request.repeat(2).as_bytes()).await.is_ok();
        let mut text = String::new();
        let reading = stream.read_to_string(&mut text);
        let read = tokio::time::timeout(MAX_WAIT, reading).await.expect("it is closed");
        if is_sent && read.is_ok() && running.sandbox.requests() - before == 2 {
            assert_eq!(text.matches("HTTP/1.1 404").count(), 2, "{text}");
            return;
        }
    }
    panic!("no connection served two requests");
}

#[tokio::test]
async fn shutdown_ends_even_a_call_that_hangs() {
    let running = run(quick()).await;
    let mut stream = TcpStream::connect(running.address).await.expect("it listens");
    let body = chat_of("eta-5", "sandbox:hang").to_string();
    let request = format!(
        "POST /api/v1/chat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        running.key,
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("open");
    running.is_charged().await;
    running.stop.send(()).expect("it runs");
    tokio::time::timeout(MAX_WAIT, running.served).await.expect("it ends").expect("no panic");
    assert_eq!(read_to_end(&mut stream).await, "");
    assert!(TcpStream::connect(running.address).await.is_err(), "nobody listens");
}
