//! The ops service of an embedded gate, and `tollgate reconcile` beside it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tollgate::gateway::sandbox::{Sandbox, SandboxSettings};
use tollgate::{Body, Config, OpsService, Peer, Tollgate};
use tower::ServiceExt;

use super::request;

const KEY: &str = "svc_sk_CANARY_0123456789abcdef0123456789";

async fn get(ops: OpsService, path: &str) -> Response<Body> {
    let request = Request::get(path).header("host", "localhost");
    let request = request.extension(Peer(([127, 0, 0, 1], 9).into())).body(()).unwrap();
    ops.oneshot(request).await.unwrap()
}

#[tokio::test]
async fn ops_service_has_metrics_and_readiness() {
    let gate = Tollgate::new(Config::sandbox().instant()).unwrap();
    assert_eq!(gate.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    let metrics = get(gate.ops(), "/metrics").await;
    let metrics = metrics.into_body().collect().await.unwrap().to_bytes();
    let metrics = String::from_utf8_lossy(&metrics);
    assert!(metrics.contains("tollgate_purchases") && metrics.ends_with("# EOF\n"), "{metrics}");
    assert_eq!(get(gate.ops(), "/readyz").await.status(), StatusCode::OK);
    gate.drain();
    assert_eq!(get(gate.ops(), "/readyz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(gate.ops(), "/healthz").await.status(), StatusCode::OK);
    // Operators never reach the public API by it, nor callers this by the gate.
    assert_eq!(get(gate.ops(), "/bff/catalog").await.status(), StatusCode::NOT_FOUND);
    gate.shutdown().await;
}

/// A gateway with a balance, and the settings of a gate that uses it.
async fn live(folder: &Path) -> Config {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let keys = vec![KEY.to_owned()];
    let sandbox = Sandbox::new(SandboxSettings { keys, ..SandboxSettings::default() });
    tokio::spawn(sandbox.serve(listener, std::future::pending()));
    let toml = format!("[gateway]\nbase_url = \"http://{at}\"\n");
    fs::write(folder.join("proxy.toml"), &toml).unwrap();
    let variables = [("GATEWAY_API_KEY".into(), KEY.into())];
    Config::read(&toml, folder, variables).unwrap()
}

async fn reconcile(folder: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["reconcile"]).current_dir(folder).env("GATEWAY_API_KEY", KEY);
    let ended = command.output().await.unwrap();
    let text = [ended.stdout, ended.stderr].concat();
    (ended.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn peers(gate: Tollgate) -> Tollgate {
    gate.peer_from(|it| it.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_asks_the_embedded_gate() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = live(folder.path()).await.ops_at(listener.local_addr().unwrap());
    let gate = Tollgate::new(config).unwrap();
    let ops = axum::Router::new()
        .fallback_service(peers(gate.clone()).ops())
        .into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, ops).await });
    let (code, text) = reconcile(folder.path()).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("checkpoint"), "{text}");
    server.abort();
    gate.shutdown().await;
}

#[tokio::test]
async fn reconcile_says_how_to_reach_an_embedded_gate_without_ops() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Tollgate::new(live(folder.path()).await).unwrap();
    let (code, text) = reconcile(folder.path()).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("Config::ops_at"), "{text}");
    gate.shutdown().await;
}
