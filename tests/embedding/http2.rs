//! The gate in an HTTP/2 server: requests name their host in `:authority`.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::duplex;
use tollgate::{Config, Peer, Tollgate};
use tower::{Service, ServiceExt};

use super::CHAT;

#[tokio::test]
async fn gate_sells_over_http2() {
    let gate = Tollgate::new(Config::sandbox().instant()).unwrap();
    let (near, far) = duplex(64 << 10);
    let service = gate.clone();
    let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(([127, 0, 0, 1], 9).into()));
        service.clone().call(request)
    });
    let serving = server::Builder::new(TokioExecutor::new());
    tokio::spawn(serving.serve_connection(TokioIo::new(far), service));
    let (mut sender, connection) =
        client::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    for (uri, host, expected) in [
        ("http://localhost:8080/api/v1/chat", None, StatusCode::OK),
        ("http://localhost:8080/api/v1/chat", Some("LOCALHOST:8080"), StatusCode::OK),
        ("http://localhost:8080/api/v1/chat", Some("127.0.0.1:8080"), StatusCode::BAD_REQUEST),
        ("http://evil.example/api/v1/chat", None, StatusCode::MISDIRECTED_REQUEST),
    ] {
        let mut request = Request::post(uri).header("content-type", "application/json");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(Full::<bytes::Bytes>::from(CHAT)).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, expected, "{uri} {host:?}: {}", String::from_utf8_lossy(&body));
    }
    let page =
        Request::get("http://localhost:8080/").body(Full::<bytes::Bytes>::default()).unwrap();
    assert_eq!(sender.send_request(page).await.unwrap().status(), StatusCode::OK);
    gate.shutdown().await;
}

#[tokio::test]
async fn http1_request_with_an_absolute_target_is_still_rejected() {
    let gate = Tollgate::new(Config::sandbox()).unwrap();
    let request = Request::get("http://localhost/bff/catalog")
        .header("host", "localhost")
        .extension(Peer(([127, 0, 0, 1], 9).into()))
        .body(Full::<bytes::Bytes>::default())
        .unwrap();
    let answer = gate.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    gate.shutdown().await;
}
