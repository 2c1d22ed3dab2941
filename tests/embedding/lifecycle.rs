//! How a gate starts, changes its settings and ends within its application.

use std::path::Path;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tollgate::{Body, Config, Peer, StartError, Tollgate};
use tower::ServiceExt;

use super::{CHAT, PATIENCE, request};
use crate::support::eventually;

fn on_disk(folder: &Path) -> Config {
    Config::sandbox().instant().folder(folder).set("store.url", "sqlite:tollgate.db")
}

async fn get(gate: &Tollgate, path: &str) -> Response<Body> {
    let request = Request::get(path)
        .header("host", "localhost")
        .extension(Peer(([127, 0, 0, 1], 9).into()))
        .body(Full::<bytes::Bytes>::default())
        .unwrap();
    gate.clone().oneshot(request).await.unwrap()
}

async fn text(answer: Response<Body>) -> String {
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}

#[tokio::test]
async fn new_gate_learns_its_balance_by_itself() {
    let gate = Tollgate::new(Config::sandbox()).unwrap();
    let is_known = async || text(get(&gate, "/bff/me").await).await.contains("\"balance\"");
    eventually("the account is polled", is_known).await;
    gate.shutdown().await;
}

#[tokio::test]
async fn shutdown_releases_the_ledger_although_clones_live() {
    let folder = tempfile::tempdir().unwrap();
    let first = Tollgate::new(on_disk(folder.path())).unwrap();
    let clone = first.clone();
    assert_eq!(first.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    let Err(StartError::System(locked)) = Tollgate::new(on_disk(folder.path())) else {
        panic!("the first gate has the ledger");
    };
    assert!(locked.to_string().contains("this process"), "{locked}");
    first.shutdown().await;
    let second = Tollgate::new(on_disk(folder.path())).expect("the ledger is free");
    let usage = text(get(&second, "/bff/usage").await).await;
    assert!(usage.contains("alpha-sonnet-4.5"), "the purchase was kept: {usage}");
    let late = clone.oneshot(request()).await.unwrap();
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    second.shutdown().await;
}

#[tokio::test]
async fn dropped_gate_leaves_nothing_running() {
    let folder = tempfile::tempdir().unwrap();
    let before = Handle::current().metrics().num_alive_tasks();
    let gate = Tollgate::new(on_disk(folder.path())).unwrap();
    // The request has the last clone.
    assert_eq!(gate.oneshot(request()).await.unwrap().status(), StatusCode::OK);
    let have_ended = async || Handle::current().metrics().num_alive_tasks() <= before;
    eventually("its tasks end", have_ended).await;
    let next = Tollgate::new(on_disk(folder.path())).expect("the ledger is free");
    next.shutdown().await;
}

#[tokio::test]
async fn reload_applies_to_the_next_request_or_not_at_all() {
    let gate = Tollgate::new(Config::sandbox().instant()).unwrap();
    let clone = gate.clone();
    assert_eq!(gate.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    let poor = Config::sandbox().instant().set("budget.total", r#"{ day = "0.006" }"#);
    gate.reload(poor.clone()).unwrap();
    let mut other = request();
    *other.body_mut() = Full::from(CHAT.replace("Good", "Bad"));
    assert_eq!(clone.clone().oneshot(other).await.unwrap().status(), StatusCode::PAYMENT_REQUIRED);
    for wrong in [poor.clone().set("access.mode", "host"), poor.set("limits.burst", "many")] {
        let Err(StartError::Settings(errors)) = gate.reload(wrong) else { panic!("rejected") };
        assert_eq!(errors.len(), 1, "{errors:?}");
    }
    assert!(text(get(&gate, "/bff/me").await).await.contains("0.006"), "the last good ones stay");
    gate.shutdown().await;
}

#[tokio::test]
async fn drain_ends_event_streams_before_shutdown() {
    let gate = Tollgate::new(Config::sandbox().instant().set("sandbox.job_time", "10m")).unwrap();
    let mut order = request();
    *order.uri_mut() = "/api/v1/video".parse().unwrap();
    *order.body_mut() = Full::from(r#"{"prompt":"a lighthouse"}"#);
    assert_eq!(gate.clone().oneshot(order).await.unwrap().status(), StatusCode::OK);
    let stream = get(&gate, "/bff/events").await;
    assert_eq!(stream.status(), StatusCode::OK);
    gate.drain();
    timeout(PATIENCE, stream.into_body().collect()).await.expect("it ends").unwrap();
    let late = gate.clone().oneshot(request()).await.unwrap();
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    gate.shutdown().await;
}

#[tokio::test]
async fn instant_sandbox_has_no_limits_and_counts_charges() {
    let gate = Tollgate::new(Config::sandbox().instant()).unwrap();
    for number in 0..70 {
        let mut chat = request();
        *chat.body_mut() = Full::from(CHAT.replace("Good", &number.to_string()));
        let answer = gate.clone().oneshot(chat).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{number}");
    }
    let sold = gate.sandbox().unwrap();
    assert_eq!((sold.chats, sold.charged_micros), (70, 70 * 6_000));
    assert_eq!(sold.balance_micros, 50_000_000 - sold.charged_micros);
    gate.shutdown().await;
}
